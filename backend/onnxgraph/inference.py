"""Shapes and element sizes of a graph's tensors, by shape inference: ONNX's for the standard's operators, and
for those of other domains that of standard ones which stand in for them, or of users' functions."""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from onnxgraph.edit import replace_nodes
from onnxgraph.nodes import STANDARD_DOMAINS, iter_bodies
from onnxgraph.tensors import element_bytes

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ)
_LARGE = 256
"""Elements of a float weight on whose values no shape depends: what shapes are made of is smaller."""
_MOST_ROUNDS = 64
"""Of inference, for loops that follow one another; a known model has 2."""
MOST_TRIPS = 2**31
"""Of a Loop: more stand for a loop that only its condition ends."""
_MOST_REMEMBERED = 2
"""Graphs whose shapes are remembered: who asks again asks soon."""

StandIn = Callable[[onnx.NodeProto], Sequence[onnx.NodeProto]]
"""Of a node of another domain, nodes of the standard that make tensors of the same names, types and
shapes."""
ShapeFunction = Callable[[onnx.ModelProto, onnx.NodeProto], tuple[onnx.ModelProto, bool]]
"""What a user says of an operator: the model with the shapes that the node makes, and whether they are
known."""

_STAND_INS: dict[tuple[str, str], StandIn] = {}
_FUNCTIONS: dict[str, ShapeFunction] = {}
_DOMAIN_FUNCTIONS: dict[str, ShapeFunction] = {}
"""Those that are asked for all operators of a domain that have none of their own."""
_MARK = "onnxgraph.stand-in:"
"""What stand-ins are known by, in their doc_string; behind it the number of the node that they stand for."""
_Inference = tuple[onnx.shape_inference.InferenceError | None, onnx.ModelProto]
"""What is wrong with a graph, and what can be said of it all the same."""
_remembered: ContextVar[dict[bytes, _Inference] | None] = ContextVar("_remembered", default=None)


def register_stand_in(domain: str, *op_types: str) -> Callable[[StandIn], StandIn]:
    """A decorator: while shapes are inferred, what the function makes of a node stands in for operators of
    another domain than the standard's."""

    def add(make: StandIn) -> StandIn:
        assert domain not in STANDARD_DOMAINS, "ONNX infers the shapes of its own operators"
        _STAND_INS.update(((domain, op_type), make) for op_type in op_types)
        return make

    return add


