"""Views of graphs for passes: the known facts about tensors, and the values of small ones. `editor`
changes graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgraph.evaluation import evaluate_node
from onnxgraph.names import NameScope
from onnxgraph.nodes import STANDARD_DOMAINS, attribute, iter_bodies, reads_shape
from onnxgraph.opsets import AXES_ARE_INPUTS
from onnxgraph.tape import Tape
from onnxgraph.weights import LARGE, has_data, read_array
from popef._tools.arrays import Array

Shape = tuple[int, ...]
NUMPY_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
"""Types of floats that numpy has, too."""
INTEGER_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in "INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64".split()
)
NUMBER_ATTRIBUTES = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
"""Attributes in which a Constant may hold numbers other than a tensor, with the dtype of each."""


def constant_of(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant of numbers; None for other nodes."""
    if (
        node.op_type != "Constant"
        or len(node.attribute) != 1
        or node.domain not in STANDARD_DOMAINS
    ):
        return None
    entry = node.attribute[0]
    if entry.name == "value":
        return entry.t
    if entry.name not in NUMBER_ATTRIBUTES:
        return None
    return numpy_helper.from_array(
        np.asarray(helper.get_attribute_value(entry), NUMBER_ATTRIBUTES[entry.name])
    )


def type_name(element: int) -> str:
    """Return an element type's name in the standard's schemas."""
    return f"tensor({TensorProto.DataType.Name(element).lower()})"


@cache
def _find_schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    has = onnx.defs.has(op_type, opset)
    return onnx.defs.get_schema(op_type, opset) if has else None


def find_schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a standard operator in an opset; None for other operators."""
    return _find_schema(node.op_type, opset) if node.domain in STANDARD_DOMAINS else None


def is_operator(node: onnx.NodeProto, *op_types: str, domain: str = "") -> bool:
    """Return whether a node is one of these operators of a domain."""
    if node.op_type not in op_types:
        return False
    return node.domain == domain if domain else node.domain in STANDARD_DOMAINS


def is_untrained(value: Array) -> bool:
    """Return whether a weight may be untrained: several floats, all equal.

    Models are exported before they are trained, or for their shapes only. Changes that depend on
    such a weight's values, such as removing a bias of zeros, are invalid for the trained model
    with the same graph.
    """
    return value.size > 1 and value.dtype.kind == "f" and bool((value == value.flat[0]).all())


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Return the types that a graph declares for its tensors."""
    return {
        value.name: value.type.tensor_type
        for value in (*graph.value_info, *graph.output, *graph.input)
    }


