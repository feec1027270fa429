"""Operators that unpack samples of packed transformers and pack them again: Unpack, Repack and
MaskCompress.

Their inputs and outputs follow published scripts (packed_bert_example, packed_deberta_example of
graphcore/PopRT). Samples lie end to end, across the ends of rows, in a tensor [batch, tokens, ...];
lengths are in an int32 tensor [max_valid_num, segments]. Their vertices are not public: the cost is
a lookup of each token in a table of tokens, as in an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import CHIP_DOMAIN, Results, Site, Tape, TensorSize, Value, register_stand_in

from simipu.operators.attributes import read_axis, read_size, read_sizes
from simipu.operators.entry import GraphContext, Operator, Rounding, Shapes
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas.work import Context, Work

_TOKENS, _TOGETHER = 2, "its tokens come from all rows"
"""Number of axes that samples lie along (batch and tokens), and the reason for computing the whole
batch."""


def _spread(op: Tape, node: onnx.NodeProto, tokens: str) -> str:
    """Return the index among the packed tokens for each place of an unpacked sample, [max_valid_num
    * sizes]. It is `tokens`, their number, where there is no token.

    A length above a segment's size moves the following segments by the full length, and the excess
    tokens are ignored. A negative length counts as 0. So no length that a caller gives leads to an
    index outside the tensor.
    """
    # Two samples of one segment of at most 4 tokens, lengths 3 and 2, 6 packed tokens:
    #     packed      0 1 2 | 3 4 | 5        starts 0, 3: the lengths before, added up
    #     unpacked    0 1 2 -   3 4 - -      start + place within the segment; -: 6, `tokens`
    sizes = read_sizes(node, "segment_max_size")
    zero, one = op.constant(0, np.int64), op.constant(1, np.int64)
    lengths = op.add("Cast", node.input[1], to=TensorProto.INT64)
    lengths = op.add("Where", op.add("Less", lengths, zero), zero, lengths)
    flat = op.add("Reshape", lengths, op.ints([-1]))
    ends = op.add("CumSum", flat, zero)
    starts = op.add("Sub", ends, flat)
    firsts, counts = (
        op.add("Reshape", name, op.ints([-1, len(sizes), 1])) for name in (starts, flat)
    )
    places = []
    for number, size in enumerate(sizes):
        inner = op.add("Range", zero, op.constant(size, np.int64), one)
        first, count = (
            op.add("Gather", name, op.constant(number, np.int64), axis=1)
            for name in (firsts, counts)
        )
        place = op.add("Add", first, inner)
        is_inside = op.add("Less", place, tokens)
        is_there = op.add("And", op.add("Less", inner, count), is_inside)
        places.append(op.add("Where", is_there, place, tokens))
    joined = op.add("Concat", *places, axis=1)
    return op.add("Reshape", joined, op.ints([-1]))


def _rest(op: Tape, source: str) -> str:
    """Return the sizes after batch and tokens; there may be none."""
    last = op.constant([np.iinfo(np.int64).max], np.int64)
    return op.add("Slice", op.add("Shape", source), op.ints([_TOKENS]), last)


def _zeros(op: Tape, site: Site[GraphContext], sizes: str) -> str:
    data_type = site.x.element_type or TensorProto.FLOAT
    value = helper.make_tensor("zero", data_type, [1], [0])
    return op.add("ConstantOfShape", sizes, value=value)


def _unpack(op: Tape, site: Site[GraphContext]) -> Results:
    """Add a lookup in the tokens, followed by a zero for places beyond a sample."""
    node = site.node
    rest = _rest(op, node.input[0])
    flat = op.add("Reshape", node.input[0], op.add("Concat", op.ints([-1]), rest, axis=0))
    count = op.add("Gather", op.add("Shape", flat), op.constant(0, np.int64), axis=0)
    padding = _zeros(op, site, op.add("Concat", op.ints([1]), rest, axis=0))
    places = _spread(op, node, count)
    unpacked = op.add("Gather", op.add("Concat", flat, padding, axis=0), places, axis=0)
    size = sum(read_sizes(node, "segment_max_size"))
    sizes = op.add("Concat", op.ints([-1, size]), rest, axis=0)
    return op.Reshape(unpacked, sizes)


def _repack(op: Tape, site: Site[GraphContext]) -> Results:
    """Add nodes that move each token back to its place; tokens of no sample are zero."""
    node = site.node
    # Places without a token have the index batch * tokens: they are written to one more token at
    # the end, which is cut off.
    batch, tokens = read_size(node, "batch_size"), read_size(node, "sequence_length")
    rest, count = _rest(op, node.input[0]), op.constant(batch * tokens, np.int64)
    flat = op.add("Reshape", node.input[0], op.add("Concat", op.ints([-1]), rest, axis=0))
    longer = op.add("Concat", op.ints([batch * tokens + 1]), rest, axis=0)
    empty = _zeros(op, site, longer)
    places = op.add("Reshape", _spread(op, node, count), op.ints([-1, 1]))
    filled = op.add("ScatterND", empty, places, flat)
    zero = op.ints([0])
    filled_rows = op.add("Slice", filled, zero, op.ints([batch * tokens]), zero)
    sizes = op.add("Concat", op.ints([batch, tokens]), rest, axis=0)
    return op.Reshape(filled_rows, sizes)


def _mask_compress(op: Tape, site: Site[GraphContext]) -> Results:
    """Add nodes that move kept elements to the front, in their order, by a table of target indices;
    the rest is zero.

    The index of a kept element is the number of kept elements before it. That of another is behind
    the end, which is cut off.
    """
    node = site.node
    data, mask = node.input[0], op.add("Cast", node.input[1], to=TensorProto.BOOL)
    rank = site.facts.ranks.get(data, 1)
    axis = read_axis(node, "axis", 0, rank)
    order = [axis, *(other_axis for other_axis in range(rank) if other_axis != axis)]
    turned = op.add("Transpose", data, perm=order)
    sizes = op.add("Shape", turned)
    length, rest = (
        op.add("Slice", sizes, op.ints([first]), op.constant([last], np.int64))
        for first, last in ((0, 1), (1, np.iinfo(np.int64).max))
    )
    ones = op.add("Cast", op.add("Reshape", mask, op.ints([-1])), to=TensorProto.INT64)
    before = op.add("CumSum", ones, op.constant(0, np.int64), exclusive=1)
    is_set = op.add("Cast", ones, to=TensorProto.BOOL)
    places = op.add("Where", is_set, before, length)
    longer = op.add("Concat", op.add("Add", length, op.ints([1])), rest, axis=0)
    empty = _zeros(op, site, longer)
    places = op.add("Reshape", places, op.ints([-1, 1]))
    filled = op.add("ScatterND", empty, places, turned)
    front = op.add("Slice", filled, op.ints([0]), length, op.ints([0]))
    back = [order.index(other_axis) for other_axis in range(rank)]
    return op.Transpose(front, perm=back)


def _find_packing_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    """Return what is wrong with an Unpack, whose input must be [batch, tokens, ...], with lengths
    [max_valid_num, segments]."""
    data, lengths = shapes[0], shapes[1]
    count, sizes = read_size(node, "max_valid_num"), read_sizes(node, "segment_max_size")
    if data is not None and len(data) < _TOKENS:
        return f"expected [batch, tokens, ...] as its first input, found {list(data)}"
    alone = (count,) if len(sizes) == 1 else ()
    if lengths is not None and lengths not in ((count, len(sizes)), alone):
        return (
            f"expected lengths [{count}, {len(sizes)}], max_valid_num and the number of segments, "
            f"found {list(lengths)}"
        )
    return ""


def _find_repacking_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    """Return what is wrong with a Repack, whose samples must be [max_valid_num, sizes, ...]."""
    read_size(node, "batch_size"), read_size(node, "sequence_length")
    samples = shapes[0]
    expected = (read_size(node, "max_valid_num"), sum(read_sizes(node, "segment_max_size")))
    if samples is not None and samples[:_TOKENS] != expected:
        return f"expected samples [{expected[0]}, {expected[1]}, ...], found {list(samples)}"
    return _find_packing_fault(node, shapes)


def _find_compress_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    data, mask = shapes[0], shapes[1]
    if data is None or mask is None:
        return ""
    if not data:
        return "expected a tensor with an axis as its first input, found a scalar"
    size = data[read_axis(node, "axis", 0, len(data))]
    return "" if mask == (size,) else f"expected a mask [{size}], found {list(mask)}"


def _look_up(context: Context) -> Work:
    """Return the cost of looking up a row of the chip's memory for each token, among all tokens."""
    data, lengths = context.inputs[0], context.inputs[1]
    if data is None or lengths is None:
        return moves.move(context)
    tokens = max(1, int(np.prod(context.result.shape[:_TOKENS])))
    indices = TensorSize((tokens,), moves.INDEX_BYTES)
    inputs, outputs = ["tokens", "places"], [context.node.output[0]]
    node = helper.make_node("Gather", inputs, outputs, name=context.node.name)
    table = replace(context, node=node, inputs=[data, indices], constants=frozenset())
    return replace(moves.gather(table), kind="data movement")


