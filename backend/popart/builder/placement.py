"""Attributes of nodes in a builder: any, and those that place operators and set their options.

The attributes that PopART reads have names that begin with two underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, overload

import numpy as np
import onnx

from popart.builder.calls import bind_any
from popart.builder.graphs import GraphBuilder, make_attribute
from popart.enums import RecomputeType
from popart.errors import popart_exception
from popart.graphcore import REQUIRED, Parameter
from popart.variables import CommGroup

VIRTUAL_GRAPH = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
EXECUTION_PHASE = "__execution_phase"
RECOMPUTE = "__recompute_output_in_backward_pass"
LOCATION = "__output_tensor_location"
AVAILABLE_MEMORY = "__available_memory"
PARTIALS = "__partials_type"
PRIORITY = "__schedule_priority"
OUTLINE = "__outline"
COMM_GROUP = "__collectiveCommGroup"
_MATMUL_MODES = ("input_channels", "reducing_dim", "output_channels")
_WITH_PARTIALS = ("Conv", "MatMul")
"""Operators that PopART's setPartialsType accepts; others have partial sums, too."""
_TYPES = onnx.AttributeProto
_KINDS: Mapping[str, tuple[int, str, Callable[[Any], Any]]] = {
    "Int64": (_TYPES.INT, "an integer", lambda value: value.i),
    "Int64Vector": (_TYPES.INTS, "an integer vector", lambda value: list(value.ints)),
    "Float": (_TYPES.FLOAT, "a float", lambda value: value.f),
    "FloatVector": (_TYPES.FLOATS, "a float vector", lambda value: list(value.floats)),
    "String": (_TYPES.STRING, "a string", lambda value: value.s.decode()),
    "StringVector": (
        _TYPES.STRINGS,
        "a string vector",
        lambda value: [text.decode() for text in value.strings],
    ),
}
"""Type, its name in errors, and reader of each kind of attribute."""

Names = str | Collection[str]


