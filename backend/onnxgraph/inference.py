"""Shapes and element sizes of a graph's tensors, by shape inference.

ONNX infers the standard's operators. For operators of other domains, standard ones stand in, or
users' functions give the shapes.
"""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from onnxgraph.edit import replace_nodes
from onnxgraph.nodes import (
    FLOAT_TYPES,
    STANDARD_DOMAINS,
    element_bytes,
    find_own_names,
    iter_bodies,
    iter_nodes,
)
from onnxgraph.tape import Expansion, Results, Site, Tape, Value, expand

_FLOATS = (*FLOAT_TYPES, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ)
_LARGE = 256
"""Number of elements above which a float weight is large. No shape depends on its values: the
tensors that shapes are made of are smaller."""
_MAX_ROUNDS = 64
"""Maximum rounds of inference, for loops that follow one another; a known model has 2."""
MAX_TRIPS = 2**31
"""Maximum trips of a Loop; a larger number means that only its condition ends the loop."""
_MAX_REMEMBERED = 2
"""Maximum number of graphs whose shapes are cached; a caller that repeats a query does so soon."""

ShapeFunction = Callable[[onnx.ModelProto, onnx.NodeProto], tuple[onnx.ModelProto, bool]]
"""User's function for an operator: it returns the model with the shapes that the node makes, and if
they are known."""

_STAND_INS: dict[tuple[str, str], Expansion] = {}
_FUNCTIONS: dict[str, ShapeFunction] = {}
_DOMAIN_FUNCTIONS: dict[str, ShapeFunction] = {}
"""Functions for all operators of a domain that have no function of their own."""
_MARK = "onnxgraph.stand-in:"
"""Prefix in the doc_string of stand-ins; the number of the replaced node follows it."""
_Inference = tuple[onnx.shape_inference.InferenceError | None, onnx.ModelProto]
"""Error of a graph, if any, and the model with the shapes that are known regardless."""
_remembered: ContextVar[dict[bytes, _Inference] | None] = ContextVar("_remembered", default=None)


def register_stand_in(domain: str, *op_types: str) -> Callable[[Expansion], Expansion]:
    """Return a decorator that registers stand-ins for operators of a domain other than the
    standard's.

    During shape inference, the expansion replaces the operator: nodes of the standard, in a form
    that all opsets have, whose results have the same types and shapes.
    """

    def add(make: Expansion) -> Expansion:
        assert domain not in STANDARD_DOMAINS, "ONNX infers the shapes of its own operators"
        _STAND_INS.update(((domain, op_type), make) for op_type in op_types)
        return make

    return add


def _stand_in_for_eye(op: Tape, site: Site[Any]) -> Results:
    """Return a Cast, whose result has the same type and shape.

    ONNX's inference of EyeLike ends the process if nothing is known of its input.
    """
    to = site.get("dtype", 0)
    return op.Cast(site.x, to=to) if to else op.Identity(site.x)


_STAND_INS.update(((domain, "EyeLike"), _stand_in_for_eye) for domain in STANDARD_DOMAINS)


def register_shape_function(function: ShapeFunction, *op_types: str) -> None:
    """Register a user's function for the results of those operators, in any domain.

    It is called if the shapes are not known otherwise.
    """
    _FUNCTIONS.update(dict.fromkeys(op_types, function))


def register_domain_shapes(domain: str, function: ShapeFunction) -> None:
    """Register `function` for the results of nodes of `domain` whose shapes are not known
    otherwise."""
    assert domain not in STANDARD_DOMAINS, "ONNX infers the shapes of its own operators"
    _DOMAIN_FUNCTIONS[domain] = function


def _find_function(node: onnx.NodeProto) -> ShapeFunction | None:
    return _FUNCTIONS.get(node.op_type) or _DOMAIN_FUNCTIONS.get(node.domain)


def has_shape_function(op_type: str) -> bool:
    """Return whether a user has registered a shape function for that operator."""
    return op_type in _FUNCTIONS


def like_first_input(op: Tape, site: Site[Any]) -> Value:
    """Write the stand-in of operators whose first result has the type and shape of their first
    operand."""
    return op.Identity(site.x)


@contextmanager
def remember_inferences() -> Iterator[None]:
    """Cache inferred shapes during the with statement, so that a repeated query is not inferred
    again.

    The key is the whole graph, so code that changes a graph need not invalidate anything. Outside,
    nothing is cached: a server loads a graph once.
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
class TensorSize:
    """Compiled shape of a tensor and the bytes of one element."""

    shape: tuple[int, ...]
    bytes_per_element: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes of the tensor."""
        return self.size * self.bytes_per_element