@register_stand_in(CHIP_DOMAIN, "Unpack")
def _stand_in_for_unpack(op: Tape, site: Site[Any]) -> Results:
    rows, tokens = read_size(site.node, "max_valid_num"), read_sizes(site.node, "segment_max_size")
    return _resize(op, site, [rows, sum(tokens)])


@register_stand_in(CHIP_DOMAIN, "Repack")
def _stand_in_for_repack(op: Tape, site: Site[Any]) -> Results:
    sizes = [read_size(site.node, name) for name in ("batch_size", "sequence_length")]
    return _resize(op, site, sizes)


def _resize(op: Tape, site: Site[Any], leading: Sequence[int]) -> Value:
    """Write nodes that repeat the first element of both leading axes, for a result of the right
    shape."""
    first = helper.make_tensor("first", TensorProto.INT64, [1], [0])
    rows, tokens = (op.ConstantOfShape(op.ints([size]), value=first) for size in leading)
    return op.Gather(op.Gather(site.x, rows, axis=0), tokens, axis=1)


PACKING: Mapping[str, Operator] = MappingProxyType(
    {
        "Unpack": Operator(
            whole_batch=_TOGETHER,
            cost=_look_up,
            body=_unpack,
            fault=_find_packing_fault,
            rounding=Rounding.EXACT,
            meaning="samples that lie end to end in [batch, tokens, ...], by their lengths "
            "[max_valid_num, segments]: [max_valid_num, sum of segment_max_size, ...], each "
            "segment at a place of its own, zero behind its end. The order of several segments, "
            "one after the other sample by sample, is ours",
        ),
        "Repack": Operator(
            whole_batch=_TOGETHER,
            cost=_look_up,
            body=_repack,
            fault=_find_repacking_fault,
            rounding=Rounding.EXACT,
            meaning="the inverse of Unpack: tokens back into [batch_size, sequence_length, ...], "
            "names of attributes that are ours; tokens of no sample are zero",
        ),
        "MaskCompress": Operator(
            whole_batch="what is kept of one row moves others",
            cost=_look_up,
            body=_mask_compress,
            fault=_find_compress_fault,
            rounding=Rounding.EXACT,
            meaning="Compress whose result keeps the shape of its input: what the mask [size of "
            "`axis`, "
            "default 0] keeps is moved to the front, zeros behind. Not public: this is ours",
        ),
    }
)