class BuilderPlacement:
    """Attributes of the nodes of a builder's graph."""

    _graph: GraphBuilder

    # Any attribute

    def addNodeAttribute(
        self, attributeName: str, attributeValue: Any, nodeOutputNames: Collection[str]
    ) -> None:
        """Add an attribute to a node.

        Args:
            attributeName: Name of the attribute.
            attributeValue: An int, float or str, or a list of them.
            nodeOutputNames: Ids of all outputs of the node.

        Raises:
            popart_exception: If there is no such node, or it has the attribute.
            TypeError: If an attribute cannot have that value.
        """
        node = self._graph.find_node(_to_set(nodeOutputNames))
        if any(entry.name == attributeName for entry in node.attribute):
            raise popart_exception(f"Node already has attribute {attributeName}.")
        node.attribute.append(make_attribute(attributeName, _to_plain(attributeValue)))

    def nodeHasAttribute(self, attributeName: str, nodeOutputNames: Collection[str]) -> bool:
        """Return whether a node has an attribute."""
        node = self._graph.find_node(_to_set(nodeOutputNames))
        return any(entry.name == attributeName for entry in node.attribute)

    def removeNodeAttribute(self, attributeName: str, nodeOutputNames: Collection[str]) -> None:
        """Remove an attribute of a node; raises popart_exception if there is none."""
        node = self._graph.find_node(_to_set(nodeOutputNames))
        for index, entry in enumerate(node.attribute):
            if entry.name == attributeName:
                del node.attribute[index]
                return
        raise popart_exception(f"Cannot remove attribute {attributeName} as it does not exist.")

    def getAllNodeAttributeNames(self, nodeOutputNames: Collection[str]) -> list[str]:
        """Return the names of a node's attributes."""
        node = self._graph.find_node(_to_set(nodeOutputNames))
        return [entry.name for entry in node.attribute]

    def getInt64NodeAttribute(self, attributeName: str, nodeOutputNames: Collection[str]) -> int:
        """Return an attribute that is an int."""
        return int(self._read("Int64", attributeName, nodeOutputNames))

    def getInt64VectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Collection[str]
    ) -> list[int]:
        """Return an attribute that is a list of ints."""
        return list(self._read("Int64Vector", attributeName, nodeOutputNames))

    def getFloatNodeAttribute(self, attributeName: str, nodeOutputNames: Collection[str]) -> float:
        """Return an attribute that is a float."""
        return float(self._read("Float", attributeName, nodeOutputNames))

    def getFloatVectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Collection[str]
    ) -> list[float]:
        """Return an attribute that is a list of floats."""
        return list(self._read("FloatVector", attributeName, nodeOutputNames))

    def getStringNodeAttribute(self, attributeName: str, nodeOutputNames: Collection[str]) -> str:
        """Return an attribute that is a str."""
        return str(self._read("String", attributeName, nodeOutputNames))

    def getStringVectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Collection[str]
    ) -> list[str]:
        """Return an attribute that is a list of str."""
        return list(self._read("StringVector", attributeName, nodeOutputNames))

    def _read(self, kind: str, name: str, outputs: Collection[str]) -> Any:
        number, shown, read = _KINDS[kind]
        for entry in self._graph.find_node(_to_set(outputs)).attribute:
            if entry.name == name:
                if entry.type != number:
                    raise popart_exception(f"Attribute {name} is not {shown}.")
                return read(entry)
        raise popart_exception(f"Node does not have an attribute {name}.")

    # Placement: of all nodes made in a with statement, or of a node by its outputs

    @overload
    def virtualGraph(self, value: int) -> AbstractContextManager[None]: ...
    @overload
    def virtualGraph(self, nodeOutputNames: Names, value: int = ...) -> None: ...
    def virtualGraph(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None] | None:
        """Place nodes on an IPU: (index) for a with statement, or (ids of outputs, index=0)."""
        return self._place("virtualGraph", VIRTUAL_GRAPH, _INDEX, args, kwargs)

    @overload
    def pipelineStage(self, value: int) -> AbstractContextManager[None]: ...
    @overload
    def pipelineStage(self, nodeOutputNames: Names, value: int = ...) -> None: ...
    def pipelineStage(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None] | None:
        """Put nodes into a stage: (index) for a with statement, or (ids of outputs, index=0)."""
        return self._place("pipelineStage", PIPELINE_STAGE, _INDEX, args, kwargs)

    @overload
    def executionPhase(self, value: int) -> AbstractContextManager[None]: ...
    @overload
    def executionPhase(self, nodeOutputNames: Names, value: int = ...) -> None: ...
    def executionPhase(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None] | None:
        """Put nodes into a phase: (index) for a with statement, or (ids of outputs, index=0)."""
        return self._place("executionPhase", EXECUTION_PHASE, _INDEX, args, kwargs)

    @overload
    def recomputeOutput(self, value: RecomputeType) -> AbstractContextManager[None]: ...
    @overload
    def recomputeOutput(self, nodeOutputNames: Names, value: RecomputeType = ...) -> None: ...
    def recomputeOutput(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None] | None:
        """Set `RecomputeType`: (value) for a with statement, or (ids of outputs, value)."""
        return self._place("recomputeOutput", RECOMPUTE, _RECOMPUTE, args, kwargs)

    @overload
    def outputTensorLocation(self, value: Any) -> AbstractContextManager[None]: ...
    @overload
    def outputTensorLocation(self, nodeOutputNames: Names, value: Any) -> None: ...
    def outputTensorLocation(
        self, *args: Any, **kwargs: Any
    ) -> AbstractContextManager[None] | None:
        """Set `TensorLocation`: (value) for a with statement, or (ids of outputs, value)."""
        return self._place("outputTensorLocation", LOCATION, _LOCATION, args, kwargs)

    def schedulePriority(self, value: float) -> AbstractContextManager[None]:
        """Return a context in which nodes have a priority."""
        return self._set_while(PRIORITY, float(value))

    def commGroup(self, type: int = 0, groupSize: int = 0) -> AbstractContextManager[None]:
        """Return a context in which collectives join those groups of replicas."""
        return self._set_while(COMM_GROUP, [int(type), int(groupSize)])

    def outlineAttributes(self, attributes: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context in which nodes are outlined only with nodes of the same attributes."""
        existing = self._graph.attributes.get(OUTLINE, [])
        merged = dict(zip(existing[::2], existing[1::2], strict=True))
        for key, value in attributes.items():
            merged.setdefault(str(key), str(value))
        pairs = [text for pair in sorted(merged.items()) for text in pair]
        return self._set_while(OUTLINE, pairs)

    def nameScope(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which names begin with `name` and a slash."""
        return self._scope(name)

    def getNameScope(self, name: str = "") -> str:
        """Return the current scopes and a name, joined with slashes."""
        return "/".join([*self._graph.scopes, name])

    def getVirtualGraph(self, nodeOutputNames: Names | None = None) -> int:
        """Return the IPU of a node, or of the current context; raises popart_exception if none."""
        if nodeOutputNames is not None:
            return self.getInt64NodeAttribute(VIRTUAL_GRAPH, _to_set(nodeOutputNames))
        return self._find(VIRTUAL_GRAPH, "Virtual graph")

    def hasVirtualGraph(self) -> bool:
        """Return whether nodes made now are placed on an IPU."""
        return VIRTUAL_GRAPH in self._graph.attributes

    def getPipelineStage(self) -> int:
        """Return the stage of nodes made now; raises popart_exception if there is none."""
        return self._find(PIPELINE_STAGE, "Pipeline stage")

    def hasPipelineStage(self) -> bool:
        """Return whether nodes made now are in a stage."""
        return PIPELINE_STAGE in self._graph.attributes

    def getExecutionPhase(self) -> int:
        """Return the phase of nodes made now; raises popart_exception if there is none."""
        return self._find(EXECUTION_PHASE, "Execution phase")

    def hasExecutionPhase(self) -> bool:
        """Return whether nodes made now are in a phase."""
        return EXECUTION_PHASE in self._graph.attributes

    def recomputeOutputInBackwardPass(
        self, nodeOutputName: Names, value: RecomputeType = RecomputeType.Recompute
    ) -> None:
        """Set whether training recomputes a node."""
        self.addNodeAttribute(RECOMPUTE, int(value), _to_set(nodeOutputName))

    def getRecomputeOutputInBackwardPass(self, nodeOutputName: Names) -> bool:
        """Return whether training recomputes a node."""
        return bool(self.getInt64NodeAttribute(RECOMPUTE, _to_set(nodeOutputName)))

    # Options of single operators

    def excludePatterns(self, nodeOutputName: Names, patternNames: Sequence[str]) -> None:
        """Name patterns that do not apply to a node."""
        self.addNodeAttribute("__exclude_patterns", list(patternNames), _to_set(nodeOutputName))

    def setInplacePreferences(self, nodeOutputName: str, prefs: Mapping[str, float]) -> None:
        """Set priorities of a node's in-place variants."""
        pairs = sorted(prefs.items())
        self.addNodeAttribute("__inplace_op_names", [name for name, _ in pairs], [nodeOutputName])
        self.addNodeAttribute(
            "__inplace_op_priorities", [float(value) for _, value in pairs], [nodeOutputName]
        )

    def setPartialsType(self, nodeOutputName: str, partialsType: str) -> None:
        """Set the type in which a Conv or MatMul accumulates.

        Args:
            nodeOutputName: Id of the node's output.
            partialsType: "HALF" or "FLOAT".

        Raises:
            popart_exception: If the node is neither a Conv nor a MatMul.
        """
        op_type = self._graph.find_node([nodeOutputName]).op_type
        if op_type not in _WITH_PARTIALS:
            raise popart_exception(
                "Builder::setPartialsType should only be called on operators: "
                f"{', '.join(_WITH_PARTIALS)}; but was given: {op_type}"
            )
        self.addNodeAttribute(PARTIALS, partialsType, [nodeOutputName])

    def getPartialsType(self, nodeOutputName: str) -> str:
        """Return the type in which a node accumulates."""
        if self.nodeHasAttribute(PARTIALS, [nodeOutputName]):
            return self.getStringNodeAttribute(PARTIALS, [nodeOutputName])
        return "FLOAT"

    def setAvailableMemoryProportion(
        self, nodeOutputName: Names, availableMemoryProportion: float
    ) -> None:
        """Set the part of a tile's memory that a node may use for temporary values.

        Args:
            nodeOutputName: Id of the node's output, or ids of all its outputs.
            availableMemoryProportion: The part, above 0 and up to 1.

        Raises:
            popart_exception: If it is outside.
        """
        if not 0 < availableMemoryProportion <= 1:
            raise popart_exception("availableMemoryProportion must be in (0,1]")
        outputs = _to_set(nodeOutputName)
        if self.nodeHasAttribute(AVAILABLE_MEMORY, outputs):
            self.removeNodeAttribute(AVAILABLE_MEMORY, outputs)
        self.addNodeAttribute(AVAILABLE_MEMORY, float(availableMemoryProportion), outputs)

    def setEnableConvDithering(self, nodeOutputName: str, enableConvDithering: int) -> None:
        """Let a Conv begin at a tile of its own.

        Args:
            nodeOutputName: Id of the Conv's output.
            enableConvDithering: 0 or 1.

        Raises:
            popart_exception: If the node is no Conv, or the value another.
        """
        if enableConvDithering not in (0, 1):
            raise popart_exception("enableConvDithering must be a bool value")
        op_type = self._graph.find_node([nodeOutputName]).op_type
        if op_type != "Conv":
            raise popart_exception(
                "Builder::setEnableConvDithering should only be called on convolutions but was "
                f"given: {op_type}"
            )
        self.addNodeAttribute("__enable_conv_dithering", int(enableConvDithering), [nodeOutputName])

    def setSerializeMatMul(
        self,
        nodeOutputName: Collection[str],
        mode: str,
        factor: int = 0,
        keep_precision: bool = False,
    ) -> None:
        """Split a MatMul into parts that are computed one after another.

        Args:
            nodeOutputName: Ids of the node's outputs.
            mode: "input_channels", "reducing_dim", "output_channels" or "none".
            factor: Number of parts.
            keep_precision: Whether parts are added in float.

        Raises:
            popart_exception: If there is no such mode.
        """
        if mode == "none":
            return
        if mode not in _MATMUL_MODES:
            shown = ", ".join(f"'{mode_name}'" for mode_name in _MATMUL_MODES)
            raise popart_exception(
                f"Unsupported mat mul serialization mode '{mode}'. Supported modes are {shown} or "
                "'none'"
            )
        outputs = _to_set(nodeOutputName)
        self.addNodeAttribute("__serialize_matmul_mode", mode, outputs)
        self.addNodeAttribute("__serialize_matmul_factor", int(factor), outputs)
        self.addNodeAttribute("__serialize_matmul_precision", int(keep_precision), outputs)

    def _find(self, key: str, shown: str) -> int:
        if key not in self._graph.attributes:
            raise popart_exception(f"{shown} not set in current scope.")
        return int(self._graph.attributes[key])

    def _place(
        self,
        method: str,
        key: str,
        value: Parameter,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> AbstractContextManager[None] | None:
        """Add an attribute to a node, or return a context for all nodes."""
        for_nodes = [[Parameter("nodeOutputNames", kind), value] for kind in ("id", "names")]
        scoped = value if value is not _INDEX else Parameter("value", "int")
        index, arguments = bind_any(method, [*for_nodes, [scoped]], args, kwargs)
        number = _to_value(arguments["value"])
        if index == len(for_nodes):
            return self._set_while(key, number)
        self.addNodeAttribute(key, number, _to_set(arguments["nodeOutputNames"]))
        return None

    @contextmanager
    def _set_while(self, key: str, value: Any) -> Iterator[None]:
        attributes = self._graph.attributes
        before = attributes.get(key)
        attributes[key] = value
        try:
            yield
        finally:
            if before is None:
                del attributes[key]
            else:
                attributes[key] = before

    @contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        self._graph.scopes.append(name)
        try:
            yield
        finally:
            self._graph.scopes.pop()


_INDEX = Parameter("value", "int", 0)
_RECOMPUTE = Parameter("value", "RecomputeType", "Undefined")
_LOCATION = Parameter("value", "TensorLocation", REQUIRED)


def _to_set(names: Names) -> Collection[str]:
    return [names] if isinstance(names, str) else names


def _to_value(value: Any) -> Any:
    """Return an attribute's value: a number, or a location's numbers."""
    if not hasattr(value, "shardingDomain"):
        return int(value)
    group = value.shardingDomain or CommGroup()
    places = ("storage", "loadTileSet", "storageTileSet", "replicatedTensorSharding")
    numbers = [int(getattr(value, place)) for place in places]
    return [*numbers, int(group.type), group.replicaGroupSize]


def _to_plain(value: Any) -> Any:
    """Return a value without NumPy's types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_to_plain(item) for item in value]
    if isinstance(value, (str, float, int)):
        return value
    raise TypeError(
        f"addNodeAttribute(): incompatible function arguments: {value!r} is neither an int, a "
        "float or a str, nor a list of them"
    )