def _stand_in_for_eye(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A Cast, which makes a tensor of the same type and shape: ONNX's inference of EyeLike ends the process
    where nothing is known of its input."""
    to = next((each.i for each in node.attribute if each.name == "dtype"), 0)
    if to:
        return [helper.make_node("Cast", node.input, node.output, node.name, to=to)]
    return [helper.make_node("Identity", node.input, node.output, node.name)]


_STAND_INS.update(((domain, "EyeLike"), _stand_in_for_eye) for domain in STANDARD_DOMAINS)


def register_shape_function(function: ShapeFunction, *op_types: str) -> None:
    """Ask `function`, a user's, for what nodes of those operators make, whatever their domain, where nothing
    else says it."""
    _FUNCTIONS.update(dict.fromkeys(op_types, function))


def register_domain_shapes(domain: str, function: ShapeFunction) -> None:
    """Ask `function` for what nodes of `domain` make, where nothing else says it."""
    assert domain not in STANDARD_DOMAINS, "ONNX infers the shapes of its own operators"
    _DOMAIN_FUNCTIONS[domain] = function


def _find_function(node: onnx.NodeProto) -> ShapeFunction | None:
    return _FUNCTIONS.get(node.op_type) or _DOMAIN_FUNCTIONS.get(node.domain)


def has_shape_function(op_type: str) -> bool:
    """Whether a user has said what nodes of that operator make."""
    return op_type in _FUNCTIONS


def like_first_input(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """The stand-in of operators whose first result is of the type and shape of their first operand."""
    return [helper.make_node("Identity", [node.input[0]], [node.output[0]])]


@contextmanager
def remember_inferences() -> Iterator[None]:
    """While the with statement lasts, a graph that is asked about again is not inferred again.

    What decides is all that the graph says, so that nobody who changes one has to tell. Outside, nothing is
    kept: a server loads a graph once.
    """
    if _remembered.get() is not None:
        yield
        return
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's compiled shape and the bytes of one element."""

    shape: tuple[int, ...]
    bytes_per_element: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return self.size * self.bytes_per_element


def infer_shapes(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """The model with what can be said of its tensors' types and shapes, and without the data of large float
    weights.

    No shape depends on those, and nobody should write and read gigabytes for shapes. What goes round a Loop
    keeps its shape, as it has to on the chip, which ONNX's inference does not take for granted. Raises
    InferenceError if `strict`.
    """
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        large = (
            tensor.data_type in _FLOATS and math.prod(tensor.dims) > _LARGE
        ) or tensor.data_location == TensorProto.EXTERNAL
        stub = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        light.graph.initializer.append(stub if large else tensor)
    remembered = _remembered.get()
    if remembered is None:
        return _infer(light, strict)
    key = hashlib.sha256(light.SerializeToString(deterministic=True)).digest()
    if key not in remembered:
        remembered[key] = _infer_for_both(light)
        if len(remembered) > _MOST_REMEMBERED:
            del remembered[next(iter(remembered))]
    fault, known = remembered[key]
    if strict and fault is not None:
        raise fault
    own = onnx.ModelProto()
    own.CopyFrom(known)
    return own


def _infer_for_both(model: onnx.ModelProto) -> _Inference:
    """Where nothing is wrong, who is strict and who is not get the same answer."""
    try:
        return None, _infer(model, True)
    except onnx.shape_inference.InferenceError as error:
        return error, _infer(model, False)


def _infer(model: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    stood_for: list[onnx.NodeProto] = []
    _put_stand_ins(model.graph, stood_for)
    lent: list[int] = []
    _lend_constants(model.graph, ChainMap(), lent)
    try:
        inferred = _infer_standard(model, strict)
    finally:
        _take_constants_back(model.graph, iter(lent))
        _take_stand_ins_away(model.graph, stood_for)
    _take_constants_back(inferred.graph, iter(lent))
    _take_stand_ins_away(inferred.graph, stood_for)
    return inferred


def _lend_constants(graph: onnx.GraphProto, outer: ChainMap[str, TensorProto], lent: list[int]) -> None:
    """Put the small constants that bodies read from around them into the bodies, in place: ONNX's inference
    sees what shapes they make only there. How many each body got is added to the list, in order."""
    small = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type not in _FLOATS and math.prod(tensor.dims) <= _LARGE
    }
    seen = outer.new_child(small)
    for node in graph.node:
        for body in iter_bodies(node):
            own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
            read = dict.fromkeys(name for inner in body.node for name in inner.input if name not in own)
            found = [seen[name] for name in read if name in seen]
            body.initializer.extend(found)
            lent.append(len(found))
            _lend_constants(body, seen, lent)


def _take_constants_back(graph: onnx.GraphProto, lent: Iterator[int]) -> None:
    for node in graph.node:
        for body in iter_bodies(node):
            count = next(lent)
            if count:
                del body.initializer[-count:]
            _take_constants_back(body, lent)


def _infer_standard(model: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)
    loops = sum(node.op_type == "Loop" for node in model.graph.node)
    asked = sum(_find_function(node) is not None for node in model.graph.node)
    for _ in range(min(2 * loops, _MOST_ROUNDS) + asked):  # into a Loop's body, and out of it
        if not (_declare_loops(inferred) | (asked > 0 and _ask_functions(inferred))):
            break
        inferred = onnx.shape_inference.infer_shapes(inferred, strict_mode=strict, data_prop=True)
    return inferred


def _put_stand_ins(graph: onnx.GraphProto, stood_for: list[onnx.NodeProto]) -> None:
    """In place, in bodies too; the nodes that are stood for are added to the list."""
    nodes: list[onnx.NodeProto] = []
    found = False
    for node in graph.node:
        for body in iter_bodies(node):
            _put_stand_ins(body, stood_for)
        make = _STAND_INS.get((node.domain, node.op_type))
        if make is None:
            nodes.append(node)
            continue
        found = True
        made = list(make(node))
        for each in made:
            each.doc_string = f"{_MARK}{len(stood_for)}"
        nodes += made
        own = onnx.NodeProto()
        own.CopyFrom(node)
        stood_for.append(own)
    if found:
        replace_nodes(graph, nodes)


def _take_stand_ins_away(graph: onnx.GraphProto, stood_for: Sequence[onnx.NodeProto]) -> None:
    """Put the nodes that are stood for back, and forget what stand-ins make on the way."""
    if not stood_for:
        return
    nodes: dict[int, onnx.NodeProto] = {}
    inner: set[str] = set()
    found = False
    for i, node in enumerate(graph.node):
        for body in iter_bodies(node):
            _take_stand_ins_away(body, stood_for)
        _, mark, number = node.doc_string.partition(_MARK)
        if mark:
            found = True
            own = stood_for[int(number)]
            inner |= set(node.output) - set(own.output)
            nodes.setdefault(-1 - int(number), own)
        else:
            nodes[i] = node
    if found:
        replace_nodes(graph, nodes.values())
        kept = [value for value in graph.value_info if value.name not in inner]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)


def _ask_functions(model: onnx.ModelProto) -> bool:
    """Have users' functions write, in place, what their nodes make. Whether anything was written."""
    written = False
    for node in list(model.graph.node):
        function = _find_function(node)
        if function is None or _find_known(model.graph).keys() >= set(filter(None, node.output)):
            continue
        told, is_known = function(model, node)
        if is_known and told is not model:
            model.CopyFrom(told)
        written |= is_known
    return written


def _find_known(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """What is known of tensors whose static shape is."""
    known = {
        info.name: info
        for info in (*graph.value_info, *graph.output, *graph.input)
        if _static_shape(info) is not None
    }
    for tensor in graph.initializer:
        known.setdefault(
            tensor.name, onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    return known


def collect_values(model: onnx.ModelProto) -> dict[str, Value]:
    """Shape and element size of every tensor of the main graph, as far as they can be inferred."""
    return graph_values(infer_shapes(model).graph)


def iter_shapes(graph: onnx.GraphProto) -> Iterator[ChainMap[str, tuple[int, ...]]]:
    """The static shapes that can be seen in a graph whose types are known, and in the bodies inside it, in
    the order of `iter_graphs`."""
    yield from _iter_shapes(graph, ChainMap())


def _iter_shapes(
    graph: onnx.GraphProto, outer: ChainMap[str, tuple[int, ...]]
) -> Iterator[ChainMap[str, tuple[int, ...]]]:
    shapes = outer.new_child({name: value.shape for name, value in graph_values(graph).items()})
    yield shapes
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_shapes(body, shapes)


def graph_values(graph: onnx.GraphProto) -> dict[str, Value]:
    """Shape and element size of every tensor of a graph whose static shape is known, not of the graphs inside
    its nodes."""
    values = {tensor.name: value_of(tensor) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        shape = _static_shape(info)
        if shape is not None:
            values.setdefault(info.name, Value(shape, _bytes_per_element(info.type.tensor_type.elem_type)))
    return values


def count_trips(limit: TensorProto | None) -> int | None:
    """How often a Loop runs at most, by the constant that is its first input, if it is one; for no limit
    exporters write the largest integer."""
    return None if limit is None else max(0, int(onnx.numpy_helper.to_array(limit).ravel()[0]))


def _declare_loops(model: onnx.ModelProto) -> bool:
    """Write into each Loop's body, in place, the shapes that it starts with, and behind it those that it ends
    with.

    Only where they are known and the body keeps them. Whether anything was written.
    """
    graph = model.graph
    known = _find_known(graph)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    written = False
    for node in graph.node:
        if node.op_type != "Loop" or known.keys() >= set(node.output):
            continue
        body = node.attribute[0].g
        for inner, outer in zip(body.input[2:], node.input[2:], strict=True):
            if outer in known and _static_shape(inner) is None:
                inner.type.CopyFrom(known[outer].type)
                written = True
        states = len(body.input) - 2
        for name, inner, result in zip(node.output, body.input[2:], body.output[1:], strict=False):
            if (
                _static_shape(inner) is not None
                and _static_shape(inner) == _static_shape(result)
                and name not in known
            ):
                _declare(graph, onnx.ValueInfoProto(name=name, type=inner.type))
                written = True
        for name, result in zip(node.output[states:], body.output[1 + states :], strict=True):
            shape, trips = _static_shape(result), count_trips(constants.get(node.input[0]))
            if shape is not None and trips is not None and trips <= MOST_TRIPS and name not in known:
                stacked = onnx.helper.make_tensor_value_info(
                    name, result.type.tensor_type.elem_type, (trips, *shape)
                )
                _declare(graph, stacked)
                written = True
    return written


def _declare(graph: onnx.GraphProto, info: onnx.ValueInfoProto) -> None:
    for found in (*graph.value_info, *graph.output):
        if found.name == info.name:
            found.CopyFrom(info)
            return
    graph.value_info.append(info)


def _static_shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def value_of(tensor: TensorProto) -> Value:
    """Shape and element size of a weight."""
    return Value(tuple(tensor.dims), _bytes_per_element(tensor.data_type))


def _bytes_per_element(data_type: int) -> int:
    if data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 4
    return min(4, element_bytes(data_type))
