"""Quantized numbers on OpenVINO, which computes them in float.

A sum of products of codes is exact in float below 2^24, that is of at most 258 products. Longer
sums become sums of several products, which it adds in 32 bits:

    a b  =  a[:, :258] b[:258, :]  +  a[:, 258:516] b[258:516, :]  +  ...

It rounds x / scale + zero point, half to even, where the standard rounds x / scale. So with an odd
zero point halves go to the other neighbour. Here the quotient is rounded first:

    QuantizeLinear(x, scale, zero)  =  QuantizeLinear(round(x / scale) * scale, scale, zero)

The other operators that quantize become products, sums and the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    ByOperator,
    Tape,
    attribute,
    describe_node,
    find_opset,
    iter_graphs,
    replace_nodes,
)
from onnxgraph.opsets import ROUND_EXISTS

from simipu.errors import AcceleratorError

MAX_TERMS = 258
"""Largest number of products of two codes, 255 * 255 each, whose sum is below 2^24."""
_MATRIX_AXES = 2


@dataclass(frozen=True, slots=True)
class _Facts:
    """Element types and shapes of a graph's tensors; None for an unknown size."""

    types: Mapping[str, int]
    shapes: Mapping[str, tuple[int | None, ...]]

    def shape_of(self, node: onnx.NodeProto, name: str) -> tuple[int | None, ...]:
        """Return the shape of an input of a node. Raises AcceleratorError if it is unknown."""
        if name not in self.shapes:
            raise _refuse(node, f"the input {name!r} of unknown rank")
        return self.shapes[name]

    def is_scalar(self, node: onnx.NodeProto, name: str) -> bool:
        """Return whether an input of a node has one element."""
        return prod(size or 0 for size in self.shape_of(node, name)) == 1


_REWRITES = ByOperator[Callable[[Tape, onnx.NodeProto, _Facts], None]]()
"""Operators with what rewrites them."""