def infer_shapes(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """Return the model with inferred types and shapes, and without the data of large float weights.

    No shape depends on those, and serializing gigabytes to infer shapes is a waste. The state of a
    Loop keeps its shape, as it must on the chip; ONNX's inference does not assume that. Raises
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
        if len(remembered) > _MAX_REMEMBERED:
            del remembered[next(iter(remembered))]
    fault, inferred = remembered[key]
    if strict and fault is not None:
        raise fault
    own = onnx.ModelProto()
    own.CopyFrom(inferred)
    return own


def _infer_for_both(model: onnx.ModelProto) -> _Inference:
    """Infer strictly, and without strict mode after an error; for a valid graph both give the same
    result."""
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


def _lend_constants(
    graph: onnx.GraphProto, outer: ChainMap[str, TensorProto], lent: list[int]
) -> None:
    """Copy the small constants that bodies read from outer graphs into the bodies, in place.

    ONNX's inference sees only there the shapes that they make. The number copied into each body is
    appended to the list, in order.
    """
    small = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type not in _FLOATS and math.prod(tensor.dims) <= _LARGE
    }
    seen = outer.new_child(small)
    for node in graph.node:
        for body in iter_bodies(node):
            own = find_own_names(body)
            read = dict.fromkeys(
                name for inner in body.node for name in inner.input if name not in own
            )
            constants = [seen[name] for name in read if name in seen]
            body.initializer.extend(constants)
            lent.append(len(constants))
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
    loops = sum(node.op_type == "Loop" for node in iter_nodes(model.graph))
    num_functions = sum(_find_function(node) is not None for node in model.graph.node)
    # Each Loop takes two rounds: into its body, and out of it.
    for _ in range(min(2 * loops, _MAX_ROUNDS) + num_functions):
        declared = _declare_loops(inferred.graph, ChainMap(), ChainMap())
        if not (declared | (num_functions > 0 and _call_shape_functions(inferred))):
            break
        inferred = onnx.shape_inference.infer_shapes(inferred, strict_mode=strict, data_prop=True)
    return inferred


def _put_stand_ins(graph: onnx.GraphProto, stood_for: list[onnx.NodeProto]) -> None:
    """Replace nodes by their stand-ins in place, in bodies too; append the replaced nodes to the
    list."""
    nodes: list[onnx.NodeProto] = []
    has_stand_ins = False
    for node in graph.node:
        for body in iter_bodies(node):
            _put_stand_ins(body, stood_for)
        make = _STAND_INS.get((node.domain, node.op_type))
        if make is None:
            nodes.append(node)
            continue
        has_stand_ins = True
        expanded = expand(node, make, Tape(f"{node.output[0]}/stand-in"))
        for stand_in in expanded:
            stand_in.doc_string = f"{_MARK}{len(stood_for)}"
        nodes += expanded
        own = onnx.NodeProto()
        own.CopyFrom(node)
        stood_for.append(own)
    if has_stand_ins:
        replace_nodes(graph, nodes)


def _take_stand_ins_away(graph: onnx.GraphProto, stood_for: Sequence[onnx.NodeProto]) -> None:
    """Restore the replaced nodes, and remove the intermediate results of stand-ins."""
    if not stood_for:
        return
    nodes: dict[int, onnx.NodeProto] = {}
    inner: set[str] = set()
    has_stand_ins = False
    for i, node in enumerate(graph.node):
        for body in iter_bodies(node):
            _take_stand_ins_away(body, stood_for)
        _, mark, number = node.doc_string.partition(_MARK)
        if mark:
            has_stand_ins = True
            own = stood_for[int(number)]
            inner |= set(node.output) - set(own.output)
            nodes.setdefault(-1 - int(number), own)
        else:
            nodes[i] = node
    if has_stand_ins:
        replace_nodes(graph, nodes.values())
        outer_values = [value for value in graph.value_info if value.name not in inner]
        if len(outer_values) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(outer_values)


def _call_shape_functions(model: onnx.ModelProto) -> bool:
    """Call users' functions to write, in place, the shapes of their nodes; return whether anything
    was written."""
    is_changed = False
    for node in list(model.graph.node):
        function = _find_function(node)
        if function is None or _find_known(model.graph).keys() >= set(filter(None, node.output)):
            continue
        completed, is_known = function(model, node)
        if is_known and completed is not model:
            model.CopyFrom(completed)
        is_changed |= is_known
    return is_changed


def _find_known(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the type of each tensor whose static shape is known."""
    values = {
        info.name: info
        for info in (*graph.value_info, *graph.output, *graph.input)
        if _static_shape(info) is not None
    }
    for tensor in graph.initializer:
        values.setdefault(
            tensor.name,
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims),
        )
    return values


