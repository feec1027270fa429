"""Graph under construction: its ONNX model, the names of its tensors, their types and shapes.

A subgraph's builder is another one, with a parent whose tensors it sees. Types and shapes are
inferred node by node when somebody asks for them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper

from popart.builder.calls import check_data_type, write_tensor
from popart.builder.ids import reserve_id
from popart.builder.inference import infer_node, is_known, keep_constant
from popart.builder.opsets import DEFAULT_VERSION, ONNX_DOMAIN, VERSIONS, find_schemas
from popart.debugcontext import get_path_name
from popart.errors import popart_exception
from popart.graphcore import UNBOUNDED
from popart.tensorinfo import TensorInfo, from_onnx_type, get_type_name, to_onnx_type
from popart.variables import InputSettings, VariableSettings
from popart.windows import check_windows

_FIRST_IR_VERSION_4 = 9
"""Opset from which PopART writes ONNX's IR version 4, before that 3."""
_graph_numbers = count()
_debug_numbers = count(1)


class GraphBuilder:
    """One graph under construction."""

    def __init__(self, parent: GraphBuilder | None = None) -> None:
        self.parent = parent
        self.children: list[GraphBuilder] = []
        if parent is not None:
            parent.children.append(self)
        self.model = onnx.ModelProto(ir_version=4)
        self.set_name("BuilderGraph")
        self.scopes: list[str] = []
        self.attributes: dict[str, Any] = {}
        """Attributes that every node made now gets."""
        self.opsets: dict[str, int] = {}
        self.ids: dict[str, None] = {}
        """Names of the tensors of this graph."""
        self._makers: dict[str, int] = {}
        """Index of the node that makes a tensor."""
        self.types: MutableMapping[str, onnx.TypeProto] = {}
        """Types and shapes; the parents' too."""
        self.constants: MutableMapping[str, onnx.TensorProto] = {}
        """Small constants, whose values shapes may depend on; the parents' too."""
        if parent is not None:
            self.types = ChainMap({}, parent.types)
            self.constants = ChainMap({}, parent.constants)
        self._num_inferred = 0
        self._numbers: dict[str, int] = {}

    @classmethod
    def load(cls, model: onnx.ModelProto) -> GraphBuilder:
        """Return a graph to which nodes are added that a model does not have yet."""
        loaded = cls()
        loaded.model = model
        for opset in model.opset_import:
            loaded.opsets[opset.domain or ONNX_DOMAIN] = opset.version
        _check_opset(loaded.opsets.get(ONNX_DOMAIN, DEFAULT_VERSION))
        for value in model.graph.input:
            loaded._add_id(value.name, value.type)
        for tensor in model.graph.initializer:
            loaded.ids[tensor.name] = None
            keep_constant(loaded.constants, tensor.name, tensor)
        for index, node in enumerate(model.graph.node):
            loaded._add_outputs(node, index)
        for value in (*model.graph.value_info, *model.graph.output):
            if is_known(value.type):
                loaded.types[value.name] = value.type
        return loaded

    def set_name(self, name: str) -> None:
        """Name the graph; "BuilderGraph" and "" get a number."""
        numbered = name in ("", "BuilderGraph")
        self.model.graph.name = f"{name}_{next(_graph_numbers)}" if numbered else name

    # Tensors

    def add_input(self, info: TensorInfo, settings: InputSettings, debug: str) -> str:
        """Add an input with a type and shape, and return its id."""
        name = self.reserve(debug or "input")
        self._add_input(name, _make_type(info))
        self._add_metadata("__debug_id/input", name, next(_debug_numbers))
        self._add_metadata("__tile_set", name, settings.tileSet())
        self._add_metadata("__exchange_strategy", name, settings.exchangeStrategy())
        self._add_metadata("__replicated_stream_mode", name, settings.replicatedStreamMode())
        return name

    def add_untyped_input(self, debug: str) -> str:
        """Add an input of a subgraph, whose type the call gives, and return its id."""
        if self.parent is None:
            raise popart_exception(
                "Can not add untyped tensors to the top-level graph. Use "
                "Builder::addInputTensor(const TensorInfo &tensorInfo, const std::string "
                "&debugPrefix) instead."
            )
        name = self.reserve(debug or "input")
        self._add_input(name, None)
        return name

    def add_input_from_parent(self, name: str) -> None:
        """Add an input of a subgraph that has the name of a parent's tensor."""
        if not any(name in graph.ids for graph in self._iter_parents()):
            raise popart_exception(
                f"Failed to add unrecognised Tensor {name} from higher scope, Currently, a Tensor "
                "must already exist in a higher (parent) scope to add it as an input in a lower "
                "scope."
            )
        self.model.graph.input.add().name = name
        self.ids[name] = None

    def add_initialized_input(
        self, array: np.ndarray[Any, Any], settings: VariableSettings, debug: str
    ) -> str:
        """Add an input with a value, and return its id."""
        check_data_type(array)
        name = self.reserve(debug or "init_input")
        tensor = self.model.graph.initializer.add()
        write_tensor(tensor, name, array)
        info = TensorInfo(from_onnx_type(tensor.data_type), list(tensor.dims))
        self._add_input(name, _make_type(info))
        keep_constant(self.constants, name, tensor)
        self._add_metadata("__debug_id/input", name, next(_debug_numbers))
        group = settings.getSharedVariableDomain()
        self._add_metadata("__comm_group_type", name, group.type)
        self._add_metadata("__comm_group_size", name, group.replicaGroupSize)
        self._add_metadata("__variable_settings", name, settings.getRetrievalMode())
        return name

    def add_output(self, name: str) -> None:
        """Make a tensor an output."""
        self.model.graph.output.add().name = name

    def reserve(self, base: str) -> str:
        """Return a new id in the current scopes; neither a parent nor a child has it."""
        name = reserve_id(base, self.scopes, self._is_taken, self._numbers)
        self.ids[name] = None
        return name

    def is_initializer(self, name: str) -> bool:
        """Return whether an input of this graph has a value."""
        return any(tensor.name == name for tensor in self.model.graph.initializer)

    def list_valid(self) -> set[str]:
        """Return the ids of all tensors that a node can read."""
        return {name for graph in (self, *self._iter_parents()) for name in graph.ids}

    def is_valid(self, name: str) -> bool:
        """Return whether a node can read a tensor."""
        return any(name in graph.ids for graph in (self, *self._iter_parents()))

    def find_type(self, name: str) -> onnx.TypeProto | None:
        """Return the type and shape of a tensor as far as they are known."""
        self.infer()
        return self.types.get(name)

    def find_shape(self, name: str) -> list[int] | None:
        """Return the shape of a tensor, or None if it is not known."""
        value_type = self.find_type(name)
        if value_type is None or not value_type.tensor_type.HasField("shape"):
            return None
        return [dim.dim_value for dim in value_type.tensor_type.shape.dim]

    # Nodes

    def add_operator(
        self,
        domain: str,
        version: int,
        op_type: str,
        inputs: Sequence[str],
        num_outputs: int,
        attributes: Mapping[str, Any],
        debug: Any = "",
        limits: tuple[int, int] = (0, UNBOUNDED),
    ) -> list[str]:
        """Add a node, and return the ids of its outputs.

        Args:
            domain: Domain, "ai.onnx" for the standard.
            version: Version of the domain's operators.
            op_type: Type of the operator.
            inputs: Ids that it reads; "" for an optional input that is missing.
            num_outputs: Number of outputs.
            attributes: Attributes by name.
            debug: Name of the node, or a debug context.
            limits: Smallest and largest number of inputs.

        Returns:
            Ids of the outputs.

        Raises:
            popart_exception: If the node does not fit the graph.
        """
        maximum = _find_max_outputs(domain, version, op_type)
        if num_outputs > maximum:
            raise popart_exception(
                f"{op_type} has an invalid number of outputs {num_outputs}. Must be between "
                f"0..{maximum}"
            )
        self._check_inputs(op_type, inputs, limits)
        if domain == ONNX_DOMAIN:
            check_windows(op_type, inputs, attributes, self.find_shape)
        self._require_opset(domain, version)
        node = self.model.graph.node.add(op_type=op_type, input=inputs)
        node.domain = "" if domain == ONNX_DOMAIN else domain
        for index in range(num_outputs):
            node.output.append(self.reserve(f"{op_type}:{index}"))
        for key, value in sorted(attributes.items()):
            node.attribute.append(make_attribute(key, value))
        name = get_path_name(debug)
        if name or self.scopes:
            node.name = "/".join([*self.scopes, name or op_type])
        self._add_placement(node)
        self._add_outputs(node, len(self.model.graph.node) - 1)
        return list(node.output)

    def find_node(self, outputs: Collection[str]) -> onnx.NodeProto:
        """Return the node whose outputs are exactly those."""
        for name in outputs:
            index = self._makers.get(name)
            if index is not None:
                node = self.model.graph.node[index]
                if set(node.output) == set(outputs):
                    return node
        raise popart_exception(
            f"Could not find a node with outputs {' ,'.join(sorted(outputs))}. Must specify all "
            "outputs of a node"
        )

    def make_graph(self) -> onnx.GraphProto:
        """Return the graph with the types and shapes that are known."""
        graph = onnx.GraphProto()
        graph.CopyFrom(self.model.graph)
        self._describe(graph)
        return graph

    def make_model(self) -> onnx.ModelProto:
        """Return the model with the types and shapes that are known.

        The weights are the graph's own: do not change them.
        """
        self._describe(self.model.graph)
        return self.model

    def list_values(self) -> list[str]:
        """Return the ids of all results of nodes."""
        return list(self._makers)

    def _describe(self, graph: onnx.GraphProto) -> None:
        """Write the inferred types into a graph: of its results and of its outputs."""
        self.infer()
        del graph.value_info[:]
        for name in self._makers:
            info = graph.value_info.add(name=name)
            info.type.CopyFrom(self.types.get(name, onnx.TypeProto()))
            if not info.type.HasField("tensor_type"):
                info.type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
        for output in graph.output:
            if output.name in self.types:
                output.type.CopyFrom(self.types[output.name])

    def infer(self) -> None:
        """Infer types and shapes of the nodes that were added since the last call."""
        if self.parent is not None:
            self.parent.infer()
        nodes = self.model.graph.node
        while self._num_inferred < len(nodes):
            node = nodes[self._num_inferred]
            self._num_inferred += 1
            self.types.update(infer_node(node, self.opsets, self.types, self.constants))

    def _check_inputs(self, op_type: str, inputs: Sequence[str], limits: tuple[int, int]) -> None:
        low, high = limits
        if low > 0 and not low <= len(inputs) <= high:
            shown = "inf" if high >= UNBOUNDED else high
            raise popart_exception(
                f"{op_type} has invalid number of inputs {len(inputs)}. Must be between "
                f"{low}..{shown}"
            )
        for index, name in enumerate(inputs):
            # Either the scales or the sizes of a Resize can be missing.
            optional = index >= low or op_type == "Resize"
            if not (optional and not name) and not self.is_valid(name):
                valid = sorted(self.list_valid())
                shown = f"valid tensors are {', '.join(valid)}" if valid else ""
                raise popart_exception(
                    f"Unknown tensor '{name}' ({shown or 'there are no valid tensors yet'})."
                )

    def _require_opset(self, domain: str, version: int) -> None:
        defined = self.opsets.setdefault(domain, version)
        if defined != version:
            raise popart_exception(
                f"Invalid opset {version} used to add an operation. Opset for domain {domain} "
                f"already defined as {defined}"
            )
        name = "" if domain == ONNX_DOMAIN else domain
        if all(opset.domain != name for opset in self.model.opset_import):
            self.model.opset_import.add(domain=name, version=version)
            if not name:
                self.model.ir_version = 4 if version >= _FIRST_IR_VERSION_4 else 3

    def _add_placement(self, node: onnx.NodeProto) -> None:
        placement = {"__debug_info_id": next(_debug_numbers), **self.attributes}
        present = {entry.name for entry in node.attribute}
        for key, value in placement.items():
            if key in present:
                raise popart_exception(f"Node already has attribute {key}.")
            node.attribute.append(make_attribute(key, value))

    def _add_outputs(self, node: onnx.NodeProto, index: int) -> None:
        for name in filter(None, node.output):
            self.ids[name] = None
            self._makers[name] = index
        if node.op_type == "Constant" and not node.domain:
            for entry in node.attribute:
                if entry.name == "value":
                    keep_constant(self.constants, node.output[0], entry.t)

    def _add_input(self, name: str, kind: onnx.TypeProto | None) -> None:
        self.model.graph.input.add(name=name, type=kind)
        self._add_id(name, kind)

    def _add_id(self, name: str, kind: onnx.TypeProto | None) -> None:
        self.ids[name] = None
        if kind is not None:
            self.types[name] = kind

    def _add_metadata(self, key: str, name: str, value: Any) -> None:
        self.model.metadata_props.add(key=f"{key}/{name}", value=str(int(value)))

    def _is_taken(self, name: str) -> bool:
        return self.is_valid(name) or any(name in graph.ids for graph in self._iter_descendants())

    def _iter_parents(self) -> Iterator[GraphBuilder]:
        graph = self.parent
        while graph is not None:
            yield graph
            graph = graph.parent

    def _iter_descendants(self) -> Iterator[GraphBuilder]:
        waiting = list(self.children)
        while waiting:
            graph = waiting.pop()
            yield graph
            waiting.extend(graph.children)


def make_attribute(name: str, value: Any) -> onnx.AttributeProto:
    """Return an attribute; an empty list is one of ints."""
    if isinstance(value, (list, tuple)) and not value:
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
    if isinstance(value, bool):
        value = int(value)
    return helper.make_attribute(name, value)


def show_type(kind: onnx.TypeProto | None) -> str:
    """Return the name of a type in NumPy's style, "undefined" if it is not known."""
    number = onnx.TensorProto.UNDEFINED if kind is None else kind.tensor_type.elem_type
    return get_type_name(from_onnx_type(number))


def _make_type(info: TensorInfo) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(to_onnx_type(info.dataType()), info.shape())


def _find_max_outputs(domain: str, version: int, op_type: str) -> int:
    if domain != ONNX_DOMAIN:
        return UNBOUNDED
    schema = find_schemas(version).get(op_type)
    return UNBOUNDED if schema is None else schema.max_output


def _check_opset(version: int) -> None:
    if version not in VERSIONS:
        raise popart_exception(
            f"Encountered ONNX opset version {version}, Maximimum supported opset is "
            f"{VERSIONS[-1]}, minimum {VERSIONS[0]} and default {DEFAULT_VERSION}. poprt takes "
            "models of newer opsets."
        )
