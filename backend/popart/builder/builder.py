"""`popart.Builder`: makes ONNX models, with PopART's placement of operators as attributes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from popart import graphcore
from popart.builder.calls import bind, bind_any
from popart.builder.graphs import GraphBuilder, show_type
from popart.builder.operators import AiGraphcoreOpset1
from popart.builder.opsets import (
    DEFAULT_VERSION,
    ONNX_DOMAIN,
    VERSIONS,
    Opset,
    find_class,
)
from popart.builder.placement import BuilderPlacement
from popart.debugcontext import DebugContext
from popart.enums import RecomputeType
from popart.errors import popart_exception
from popart.graphcore import Parameter
from popart.models import (
    check_model,
    read_model,
    save_initializers_externally,
    serialize_model,
)
from popart.tensorinfo import TensorInfo
from popart.variables import InputSettings, VariableSettings

if TYPE_CHECKING:
    from popart.builder.operators import (
        AiOnnxOpset6,
        AiOnnxOpset7,
        AiOnnxOpset8,
        AiOnnxOpset9,
        AiOnnxOpset10,
        AiOnnxOpset11,
    )

_DEBUG = Parameter("debugContext", "debug", "")
_INFO = (Parameter("tensorInfo", "TensorInfo"),)
_TYPE_AND_SHAPE = (Parameter("dataType", "str"), Parameter("shape", "ints"))
_SETTINGS = Parameter("settings", "InputSettings", None)
_INPUTS = tuple(
    (*tensor, *settings, _DEBUG)
    for tensor in (_INFO, _TYPE_AND_SHAPE)
    for settings in ((), (_SETTINGS,))
)
_INITIALIZED = (
    (Parameter("initVal", "array"), _DEBUG),
    (
        Parameter("initVal", "array"),
        Parameter("variableSettings", "VariableSettings"),
        _DEBUG,
    ),
)
_CUSTOM = (
    Parameter("opName", "str"),
    Parameter("opVersion", "int"),
    Parameter("domain", "str"),
    Parameter("inputs", "ids"),
    Parameter("attributes", "dict"),
    Parameter("numOutputs", "count", 1),
    Parameter("name", "debug", ""),
)
_VERSION_PREFIX = "aiOnnxOpset"


class Builder(BuilderPlacement):
    """Builder of an ONNX model.

    Operators of ONNX are methods of `aiOnnx` (opset 10) or `aiOnnxOpset6` to `aiOnnxOpset11`; the
    first that is used fixes the opset. PopART's own are methods of `aiGraphcore`.

    Args:
        modelProtoOrFilename: Model to add nodes to: bytes of a ModelProto, or a path.
        opsets: Versions of the domains, as `{"ai.onnx": 10, "ai.graphcore": 1}`.
        builderCore: Graph of another builder.

    Example:
        >>> import popart
        >>> builder = popart.Builder()
        >>> x = builder.addInputTensor("FLOAT", [2, 3])
        >>> y = builder.aiOnnx.relu([x])
        >>> builder.getTensorShape(y)
        [2, 3]
    """

    if TYPE_CHECKING:
        aiOnnx: AiOnnxOpset10
        aiOnnxOpset6: AiOnnxOpset6
        aiOnnxOpset7: AiOnnxOpset7
        aiOnnxOpset8: AiOnnxOpset8
        aiOnnxOpset9: AiOnnxOpset9
        aiOnnxOpset10: AiOnnxOpset10
        aiOnnxOpset11: AiOnnxOpset11

    def __init__(
        self,
        modelProtoOrFilename: bytes | str | os.PathLike[str] | None = None,
        opsets: Mapping[str, int] | None = None,
        builderCore: GraphBuilder | None = None,
    ) -> None:
        if builderCore is not None:
            self._graph = builderCore
        elif modelProtoOrFilename is not None:
            model = read_model(modelProtoOrFilename)
            check_model(model)
            self._graph = GraphBuilder.load(model)
        else:
            self._graph = GraphBuilder()
        self._version = None if opsets is None else opsets[ONNX_DOMAIN]
        self._opset: Opset | None = None
        if self._version is not None and self._version not in VERSIONS:
            raise popart_exception(
                f"Unsupported or unrecognized ai.onnx version: {self._version}. Builders have "
                f"versions {VERSIONS[0]} to {VERSIONS[-1]}"
            )
        version = 1 if opsets is None else opsets[graphcore.DOMAIN]
        self._graphcore = AiGraphcoreOpset1(self._graph, version)

    def __getattr__(self, name: str) -> Any:
        """Return the operators of an opset of ONNX; the first use fixes the opset."""
        version = self.__dict__.get("_version")
        requested = _read_version(name, version or DEFAULT_VERSION)
        if requested is None:
            raise AttributeError(f"popart.Builder has no attribute {name!r}")
        if version is not None and requested != version:
            raise RuntimeError(
                f"Invalid opset '{name}' selected. Opset for domain ai.onnx already defined as "
                f"{version}"
            )
        if self._opset is None:
            self._version = requested
            self._opset = find_class(requested)(self._graph, requested)
        return self._opset

    def __dir__(self) -> list[str]:
        return [
            *super().__dir__(),
            "aiOnnx",
            *(f"{_VERSION_PREFIX}{number}" for number in VERSIONS),
        ]

    @property
    def aiGraphcore(self) -> AiGraphcoreOpset1:
        """PopART's own operators."""
        return self._graphcore

    @property
    def aiGraphcoreOpset1(self) -> AiGraphcoreOpset1:
        """PopART's own operators, version 1."""
        return self._graphcore

    # Graphs

    def createSubgraphBuilder(self) -> Builder:
        """Return a builder of a subgraph, which can read all tensors of this one."""
        return Builder(builderCore=GraphBuilder(self._graph))

    def setGraphName(self, name: str) -> None:
        """Name the graph."""
        self._graph.set_name(name)

    def getModelProto(self) -> bytes:
        """Return the bytes of the ModelProto."""
        return serialize_model(self._graph.make_model())

    def make_graph(self) -> onnx.GraphProto:
        """Return the graph, as the attribute of a node that calls it."""
        return self._graph.make_graph()

    def saveModelProto(self, filename: str | os.PathLike[str]) -> None:
        """Check the model and write it to a file."""
        model = self._graph.make_model()
        check_model(model)
        Path(filename).write_bytes(serialize_model(model))

    def saveInitializersExternally(
        self, ids: Sequence[str], filename: str | os.PathLike[str]
    ) -> None:
        """Write initializers to a file that the model then refers to.

        Args:
            ids: Ids of initializers.
            filename: The file.

        Raises:
            popart_exception: If the folder does not exist, or an id is no initializer with data.
        """
        save_initializers_externally(self._graph.model, ids, filename)

    def embedReplicationFactor(self, replicationFactor: int) -> None:
        """Write the number of replicas into the model."""
        self._graph.model.metadata_props.add(
            key="__replicationFactor", value=str(replicationFactor)
        )

    # Tensors

    def addInputTensor(self, *args: Any, **kwargs: Any) -> str:
        """Add an input.

        Args:
            *args: (TensorInfo, InputSettings, debug context) or (type, shape, InputSettings, debug
                context); settings and debug context are optional.
            **kwargs: The same by name: tensorInfo, dataType, shape, settings, debugContext.

        Returns:
            Id of the input.

        Raises:
            TypeError: If the arguments have another form.
        """
        _, arguments = bind_any("addInputTensor", _INPUTS, args, kwargs)
        info = arguments.get("tensorInfo")
        if info is None:
            # As in the real module, settings beside a type and a shape have no effect.
            info, arguments["settings"] = (
                TensorInfo(arguments["dataType"], arguments["shape"]),
                None,
            )
        settings = arguments.get("settings") or InputSettings()
        return self._graph.add_input(info, settings, arguments["debugContext"])

    def addUntypedInputTensor(self, debugContext: str | DebugContext = "") -> str:
        """Add an input of a subgraph whose type each call gives, and return its id."""
        arguments = bind("addUntypedInputTensor", [_DEBUG], (debugContext,), {})
        return self._graph.add_untyped_input(arguments["debugContext"])

    def addInputTensorFromParentGraph(self, tensorId: str) -> None:
        """Add an input of a subgraph that has the name of a parent's tensor."""
        self._graph.add_input_from_parent(tensorId)

    def addInitializedInputTensor(self, *args: Any, **kwargs: Any) -> str:
        """Add an input with a value: a weight.

        Args:
            *args: (array, VariableSettings, debug context); the last two are optional.
            **kwargs: The same by name: initVal, variableSettings, debugContext.

        Returns:
            Id of the input.

        Raises:
            TypeError: If the arguments have another form.
            popart_exception: If no model can hold such an array.
        """
        _, arguments = bind_any("addInitializedInputTensor", _INITIALIZED, args, kwargs)
        settings = arguments.get("variableSettings") or VariableSettings()
        return self._graph.add_initialized_input(
            arguments["initVal"], settings, arguments["debugContext"]
        )

    def addOutputTensor(self, outputName: str) -> None:
        """Make a tensor the next output."""
        arguments = bind("addOutputTensor", [Parameter("outputName", "id")], (outputName,), {})
        self._graph.add_output(arguments["outputName"])

    def getInputTensorIds(self) -> list[str]:
        """Return the ids of the inputs, weights too."""
        return [value.name for value in self._graph.model.graph.input]

    def getOutputTensorIds(self) -> list[str]:
        """Return the ids of the outputs."""
        return [value.name for value in self._graph.model.graph.output]

    def getValueTensorIds(self) -> list[str]:
        """Return the ids of the results of nodes."""
        return self._graph.list_values()

    def getTrainableTensorIds(self) -> list[str]:
        """Return the ids of the weights."""
        return [tensor.name for tensor in self._graph.model.graph.initializer]

    def isInitializer(self, id: str) -> bool:
        """Return whether a tensor is a weight."""
        return self._graph.is_initializer(id)

    def getTensorShape(self, id: str) -> list[int]:
        """Return the shape of a tensor; [] if it cannot be inferred.

        Args:
            id: Id of the tensor.

        Returns:
            The shape.

        Raises:
            popart_exception: If there is no such tensor.
        """
        self._require(id)
        return self._graph.find_shape(id) or []

    def getTensorDtypeString(self, id: str) -> str:
        """Return the type of a tensor, as "float32"; "undefined" if it cannot be inferred.

        Args:
            id: Id of the tensor.

        Returns:
            The type.

        Raises:
            popart_exception: If there is no such tensor.
        """
        self._require(id)
        return show_type(self._graph.find_type(id))

    def reshape_const(
        self,
        aiOnnx: Any,
        args: Sequence[str],
        shape: Sequence[int],
        debugContext: str = "",
    ) -> str:
        """Add a Reshape to a constant shape.

        Args:
            aiOnnx: Operators to add it with.
            args: Id of the tensor.
            shape: The shape.
            debugContext: Name of the node.

        Returns:
            Id of the result.
        """
        constant = aiOnnx.constant(np.array(shape).astype(np.int64), debugContext + "_const")
        reshaped: str = aiOnnx.reshape([args[0], constant], debugContext)
        return reshaped

    def customOp(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add an operator of any domain.

        Args:
            *args: opName, opVersion, domain, inputs, attributes, numOutputs (1), name ("").
            **kwargs: The same by name. Attributes are str, int, float, and lists of int or float.

        Returns:
            Ids of the outputs.

        Raises:
            TypeError: If the arguments have another form.
            popart_exception: If an attribute has another type.
        """
        arguments = bind("customOp", _CUSTOM, args, kwargs)
        attributes = {
            str(key): _read_custom(str(key), value)
            for key, value in arguments["attributes"].items()
        }
        return self._graph.add_operator(
            arguments["domain"],
            1,
            arguments["opName"],
            arguments["inputs"],
            arguments["numOutputs"],
            attributes,
            arguments["name"],
        )

    def checkpointOutput(self, nodeOutputNames: Sequence[str]) -> list[str]:
        """Add an Identity for each tensor, and return their results."""
        copies = []
        for name in nodeOutputNames:
            version = self._graph.opsets.get(ONNX_DOMAIN, DEFAULT_VERSION)
            copied = self._graph.add_operator(
                ONNX_DOMAIN, version, "Identity", [name], 1, {}, "Checkpoint", (1, 1)
            )
            self.addNodeAttribute(
                "__recompute_output_in_backward_pass", int(RecomputeType.Checkpoint), copied
            )
            self.addNodeAttribute("__exclude_patterns", ["PreUniRepl", "PostNRepl"], copied)
            copies += copied
        return copies

    def _require(self, name: str) -> None:
        if self._graph.is_valid(name):
            return
        ids = (self.getInputTensorIds(), self.getOutputTensorIds(), self.getValueTensorIds())
        inputs, outputs, values = (" ".join(texts) for texts in ids)
        raise popart_exception(
            f"{name} is not an known tensor. Must be one of (inputs:{inputs}) "
            f"(outputs:{outputs}) (values:{values}). Please check the info log level to confirm "
            "whether the shape has been inferred successfully for the requested tensor."
        )


def _read_version(name: str, chosen: int) -> int | None:
    """Return the opset that an attribute stands for, or None."""
    if name == "aiOnnx":
        return chosen
    number = name.removeprefix(_VERSION_PREFIX)
    is_version = name != number and number.isdecimal() and int(number) in VERSIONS
    return int(number) if is_version else None


def _read_custom(name: str, value: Any) -> Any:
    """Return the value of a custom operator's attribute."""
    if isinstance(value, list):
        for number in (int, float):
            if all(isinstance(item, number) for item in value):
                return [number(item) for item in value]
        raise popart_exception(
            f"Invalid or mismatched python list type provided in custom op attribute '{name}'"
        )
    if isinstance(value, (str, int, float)):
        return value
    raise popart_exception(f"Invalid type provided in custom op attribute '{name}'")
