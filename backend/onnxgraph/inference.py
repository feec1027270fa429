"""Shapes and element sizes of a graph's tensors, by shape inference: ONNX's for the standard's operators, and
that of registered rules for those of other domains."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import onnx
from onnx import TensorProto, TypeProto

from onnxgraph.nodes import STANDARD_DOMAINS
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

ShapeRule = Callable[[onnx.NodeProto, Sequence[TypeProto]], Sequence[TypeProto]]
"""The types, shapes included, of what a node makes, of those of what it takes (of an input left out: an empty
one)."""

_RULES: dict[tuple[str, str], ShapeRule] = {}
_Inference = tuple[onnx.shape_inference.InferenceError | None, onnx.ModelProto]
"""What is wrong with a graph, and what can be said of it all the same."""
_remembered: ContextVar[dict[bytes, _Inference] | None] = ContextVar("_remembered", default=None)


def register_shapes(domain: str, *op_types: str) -> Callable[[ShapeRule], ShapeRule]:
    """A decorator: the function says what operators of another domain than the standard's make."""

    def add(rule: ShapeRule) -> ShapeRule:
        assert domain not in STANDARD_DOMAINS, "ONNX infers the shapes of its own operators"
        _RULES.update(((domain, op_type), rule) for op_type in op_types)
        return rule

    return add


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
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)
    loops = sum(node.op_type == "Loop" for node in model.graph.node)
    others = sum((node.domain, node.op_type) in _RULES for node in model.graph.node)
    for _ in range(min(2 * loops, _MOST_ROUNDS) + others):  # into a Loop's body, and out of it
        if not (_declare_loops(inferred) | declare_others(inferred.graph)):
            break
        inferred = onnx.shape_inference.infer_shapes(inferred, strict_mode=strict, data_prop=True)
    return inferred


def declare_others(graph: onnx.GraphProto) -> bool:
    """Write into the graph, in place, what registered rules say that its nodes make, where all that they take
    is known, and what they make is not. Whether anything was written."""
    if not any((node.domain, node.op_type) in _RULES for node in graph.node):
        return False
    known = _find_known(graph)
    written = False
    for node in graph.node:
        rule = _RULES.get((node.domain, node.op_type))
        if rule is None or known.keys() >= set(filter(None, node.output)):
            continue
        if known.keys() >= set(filter(None, node.input)):
            taken = [known[name].type if name else TypeProto() for name in node.input]
            for name, made in zip(node.output, rule(node, taken), strict=True):
                known[name] = onnx.ValueInfoProto(name=name, type=made)
                _declare(graph, known[name])
            written = True
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