def collect_values(model: onnx.ModelProto) -> dict[str, TensorSize]:
    """Return shape and element size of every tensor of the main graph, as far as they can be
    inferred."""
    return graph_values(infer_shapes(model).graph)


def iter_shapes(graph: onnx.GraphProto) -> Iterator[ChainMap[str, tuple[int, ...]]]:
    """Yield the static shapes visible in a graph with known types, and in each body inside it.

    The order is that of `iter_graphs`.
    """
    yield from _iter_shapes(graph, ChainMap())


def _iter_shapes(
    graph: onnx.GraphProto, outer: ChainMap[str, tuple[int, ...]]
) -> Iterator[ChainMap[str, tuple[int, ...]]]:
    shapes = outer.new_child({name: value.shape for name, value in graph_values(graph).items()})
    yield shapes
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_shapes(body, shapes)


def graph_values(graph: onnx.GraphProto) -> dict[str, TensorSize]:
    """Return shape and element size of every tensor of a graph whose static shape is known.

    The graphs inside its nodes are not included.
    """
    values = {tensor.name: value_of(tensor) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        shape = _static_shape(info)
        if shape is not None:
            values.setdefault(
                info.name, TensorSize(shape, _bytes_per_element(info.type.tensor_type.elem_type))
            )
    return values


def count_trips(limit: TensorProto | None) -> int | None:
    """Return the maximum number of trips of a Loop, from the constant that is its first input, if
    it is one.

    Exporters write the largest integer for no limit.
    """
    return None if limit is None else max(0, int(onnx.numpy_helper.to_array(limit).ravel()[0]))


def _declare_loops(
    graph: onnx.GraphProto,
    outer: ChainMap[str, onnx.ValueInfoProto],
    constants: ChainMap[str, TensorProto],
) -> bool:
    """Write the initial shapes of each Loop into its body, in place, and its final shapes after it.

    This is done only if they are known and the body keeps them, in bodies too. Return whether
    anything was written.
    """
    values = outer.new_child(_find_known(graph))
    seen = constants.new_child(dict(_iter_constants(graph)))
    is_changed = False
    for node in graph.node:
        if node.op_type == "Loop" and not values.keys() >= set(node.output):
            is_changed |= _declare_loop(graph, node, values, seen)
        for body in iter_bodies(node):
            is_changed |= _declare_loops(body, values, seen)
    return is_changed


def _declare_loop(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    known: Mapping[str, onnx.ValueInfoProto],
    constants: Mapping[str, TensorProto],
) -> bool:
    """Write the shapes of one Loop; return whether anything was written."""
    body = node.attribute[0].g
    is_changed = False
    for inner, carried in zip(body.input[2:], node.input[2:], strict=True):
        if carried in known and _static_shape(inner) is None:
            inner.type.CopyFrom(known[carried].type)
            is_changed = True
    states = len(body.input) - 2
    for name, inner, result in zip(node.output, body.input[2:], body.output[1:], strict=False):
        shape = _static_shape(inner)
        if shape is not None and shape == _static_shape(result) and name not in known:
            _declare(graph, onnx.ValueInfoProto(name=name, type=inner.type))
            is_changed = True
    for name, result in zip(node.output[states:], body.output[1 + states :], strict=True):
        shape, trips = _static_shape(result), count_trips(constants.get(node.input[0]))
        if shape is not None and trips is not None and trips <= MAX_TRIPS and name not in known:
            stacked = onnx.helper.make_tensor_value_info(
                name, result.type.tensor_type.elem_type, (trips, *shape)
            )
            _declare(graph, stacked)
            is_changed = True
    return is_changed


def _iter_constants(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the constants of a graph without its bodies: initializers and Constants, by name."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
            yield from (
                (node.output[0], entry.t) for entry in node.attribute if entry.name == "value"
            )


def _declare(graph: onnx.GraphProto, info: onnx.ValueInfoProto) -> None:
    for declared in (*graph.value_info, *graph.output):
        if declared.name == info.name:
            declared.CopyFrom(info)
            return
    graph.value_info.append(info)


def _static_shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(
        dim.HasField("dim_value") for dim in tensor.shape.dim
    ):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def value_of(tensor: TensorProto) -> TensorSize:
    """Return shape and element size of a weight."""
    return TensorSize(tuple(tensor.dims), _bytes_per_element(tensor.data_type))


def _bytes_per_element(data_type: int) -> int:
    if data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 4
    return min(4, element_bytes(data_type))
