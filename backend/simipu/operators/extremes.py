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
from onnxgraph import Chain, attribute

from simipu.operators.entry import Body, GraphContext

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
"""Element types of the computed graph that have a NaN."""
_AXES_OF_SUM_AS_INPUT, _AXES_OF_EXTREME_AS_INPUT = 13, 18
"""First opsets in which ReduceSum, and ReduceMax and ReduceMin, take their axes as an input."""
_NARROW = TensorProto.FLOAT8E4M3FN
"""First of the element types of 8 bits and less, some of which have a NaN."""
_IS_NAN_OPSET = 9
"""First opset with IsNaN."""
_ONE_AXIS_OPSET = 13
"""First opset in which Hardmax is along one axis; before, it is along it and all behind it."""
_SCATTERED = 2
"""Input of a scatter that is written."""
_MIN_ROW = 32
"""Least size of the last axis along which ONNX Runtime adds up faster than over everything at once,
and on several threads."""

_Careful = Callable[[Chain, onnx.NodeProto, GraphContext], Sequence[str]]
"""Function that adds to the branch for NaN what computes the results of a node. Its first result is
already there, under the name of `node.output`."""


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

    def compute(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
        usual, renamed = _copy(node, node.input), list[str]()
        for result in filter(None, node.output):
            renamed.append(chain.new_name() + f"/{len(renamed)}")
            usual.output[list(node.output).index(result)] = renamed[-1]
        usual.name = f"{renamed[0]}/{node.op_type}"
        chain.nodes.append(usual)
        total = _add_up(chain, node, around)
        if _is_pool(node):
            total = chain.add("Sub", total, total)  # NaN of infinities
        flag = _find_nan(chain, total, around.opset, _kind(node, around))
        then, otherwise = (Chain(f"{node.output[0]}/{branch}") for branch in ("nan", "number"))
        results = careful(then, usual, around)
        kept = [otherwise.add("Identity", name) for name in renamed]
        chain.nodes.append(
            helper.make_node(
                "If",
                [flag],
                [name for name in node.output if name],
                then_branch=_make_branch(then, results),
                else_branch=_make_branch(otherwise, kept),
            )
        )

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


def _make_branch(chain: Chain, results: Sequence[str]) -> onnx.GraphProto:
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    return helper.make_graph(chain.nodes, chain.prefix, [], outputs)


def _copy(node: onnx.NodeProto, inputs: Sequence[str], op_type: str = "") -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.op_type = op_type or node.op_type
    copied.input[:] = inputs
    return copied


def _add_like(chain: Chain, node: onnx.NodeProto, *inputs: str, op_type: str = "") -> list[str]:
    """Add a copy of a node with other inputs, and return the names of its results."""
    copied = _copy(node, [*inputs, *node.input[len(inputs) :]], op_type)
    base = chain.new_name()
    copied.name = f"{base}/{copied.op_type}"
    copied.output[:] = [name and f"{base}/{at}" for at, name in enumerate(node.output)]
    chain.nodes.append(copied)
    return list(copied.output)


def _add_up(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> str:
    """Add the sum of all values, which is NaN if one of them is."""
    parts = [node.input[0]]
    if node.op_type.startswith("Scatter"):
        parts.append(node.input[_SCATTERED])
    sums = []
    for part in parts:
        if _is_pool(node) and around.types[part] == TensorProto.FLOAT:
            part = chain.add("GlobalAveragePool", part)  # in the layout of convolutions, too
        elif _row_size(part, around) >= _MIN_ROW:
            part = _reduce_along(chain, "ReduceSum", part, [-1], around.opset)
        sums.append(chain.add("ReduceSum", part, keepdims=0))
    return sums[0] if len(sums) == 1 else chain.add("Add", *sums)


def _row_size(name: str, around: GraphContext) -> int:
    """Return the size of the last axis of a tensor; 0 if it is unknown."""
    shape = around.shapes.get(name)
    return (shape[-1] or 0) if shape else 0


def _reduce_along(chain: Chain, op_type: str, source: str, axes: Sequence[int], opset: int) -> str:
    """Add a reduction along `axes` that keeps them."""
    first = _AXES_OF_SUM_AS_INPUT if op_type == "ReduceSum" else _AXES_OF_EXTREME_AS_INPUT
    if opset < first:
        return chain.add(op_type, source, axes=axes)
    return chain.add(op_type, source, chain.shape(axes))


def _find_nan(chain: Chain, source: str, opset: int, kind: int) -> str:
    """Add the truths that say where a tensor, of the type `kind`, is NaN."""
    if opset >= _IS_NAN_OPSET:
        return chain.add("IsNaN", source)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    is_less = chain.add("Less", source, chain.constant(np.inf, dtype))
    is_greater = chain.add("Greater", source, chain.constant(-np.inf, dtype))
    return chain.add("Not", chain.add("Or", is_less, is_greater))


def _flag(chain: Chain, source: str, around: GraphContext, kind: int) -> str:
    """Add 1 where a tensor is NaN, else 0."""
    return chain.add("Cast", _find_nan(chain, source, around.opset, kind), to=kind)


def _kind(node: onnx.NodeProto, around: GraphContext) -> int:
    return around.types[node.input[0]]


def _spoil(chain: Chain, value: str, is_nan: str) -> str:
    """Add a value that is NaN where a flag is 1."""
    return chain.add("Add", value, chain.add("Sqrt", chain.add("Neg", is_nan)))


def _choose(chain: Chain, is_nan: str, one: str, other: str, kind: int) -> str:
    """Add `one` where a flag is 1, else `other`, of numbers of the type `kind`."""
    chosen = chain.add("Cast", is_nan, to=kind)
    unit = chain.constant(1, helper.tensor_dtype_to_np_dtype(kind))
    others = chain.add("Mul", chain.add("Sub", unit, chosen), other)
    return chain.add("Add", chain.add("Mul", chosen, one), others)


def _reduce(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(chain, node.input[0], around, _kind(node, around))
    (is_nan,) = _add_like(chain, node, flags, op_type="ReduceMax")
    return [_spoil(chain, node.output[0], is_nan)]


def _find_place(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(chain, node.input[0], around, _kind(node, around))
    axis, opset = [attribute(node, "axis", 0)], around.opset
    is_nan = _reduce_along(chain, "ReduceMax", flags, axis, opset)
    (first,) = _add_like(chain, node, flags, op_type="ArgMax")
    is_nan = chain.add("Reshape", is_nan, chain.add("Shape", first))  # without the axis, maybe
    return [_choose(chain, is_nan, first, node.output[0], TensorProto.INT64)]


def _mark(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    kind, rank = _kind(node, around), around.ranks[node.input[0]]
    flags = _flag(chain, node.input[0], around, kind)
    is_late = around.opset >= _ONE_AXIS_OPSET
    axis = attribute(node, "axis", -1 if is_late else 1) % max(rank, 1)
    axes = [axis] if is_late else range(axis, rank)
    is_nan = _reduce_along(chain, "ReduceMax", flags, list(axes), around.opset)
    (marked,) = _add_like(chain, node, flags)
    return [_choose(chain, is_nan, marked, node.output[0], kind)]


def _pool(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    flags = _flag(chain, node.input[0], around, _kind(node, around))
    is_nan, *places = _add_like(chain, node, flags)
    lowest = chain.constant(-np.inf, helper.tensor_dtype_to_np_dtype(_kind(node, around)))
    is_above = chain.add("Greater", node.input[0], lowest)
    (has_more, *_) = _add_like(chain, node, chain.add("Cast", is_above, to=_kind(node, around)))
    value = chain.add("Add", node.output[0], chain.add("Log", has_more))  # the logarithm of 0
    results = [_spoil(chain, value, is_nan)]
    for first, usual in zip(places, node.output[1:], strict=True):
        if first:
            results.append(_choose(chain, is_nan, first, usual, TensorProto.INT64))
    return results


def _scatter(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> Sequence[str]:
    kind = _kind(node, around)
    flags, written = (
        _flag(chain, name, around, kind) for name in (node.input[0], node.input[_SCATTERED])
    )
    copied = _copy(node, node.input)
    next(each for each in copied.attribute if each.name == "reduction").s = b"max"
    (is_nan,) = _add_like(chain, copied, flags, node.input[1], written)
    return [_spoil(chain, node.output[0], is_nan)]
