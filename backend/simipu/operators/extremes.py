"""Guards of operators that find an extreme: a NaN among the values is never lost.

ONNX Runtime's kernels compare with `>` or use the processor's maximum, so that their result depends
on where the NaN is, and on the width of vectors. numpy and PyTorch propagate a NaN: an extreme of
values with a NaN is NaN, and the place of the extreme is that of the first NaN.

What ONNX Runtime computes is kept if a sum of all values is a number, which costs one more pass.
Else a branch computes the extreme again, from the flags of NaN, 0 or 1:

    flags     c = is NaN
    value     y + sqrt(-max(c))           -0 adds nothing, also to -0; the root of -1 is NaN
    place     max(c) argmax(c) + (1 - max(c)) place

Its pools also begin with the lowest number, which they return for a window of -inf. So they are
computed again wherever the sum is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import Results, Site, Tape, attribute
from onnxgraph.opsets import IS_NAN_EXISTS, SOFTMAX_HAS_ONE_AXIS

from simipu.operators.entry import Body, GraphContext

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
"""Element types of the computed graph that have a NaN."""
_NARROW = TensorProto.FLOAT8E4M3FN
"""First of the element types of 8 bits and less, some of which have a NaN."""
_SCATTERED = 2
"""Input of a scatter that is written."""
_MIN_ROW = 32
"""Least size of the last axis along which ONNX Runtime adds up faster than over everything at once,
and on several threads."""

_Careful = Callable[[Tape, onnx.NodeProto, GraphContext], Sequence[str]]
"""Function that writes the branch for NaN on a tape, and returns the results of a node there. The
results that ONNX Runtime computes are the outputs of the node that it gets."""


def reduction(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Keep a NaN in ReduceMax and ReduceMin."""
    return _guarded(node, around, _reduce)