def _constants_of(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Return the weights that are no inputs, which old formats allow, and the tensors of
    Constants."""
    inputs = {value.name for value in graph.input}
    constants = {
        initializer.name: initializer
        for initializer in graph.initializer
        if initializer.name not in inputs
    }
    for node in graph.node:
        tensor = constant_of(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
    return constants


class GraphView:
    """Known facts about the tensors in scope of a graph, including those of the graphs around
    it."""

    __slots__ = ("constants", "graph", "makers", "names", "outer", "types")

    def __init__(
        self,
        names: NameScope,
        graph: onnx.GraphProto,
        known: onnx.GraphProto | None = None,
        outer: GraphView | None = None,
    ) -> None:
        """Args:
        names: Names of the model.
        graph: The graph to look at.
        known: The same graph with inferred types, if any.
        outer: View of the graph around it.
        """
        self.names, self.graph, self.outer = names, graph, outer
        self.types = types_of(graph if known is None else known)
        self.constants = _constants_of(graph)
        self.makers = {name: node for node in graph.node for name in node.output if name}

    @property
    def opset(self) -> int:
        """Opset of new nodes. It differs from the model's only during a conversion to another
        opset."""
        return self.names.opset

    def home(self, name: str) -> GraphView | None:
        """Return the view that defines a name: this one, or one around it."""
        view: GraphView | None = self
        while view is not None:
            if name in view.types or name in view.constants or name in view.makers:
                return view
            view = view.outer
        return None

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor, in this graph or in one around it."""
        home = self.home(name)
        return home.makers.get(name) if home is not None else None

    def find(self, name: str) -> onnx.TypeProto.Tensor | None:
        """Return the inferred type of a tensor; None if it is not known."""
        home = self.home(name)
        return home.types.get(name) if home is not None else None

    def tensor(self, name: str) -> TensorProto | None:
        """Return the constant of that name; None if there is none."""
        home = self.home(name)
        return home.constants.get(name) if home is not None else None

    def value(self, name: str, most: int = LARGE) -> Array | None:
        """Return the values of a constant of at most `most` elements, if it has data, else None."""
        tensor = self.tensor(name) if name else None
        if tensor is None or math.prod(tensor.dims) > most or not has_data(tensor):
            return None
        return read_array(tensor)

    def number(self, name: str) -> float | None:
        """Return the value of a constant of one element, else None."""
        value = self.value(name, 1)
        return float(value.ravel()[0]) if value is not None and value.size == 1 else None

    def numbers(self, name: str) -> list[int] | None:
        """Return the values of a constant of integers, else None."""
        value = self.value(name)
        return (
            None
            if value is None or value.dtype.kind not in "iu"
            else [int(n) for n in value.ravel()]
        )

    def type(self, name: str) -> int:
        """Return the element type of a tensor; 0 if it is not known."""
        tensor, type_proto = self.tensor(name), self.find(name)
        return (
            tensor.data_type
            if tensor is not None
            else type_proto.elem_type
            if type_proto is not None
            else 0
        )

    def is_float(self, name: str) -> bool:
        """Return whether a tensor is known to be of floats that numpy has, too."""
        return self.type(name) in NUMPY_FLOATS

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the numpy type of a tensor whose element type is known."""
        return helper.tensor_dtype_to_np_dtype(self.type(name))

    def shape(self, name: str) -> Shape | None:
        """Return the static shape of a tensor; None if it is not known. A size of -1, as exporters
        write it, counts as unknown."""
        tensor, type_proto = self.tensor(name), self.find(name)
        if tensor is not None:
            return tuple(tensor.dims)
        if type_proto is None or not type_proto.HasField("shape"):
            return None
        dims = type_proto.shape.dim
        is_static = all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
        return tuple(d.dim_value for d in dims) if is_static else None

    def rank(self, name: str) -> int | None:
        """Return the number of a tensor's dimensions; None if it is not known."""
        tensor, type_proto = self.tensor(name), self.find(name)
        if tensor is not None:
            return len(tensor.dims)
        return (
            len(type_proto.shape.dim)
            if type_proto is not None and type_proto.HasField("shape")
            else None
        )

    def axes(self, node: onnx.NodeProto, rank: int | None) -> list[int] | None:
        """Return the axes of a Squeeze or Unsqueeze, counted from the front of `rank`. Return None
        if they are not known or not given."""
        if self.opset >= AXES_ARE_INPUTS:
            axes = self.numbers(node.input[1]) if len(node.input) > 1 else None
        else:
            axes = attribute(node, "axes")
        if axes is None or (rank is None and min(axes, default=0) < 0):
            return None
        return [axis + (rank or 0) if axis < 0 else axis for axis in axes]

    def start(self, node: onnx.NodeProto, what: str) -> Tape:
        """Return a tape for nodes that replace `node`; `what` makes their names distinct."""
        result = next(filter(None, node.output), node.op_type)
        return Tape(f"{result}/{what}", self.opset, self.names, is_alone=True)


_MAX_ELEMENTS = 1 << 12
"""Maximum number of elements of each intermediate tensor; shapes and pads have dozens."""
_MAX_BROADCAST = 1 << 20
"""Maximum of the product of all operands' sizes, which no broadcast result exceeds: it is checked
before anything is computed."""
_MAX_NODES = 256
"""Maximum number of nodes visited for one value."""
KEEPS_SIZE = frozenset(
    (
        "Abs Add And Cast CastLike Ceil Concat Constant Div Equal Floor Gather Greater "
        "GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or ReduceMax ReduceMin "
        "ReduceProd ReduceSum Reshape Shape Size Slice Squeeze Sub Transpose Unsqueeze Where"
    ).split()
)
"""Operators whose results have no more elements than all their inputs, broadcast, and with which
exporters count and compute shapes. The operators' entries stand in a room above this one."""


def find_value(view: GraphView, name: str) -> Array | None:
    """Return the values of a small tensor; None if they are not known without the model's
    inputs."""
    values: dict[str, Array] = {}
    nodes = _find_nodes(view, name, values)
    if nodes is None:
        return None
    for node in nodes:
        value = _compute(node, values, view)
        if value is None or value.size > _MAX_ELEMENTS:
            return None
        values[node.output[0]] = value
    return values.get(name)


def _find_nodes(view: GraphView, name: str, known: dict[str, Array]) -> list[onnx.NodeProto] | None:
    """Return the nodes that make a tensor, in order; constants are added to `known`. Return None if
    they include nodes that are not simple, or are too many."""
    nodes: dict[str, onnx.NodeProto] = {}
    waiting = [(name, False)]
    ordered: list[onnx.NodeProto] = []
    while waiting:
        needed_name, is_ready = waiting.pop()
        if is_ready:
            ordered.append(nodes[needed_name])
            continue
        if needed_name in nodes or needed_name in known:
            continue
        constant = view.value(needed_name, _MAX_ELEMENTS)
        if constant is not None:
            known[needed_name] = constant
            continue
        node = view.maker(needed_name)
        if node is None or not _is_simple(node) or len(nodes) >= _MAX_NODES:
            return None
        nodes[needed_name] = node
        waiting.append((needed_name, True))
        waiting.extend((read_name, False) for read_name in _iter_read(node, view))
    return ordered


def _is_simple(node: onnx.NodeProto) -> bool:
    return (
        node.op_type in KEEPS_SIZE
        and len(node.output) == 1
        and not any(True for _ in iter_bodies(node))
    )


def _iter_read(node: onnx.NodeProto, view: GraphView) -> Iterator[str]:
    """Yield the tensors that must be computed first; none for a Shape or Size of a known shape."""
    if not reads_shape(node) or view.shape(node.input[0]) is None:
        yield from filter(None, node.input)


def _compute(node: onnx.NodeProto, known: dict[str, Array], view: GraphView) -> Array | None:
    shape = view.shape(node.input[0]) if reads_shape(node) else None
    if shape is not None:
        if node.op_type == "Size":
            return np.array(math.prod(shape))
        start, end = attribute(node, "start", 0), attribute(node, "end")
        return np.array(shape[start:end], np.int64)
    read = [known[name] for name in node.input if name]
    if node.op_type != "Concat" and math.prod(value.size or 1 for value in read) > _MAX_BROADCAST:
        return None
    fed = {name: known[name] for name in node.input if name}
    try:
        results = evaluate_node(node, fed, [helper.make_opsetid("", view.names.source)])
    except Exception:  # noqa: BLE001 - the value of an invalid node is unknown
        return None
    return np.asarray(results[0])