def quantize_exactly(model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Change `model`, in place, so that OpenVINO computes its quantized numbers as the standard
    defines them, and return whether anything was changed. `inferred` is the same model with its
    types and shapes. Raises AcceleratorError for a node for which that is not possible."""
    facts, opset, is_changed = _collect(inferred), find_opset(model, 1), False
    for graph in iter_graphs(model.graph):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            rewrite = None if node.domain else _REWRITES.get(node.op_type)
            op = Tape(f"{node.output[0]}/quantized") if rewrite else Tape("")
            if rewrite is not None:
                rewrite(op, node, facts)
            if op.nodes and opset < ROUND_EXISTS:
                raise AcceleratorError(
                    f"{describe_node(node)} is not exact in opset {opset}; remove the accelerator, "
                    f"or convert the model to opset {ROUND_EXISTS} or later"
                )
            nodes += op.nodes or [node]
            is_changed |= bool(op.nodes)
        if is_changed:
            replace_nodes(graph, nodes)
    return is_changed


def _collect(inferred: onnx.ModelProto) -> _Facts:
    types, shapes = dict[str, int](), dict[str, tuple[int | None, ...]]()
    for graph in iter_graphs(inferred.graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            tensor = info.type.tensor_type
            types[info.name] = tensor.elem_type
            if tensor.HasField("shape"):
                shapes[info.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
                )
        for constant in graph.initializer:
            types[constant.name], shapes[constant.name] = constant.data_type, tuple(constant.dims)
    return _Facts(types, shapes)


@_REWRITES.register("QuantizeLinear")
def _quantize(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    """Round x / scale before QuantizeLinear."""
    source, scale = node.input[:2]
    kind = facts.types.get(source)
    is_float = kind in (TensorProto.FLOAT, TensorProto.FLOAT16)
    if not is_float or facts.types.get(scale) != kind or attribute(node, "block_size", 0):
        return
    along = scale
    if not facts.is_scalar(node, scale):
        rank = len(facts.shape_of(node, source))
        along = _place(op, scale, rank, attribute(node, "axis", 1))
    rounded = op.add("Round", op.add("Div", source, along))
    quantized = _copy(node)
    quantized.input[0] = op.add("Mul", rounded, along)
    op.nodes.append(quantized)


@_REWRITES.register("DynamicQuantizeLinear")
def _quantize_dynamically(op: Tape, node: onnx.NodeProto, _facts: _Facts) -> None:
    """Compute the codes of DynamicQuantizeLinear from its scale and zero point."""
    codes, scale, zero = node.output
    ranged = _copy(node)
    ranged.output[0] = f"{op.prefix}/codes"
    op.nodes.append(ranged)
    rounded = op.add("Round", op.add("Div", node.input[0], scale))
    _finish(op, codes, rounded, zero, TensorProto.UINT8)


def _finish(op: Tape, result: str, rounded: str, zero: str, kind: int) -> None:
    """Add the codes of whole numbers in float: with the zero point, within the type's range."""
    ends = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    total = op.add("Add", rounded, op.add("Cast", zero, to=TensorProto.FLOAT))
    limits = op.constant(ends.min), op.constant(ends.max)
    op.add_as(result, "Cast", op.add("Clip", total, *limits), to=kind)


@_REWRITES.register("QLinearMatMul")
def _scale_matmul(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    """Compute QLinearMatMul as MatMulInteger, and quantize the sums."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    if not facts.is_scalar(node, a_scale) or not facts.is_scalar(node, y_scale):
        raise _refuse(node, "scales by row")
    total = helper.make_node("MatMulInteger", [a, b, a_zero, b_zero], [f"{op.prefix}/sums"])
    _add_split(op, total, facts)
    _requantize(op, node, total.output[0], (a_scale, b_scale, y_scale, y_zero), facts)


@_REWRITES.register("QLinearConv")
def _scale_convolution(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    """Compute QLinearConv as ConvInteger, add the bias, and quantize the sums."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.input
    total = helper.make_node("ConvInteger", [x, w, x_zero, w_zero], [f"{op.prefix}/sums"])
    total.attribute.extend(node.attribute)
    _add_split(op, total, facts)
    sums, rank = total.output[0], len(facts.shape_of(node, x))
    if any(bias):
        sums = op.add("Add", sums, _place(op, bias[0], rank, 1))
    if not facts.is_scalar(node, w_scale):
        w_scale = _place(op, w_scale, rank, 1)
    _requantize(op, node, sums, (x_scale, w_scale, y_scale, y_zero), facts)


def _requantize(
    op: Tape, node: onnx.NodeProto, sums: str, names: Sequence[str], facts: _Facts
) -> None:
    """Add the codes of sums: their product with one scale, as ONNX Runtime has it, is rounded."""
    left, right, scale, zero = names
    factor = op.add("Div", op.add("Mul", left, right), scale)
    values = op.add("Mul", op.add("Cast", sums, to=TensorProto.FLOAT), factor)
    kind = facts.types.get(zero, TensorProto.UINT8)
    _finish(op, node.output[0], op.add("Round", values), zero, kind)


def _add_split(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    """Add a product of whole numbers, split if its sums are long."""
    before = len(op.nodes)
    _REWRITES[node.op_type](op, node, facts)
    if len(op.nodes) == before:
        op.nodes.append(node)


@_REWRITES.register("MatMulInteger")
def _split_matmul(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    left, right = (facts.shape_of(node, name) for name in node.input[:2])
    axis = -min(len(right), _MATRIX_AXES)
    terms = right[axis] if left[-1] is None else left[-1]
    if terms is None:
        raise _refuse(node, "sums of unknown length")
    if terms > MAX_TERMS:
        _split(op, node, terms, MAX_TERMS, (-1, axis))


@_REWRITES.register("ConvInteger")
def _split_convolution(op: Tape, node: onnx.NodeProto, facts: _Facts) -> None:
    filters = facts.shape_of(node, node.input[1])
    if None in filters:
        raise _refuse(node, "sums of unknown length")
    channels, *taps = (size or 0 for size in filters[1:])
    if channels * prod(taps) <= MAX_TERMS:
        return
    if attribute(node, "group", 1) != 1 or prod(taps) > MAX_TERMS:
        raise _refuse(node, f"sums of {channels * prod(taps)} products")
    _split(op, node, channels, MAX_TERMS // prod(taps), (1, 1))


def _split(op: Tape, node: onnx.NodeProto, size: int, block: int, axes: tuple[int, int]) -> None:
    """Add the sum of products of slices of both operands."""
    sums: list[str] = []
    for start in range(0, size, block):
        part = _copy(node)
        for place, axis in enumerate(axes):
            ends = ([start], [min(start + block, size)], [axis])
            limits = [op.ints(values) for values in ends]
            part.input[place] = op.add("Slice", node.input[place], *limits)
        part.output[0] = op.new_name()
        part.name = f"{part.output[0]}/{node.op_type}"
        op.nodes.append(part)
        sums.append(part.output[0])
    total = sums[0]
    for other in sums[1:-1]:
        total = op.add("Add", total, other)
    op.add_as(node.output[0], "Add", total, sums[-1])


def _place(op: Tape, name: str, rank: int, axis: int) -> str:
    """Add the shape of a vector along an axis of a tensor."""
    sizes = [1] * rank
    sizes[axis] = -1
    return op.add("Reshape", name, op.ints(sizes))


def _refuse(node: onnx.NodeProto, what: str) -> AcceleratorError:
    return AcceleratorError(
        f"{describe_node(node)} has {what}, which OpenVINO does not compute exactly; remove the "
        "accelerator"
    )


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