def place(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return the place of the first or last NaN in ArgMax and ArgMin."""
    return _guarded(node, around, _find_place)


def hardmax(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Take the first NaN as the largest in Hardmax."""
    return _guarded(node, around, _mark) if node.input[0] in around.ranks else None


def pool(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Keep a NaN of each window in MaxPool and GlobalMaxPool."""
    return _guarded(node, around, _pool)


def scatter(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Keep a NaN in scatters whose reduction is an extreme."""
    is_extreme = attribute(node, "reduction", b"none") in (b"max", b"min")
    return _guarded(node, around, _scatter) if is_extreme else None


def _guarded(node: onnx.NodeProto, around: GraphContext, careful: _Careful) -> Body | None:
    """Return the body of a node whose values may be NaN."""
    source = node.input[0]
    if around.types.get(source) not in _FLOATS or _is_number(source, around):
        return None

    def compute(op: Tape, site: Site[GraphContext]) -> Results:
        node, around = site.node, site.facts
        results = op.copy(node)
        usual = op.nodes[-1]
        usual.name = f"{results[0]}/{node.op_type}"
        total = _add_up(op, node, around)
        if _is_pool(node):
            total = op.Sub(total, total)  # NaN of infinities
        flag = _find_nan(op, total, around.opset, _kind(node, around))
        then, otherwise = (
            Tape(f"{node.output[0]}/{branch}", around.opset) for branch in ("nan", "number")
        )
        careful_results = careful(then, usual, around)
        identities = [otherwise.Identity(name) for name in filter(None, results)]
        branches = {
            "then_branch": _make_branch(then, careful_results),
            "else_branch": _make_branch(otherwise, identities),
        }
        chosen = iter(op.add_all(len(identities), "If", flag, **branches))
        return [next(chosen) if result else None for result in results]

    return compute


def _is_pool(node: onnx.NodeProto) -> bool:
    return node.op_type.endswith("Pool")


def _is_number(source: str, around: GraphContext) -> bool:
    """Return whether a tensor has no NaN, whatever the inputs: it is cast from another type."""
    maker = around.makers.get(source)
    if maker is None or maker.op_type != "Cast":
        return False
    kind = around.types.get(maker.input[0], TensorProto.FLOAT)
    return kind not in (*_FLOATS, TensorProto.FLOAT16, TensorProto.BFLOAT16) and kind < _NARROW


def _make_branch(op: Tape, results: Sequence[str]) -> onnx.GraphProto:
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    return helper.make_graph(op.nodes, op.prefix, [], outputs)


def _copy(node: onnx.NodeProto, inputs: Sequence[str], op_type: str = "") -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.op_type = op_type or node.op_type
    copied.input[:] = inputs
    return copied


def _add_like(op: Tape, node: onnx.NodeProto, *inputs: str, op_type: str = "") -> list[str]:
    """Add a copy of a node with other inputs, and return the names of its results."""
    copied = _copy(node, [*inputs, *node.input[len(inputs) :]], op_type)
    base = op.new_name()
    copied.name = f"{base}/{copied.op_type}"
    copied.output[:] = [name and f"{base}/{at}" for at, name in enumerate(node.output)]
    op.nodes.append(copied)
    return list(copied.output)


def _add_up(op: Tape, node: onnx.NodeProto, around: GraphContext) -> str:
    """Add the sum of all values, which is NaN if one of them is."""
    parts = [node.input[0]]
    if node.op_type.startswith("Scatter"):
        parts.append(node.input[_SCATTERED])
    sums = []
    for part in parts:
        if _is_pool(node) and around.types[part] == TensorProto.FLOAT:
            part = op.add("GlobalAveragePool", part)  # in the layout of convolutions, too
        elif _row_size(part, around) >= _MIN_ROW:
            part = op.ReduceSum(part, axes=[-1])
        sums.append(op.add("ReduceSum", part, keepdims=0))
    return sums[0] if len(sums) == 1 else op.add("Add", *sums)


def _row_size(name: str, around: GraphContext) -> int:
    """Return the size of the last axis of a tensor; 0 if it is unknown."""
    shape = around.shapes.get(name)
    return (shape[-1] or 0) if shape else 0


def _find_nan(op: Tape, source: str, opset: int, kind: int) -> str:
    """Add the truths that say where a tensor, of the type `kind`, is NaN."""
    if opset >= IS_NAN_EXISTS:
        return op.add("IsNaN", source)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    is_less = op.add("Less", source, op.constant(np.inf, dtype))
    is_greater = op.add("Greater", source, op.constant(-np.inf, dtype))
    return op.add("Not", op.add("Or", is_less, is_greater))


def _flag(op: Tape, source: str, around: GraphContext, kind: int) -> str:
    """Add 1 where a tensor is NaN, else 0."""
    return op.add("Cast", _find_nan(op, source, around.opset, kind), to=kind)


def _kind(node: onnx.NodeProto, around: GraphContext) -> int:
    return around.types[node.input[0]]


def _spoil(op: Tape, value: str, is_nan: str) -> str:
    """Add a value that is NaN where a flag is 1."""
    return op.add("Add", value, op.add("Sqrt", op.add("Neg", is_nan)))


def _choose(op: Tape, is_nan: str, one: str, other: str, kind: int) -> str:
    """Add `one` where a flag is 1, else `other`, of numbers of the type `kind`."""
    chosen = op.add("Cast", is_nan, to=kind)
    unit = op.constant(1, helper.tensor_dtype_to_np_dtype(kind))
    others = op.add("Mul", op.add("Sub", unit, chosen), other)
    return op.add("Add", op.add("Mul", chosen, one), others)


def _reduce(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(op, node.input[0], around, _kind(node, around))
    (is_nan,) = _add_like(op, node, flags, op_type="ReduceMax")
    return [_spoil(op, node.output[0], is_nan)]


def _find_place(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(op, node.input[0], around, _kind(node, around))
    is_nan = op.ReduceMax(flags, axes=[attribute(node, "axis", 0)])
    (first,) = _add_like(op, node, flags, op_type="ArgMax")
    is_nan = op.add("Reshape", is_nan, op.add("Shape", first))  # without the axis, maybe
    return [_choose(op, is_nan, first, node.output[0], TensorProto.INT64)]


def _mark(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    kind, rank = _kind(node, around), around.ranks[node.input[0]]
    flags = _flag(op, node.input[0], around, kind)
    is_late = around.opset >= SOFTMAX_HAS_ONE_AXIS
    axis = attribute(node, "axis", -1 if is_late else 1) % max(rank, 1)
    axes = [axis] if is_late else range(axis, rank)
    is_nan = op.ReduceMax(flags, axes=list(axes))
    (marked,) = _add_like(op, node, flags)
    return [_choose(op, is_nan, marked, node.output[0], kind)]


def _pool(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(op, node.input[0], around, _kind(node, around))
    is_nan, *places = _add_like(op, node, flags)
    lowest = op.constant(-np.inf, helper.tensor_dtype_to_np_dtype(_kind(node, around)))
    is_above = op.add("Greater", node.input[0], lowest)
    (has_more, *_) = _add_like(op, node, op.add("Cast", is_above, to=_kind(node, around)))
    value = op.add("Add", node.output[0], op.add("Log", has_more))  # the logarithm of 0
    results = [_spoil(op, value, is_nan)]
    for first, usual in zip(places, node.output[1:], strict=True):
        if first:
            results.append(_choose(op, is_nan, first, usual, TensorProto.INT64))
    return results


def _scatter(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    kind = _kind(node, around)
    flags, updated = (
        _flag(op, name, around, kind) for name in (node.input[0], node.input[_SCATTERED])
    )
    copied = _copy(node, node.input)
    next(entry for entry in copied.attribute if entry.name == "reduction").s = b"max"
    (is_nan,) = _add_like(op, copied, flags, node.input[1], updated)
    return [_spoil(op, node.output[0], is_nan)]
