"""Products whose sums are kept in half, as the chip keeps them with half partials.

The AMP unit adds up the products of one block of input channels in float and stores the sum with what was
there before as a half: 16 channels of half operands, 32 of fp8 (poplibs, getWeightsPerConvUnit). So a product
becomes a series of small ones, each of whose sums is rounded; the blocks of a matrix product in order of k,
those of a convolution by channels, then by kernel position. Where there are few channels, two or four kernel
rows are taken for one, as poplin does. Groups of few channels go to the SLIC vertex, which adds up four
kernel positions of a row (poplibs, ConvPartial1xNSLIC). How a plan spreads the blocks over tiles, which
changes the order, is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import Chain, attribute, make_body

HALF_BLOCK, QUARTER_BLOCK = 16, 32
"""Input channels whose products are added up before they are rounded."""
SLIC_CHANNELS, SLIC_TAPS = 4, 4
"""Channels of a group up to which it takes the SLIC vertex, and the kernel positions whose products that adds
up."""

MOST_UNROLLED = 32
"""Kernel positions up to which each gets nodes of its own; more go through a loop, so that no graph grows
with its kernels."""

Shape = tuple[int | None, ...]
"""Sizes; None where the compiled graph leaves one open, as it does the number of rows."""
Round = Callable[[Chain, str], str]


@dataclass(frozen=True, slots=True)
class Operands:
    """The shapes of a product's operands and result, and how its sums are rounded."""

    left: Shape
    right: Shape
    result: Shape
    block: int
    round: Round


def has_partials(node: onnx.NodeProto, left: Shape, right: Shape, result: Shape, block: int) -> bool:
    """Whether `add_product` can take the node apart, and whether there is more than one sum."""
    if node.op_type == "Conv":
        if None in (*left[1:], *right, *result[2:]):
            return False
        _, channels, *kernel = _known(right)
        if attribute(node, "group", 1) > 1 and channels <= SLIC_CHANNELS:
            return math.prod(kernel[:-1]) * math.ceil(kernel[-1] / SLIC_TAPS) > 1
        packed = _packed_rows(node, channels, kernel, block)
        return (
            math.ceil(channels * packed / block) * math.ceil(kernel[0] / packed) * math.prod(kernel[1:]) > 1
        )
    k = _depth(node, left)
    return min(len(left), len(right)) > 1 and k is not None and k > block


def add_product(chain: Chain, node: onnx.NodeProto, operands: Operands) -> str:
    """The nodes that compute a MatMul, Gemm or Conv in half partials; its result, not yet rounded where a
    bias was added."""
    if node.op_type == "Conv":
        return _add_bias(chain, _convolve(chain, node, operands), node, len(operands.result))
    left, right = node.input[0], node.input[1]
    if node.op_type == "Gemm":
        left = chain.add("Transpose", left, perm=[1, 0]) if attribute(node, "transA", 0) else left
        right = chain.add("Transpose", right, perm=[1, 0]) if attribute(node, "transB", 0) else right
    k = _depth(node, operands.left)
    assert k is not None
    total = _multiply(chain, left, right, (len(operands.left), len(operands.right)), k, operands)
    return _scale(chain, total, node) if node.op_type == "Gemm" else total


def _depth(node: onnx.NodeProto, left: Shape) -> int | None:
    return left[0 if node.op_type == "Gemm" and attribute(node, "transA", 0) else -1] if left else None


def _multiply(chain: Chain, left: str, right: str, ranks: tuple[int, int], k: int, operands: Operands) -> str:
    block, blocks = operands.block, math.ceil(k / operands.block)
    rows, columns = ranks
    left = _pad(chain, left, rows, rows - 1, blocks * block - k)
    right = _pad(chain, right, columns, columns - 2, blocks * block - k)
    start = _zeros(
        chain, [(left, 0, rows - 1), 1], [(right, 0, columns - 2), 1, (right, columns - 1, columns)]
    )
    lefts = chain.add("Reshape", left, chain.shape([*[0] * (rows - 1), blocks, block]))
    rights = chain.add("Reshape", right, chain.shape([*[0] * (columns - 2), blocks, block, -1]))
    body = Chain(f"{chain.prefix}/block")
    names = [f"{body.prefix}/{name}" for name in ("sum", "left", "right")]
    total = operands.round(body, body.add("Add", names[0], body.add("MatMul", *names[1:])))
    return chain.add(
        "Scan",
        start,
        lefts,
        rights,
        body=make_body(body, names, [total]),
        num_scan_inputs=2,
        scan_input_axes=[rows - 1, columns - 2],
    )


def _scale(chain: Chain, total: str, node: onnx.NodeProto) -> str:
    """What a Gemm does with its product."""
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if alpha != 1:
        total = chain.add("Mul", total, chain.constant(alpha))
    if len(node.input) < 3 or not node.input[2]:
        return total
    bias = node.input[2] if beta == 1 else chain.add("Mul", node.input[2], chain.constant(beta))
    return chain.add("Add", total, bias)


def _add_bias(chain: Chain, total: str, node: onnx.NodeProto, rank: int) -> str:
    if len(node.input) < 3 or not node.input[2]:
        return total
    return chain.add("Add", total, chain.add("Reshape", node.input[2], chain.shape([-1, *[1] * (rank - 2)])))


def _convolve(chain: Chain, node: onnx.NodeProto, operands: Operands) -> str:
    source, weights, result = (_known(shape) for shape in (operands.left, operands.right, operands.result))
    groups, rank = attribute(node, "group", 1), len(source)
    before, after = _padding(node, source[2:], weights[2:])
    padded = [size + first + last for size, first, last in zip(source[2:], before, after, strict=True)]
    field, filters = node.input[0], node.input[1]
    if any(before) or any(after):
        field = chain.add("Pad", field, chain.shape([0, 0, *before, 0, 0, *after]))
    if groups > 1 and weights[1] <= SLIC_CHANNELS:
        return _sum_rows(chain, node, field, filters, result[2:], weights, operands.round)
    if groups == math.prod(weights[2:]) == 1:
        return _multiply_positions(chain, node, field, filters, operands)
    packed = _packed_rows(node, weights[1], weights[2:], operands.block)
    if packed > 1:
        node, field, filters, weights, padded = _pack_rows(
            chain, node, field, filters, weights, padded, packed
        )
    channels = weights[1]
    block = min(operands.block, channels)
    blocks, taps = math.ceil(channels / block), math.prod(weights[2:])
    missing = blocks * block - channels
    filters = _pad(chain, filters, rank, 1, missing)
    filters = chain.add("Reshape", filters, chain.shape([0, blocks, block, taps]))
    filters = chain.add("Transpose", filters, perm=[1, 3, 0, 2])
    # Positions of a convolution with one group are the columns of a matrix product, which is faster.
    ones = [1] * (rank - 2) if groups > 1 else []
    filters = chain.add("Reshape", filters, chain.shape([blocks, taps, weights[0], block, *ones]))
    whole = chain.shape([0, weights[0], *result[2:]])
    if blocks == 1:
        filters = chain.add("Gather", filters, chain.constant(0, np.int64), axis=0)
        total = _sum_taps(chain, node, field, filters, "", (block, *result[2:]), weights[2:], operands.round)
        return chain.add("Reshape", total, whole)
    field = chain.add("Reshape", field, chain.shape([0, groups, channels, *padded]))
    field = _pad(chain, field, rank + 1, 2, missing)
    field = chain.add("Reshape", field, chain.shape([0, groups, blocks, block, *padded]))
    start = _zeros(chain, [(field, 0, 1), weights[0], *(result[2:] if ones else [math.prod(result[2:])])])
    body = Chain(f"{chain.prefix}/block")
    names = [f"{body.prefix}/{name}" for name in ("sum", "field", "filters")]
    part = body.add("Reshape", names[1], body.shape([0, groups * block, *padded]))
    total = _sum_taps(body, node, part, names[2], names[0], (block, *result[2:]), weights[2:], operands.round)
    scanned = chain.add(
        "Scan",
        start,
        field,
        filters,
        body=make_body(body, names, [total]),
        num_scan_inputs=2,
        scan_input_axes=[2, 0],
    )
    return chain.add("Reshape", scanned, whole)


def _multiply_positions(
    chain: Chain, node: onnx.NodeProto, field: str, filters: str, operands: Operands
) -> str:
    """A convolution whose kernel is one position is a matrix product: a block takes fewer nodes than as one
    of kernels."""
    (outputs, channels, *_), sizes = _known(operands.right), _known(operands.result)[2:]
    strides = attribute(node, "strides", [1] * len(sizes))
    if math.prod(strides) > 1:
        ends = [(size - 1) * step + 1 for size, step in zip(sizes, strides, strict=True)]
        axes = chain.shape(range(2, 2 + len(sizes)))
        field = chain.add(
            "Slice", field, chain.shape([0] * len(sizes)), chain.shape(ends), axes, chain.shape(strides)
        )
    columns = chain.add("Reshape", field, chain.shape([0, channels, -1]))
    rows = chain.add("Reshape", filters, chain.shape([outputs, channels]))
    total = _multiply(chain, rows, columns, (2, 3), channels, operands)
    return chain.add("Reshape", total, chain.shape([0, outputs, *sizes]))


def _packed_rows(node: onnx.NodeProto, channels: int, kernel: Sequence[int], block: int) -> int:
    """Kernel rows that are taken for channels, there being few of those (poplin's kernel height packing: 1, 2
    or 4)."""
    if attribute(node, "group", 1) > 1 or channels >= block:
        return 1
    return min(max(rows for rows in (1, 2, 4) if rows * channels <= block), kernel[0])


def _pack_rows(
    chain: Chain,
    node: onnx.NodeProto,
    field: str,
    filters: str,
    weights: tuple[int, ...],
    padded: list[int],
    packed: int,
) -> tuple[onnx.NodeProto, str, str, tuple[int, ...], list[int]]:
    """The same convolution with `packed` kernel rows as channels: the node, operands, the filters' shape, the
    field's."""
    outputs, channels, height, *others = weights
    dilation, *dilations = attribute(node, "dilations", [1] * (len(weights) - 2))
    groups = math.ceil(height / packed)
    missing = groups * packed - height
    field = _pad(chain, field, len(weights), 2, missing * dilation)
    seen = padded[0] + missing * dilation - (packed - 1) * dilation
    rows = [
        chain.add(
            "Slice",
            field,
            chain.shape([row * dilation]),
            chain.shape([row * dilation + seen]),
            chain.shape([2]),
        )
        for row in range(packed)
    ]
    field = chain.add("Concat", *rows, axis=1)
    filters = _pad(chain, filters, len(weights), 2, missing)
    filters = chain.add("Reshape", filters, chain.shape([outputs, channels, groups, packed, *others]))
    filters = chain.add("Transpose", filters, perm=[0, 3, 1, 2, *range(4, 4 + len(others))])
    shape = (outputs, packed * channels, groups, *others)
    filters = chain.add("Reshape", filters, chain.shape(shape))
    sizes = {
        "strides": attribute(node, "strides", [1] * (len(weights) - 2)),
        "dilations": [packed * dilation, *dilations],
    }
    return (
        onnx.helper.make_node("Conv", [field, filters], [""], **sizes),
        field,
        filters,
        shape,
        [seen, *padded[1:]],
    )


def _sum_taps(
    chain: Chain,
    node: onnx.NodeProto,
    field: str,
    filters: str,
    total: str,
    result: Sequence[int],
    kernel: Sequence[int],
    round_sum: Round,
) -> str:
    """Add to `total` ("" for none) the products of one block of channels, kernel position by kernel position.

    `field` is padded; `filters` has a filter of kernel size 1 for each position, a matrix where there is one
    group. `result` is a block's channels and the field of the result, which is one axis where there is one
    group.
    """
    channels, *sizes = result
    strides = attribute(node, "strides", [1] * len(kernel))
    dilations = attribute(node, "dilations", [1] * len(kernel))
    groups = attribute(node, "group", 1)

    def multiply(part: Chain, seen: str, tap: str) -> str:
        if groups > 1:
            return part.add("Conv", seen, tap, group=groups)
        return part.add("MatMul", tap, part.add("Reshape", seen, part.shape([0, channels, -1])))

    starts = np.indices(kernel).reshape(len(kernel), -1).T * dilations
    ends = starts + (np.array(sizes) - 1) * strides + 1
    if math.prod(kernel) == math.prod(strides) == 1:
        tap = chain.add("Gather", filters, chain.constant(0, np.int64), axis=0)
        product = multiply(chain, field, tap)
        return round_sum(chain, chain.add("Add", total, product) if total else product)
    if not total and len(starts) > MOST_UNROLLED:
        # What a position makes has an axis for each of the field's, or one for all where it is a matrix
        # product.
        outputs: list[int | tuple[str, int, int]] = [
            (filters, 1, 2),
            *(sizes if groups > 1 else [math.prod(sizes)]),
        ]
        total = _zeros(chain, [(field, 0, 1), *outputs])
    return _sum_windows(chain, field, filters, total, (starts, ends, strides), multiply, round_sum)


def _sum_windows(
    chain: Chain,
    field: str,
    filters: str,
    total: str,
    windows: tuple[npt.NDArray[Any], npt.NDArray[Any], Sequence[int]],
    multiply: Callable[[Chain, str, str], str],
    round_sum: Round,
) -> str:
    """Add to `total` ("" for none, where there are few) one window of the field after the other times its
    part of `filters`.

    A window is a start, an end and steps along the spatial axes; `filters` has a part for each along its
    leading axis.
    """
    starts, ends, steps = windows
    axes = range(2, 2 + len(steps))
    if len(starts) <= MOST_UNROLLED:
        along, every = chain.shape(axes), chain.shape(steps)
        for i, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            seen = chain.add("Slice", field, chain.shape(first), chain.shape(last), along, every)
            product = multiply(chain, seen, chain.add("Gather", filters, chain.constant(i, np.int64), axis=0))
            total = round_sum(chain, chain.add("Add", total, product) if total else product)
        return total
    body = Chain(f"{chain.prefix}/{len(chain.nodes)}/window")
    sum_, first, last, part = names = [f"{body.prefix}/{name}" for name in ("sum", "start", "end", "filters")]
    seen = body.add("Slice", field, first, last, body.shape(axes), body.shape(steps))
    result = round_sum(body, body.add("Add", sum_, multiply(body, seen, part)))
    inner = make_body(body, names, [result], whole=(first, last))
    tables = (chain.constant(table, np.int64) for table in (starts, ends))
    return chain.add("Scan", total, *tables, filters, body=inner, num_scan_inputs=3)


def _sum_rows(
    chain: Chain,
    node: onnx.NodeProto,
    field: str,
    filters: str,
    sizes: Sequence[int],
    weights: Sequence[int],
    round_sum: Round,
) -> str:
    """The sum of the products of a few kernel positions of a row at a time; `field` is padded, `sizes` are
    the result's, `weights` the filters'."""
    outputs, channels, *kernel = weights
    strides = attribute(node, "strides", [1] * len(kernel))
    dilations = attribute(node, "dilations", [1] * len(kernel))
    taps = min(SLIC_TAPS, kernel[-1])
    missing = -kernel[-1] % taps
    field = _pad(chain, field, len(weights), len(weights) - 1, missing * dilations[-1])
    filters = _pad(chain, filters, len(weights), len(weights) - 1, missing)
    whole = [*kernel[:-1], (kernel[-1] + missing) // taps]
    parts = chain.add("Reshape", filters, chain.shape([outputs, channels, math.prod(whole), taps]))
    parts = chain.add("Transpose", parts, perm=[2, 0, 1, 3])
    parts = chain.add("Reshape", parts, chain.shape([-1, outputs, channels, *[1] * (len(kernel) - 1), taps]))
    starts = np.indices(whole).reshape(len(kernel), -1).T * [*dilations[:-1], dilations[-1] * taps]
    ends = starts + (np.array(sizes) - 1) * strides + 1
    ends[:, -1] += (taps - 1) * dilations[-1]

    def multiply(part: Chain, seen: str, row: str) -> str:
        return part.add(
            "Conv", seen, row, group=attribute(node, "group"), strides=strides, dilations=dilations
        )

    total = ""
    if len(starts) > MOST_UNROLLED:
        total = _zeros(chain, [(field, 0, 1), outputs, *sizes])
    return _sum_windows(chain, field, parts, total, (starts, ends, [1] * len(kernel)), multiply, round_sum)


def _padding(
    node: onnx.NodeProto, source: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Positions added before and after each spatial axis."""
    rank, mode = len(kernel), attribute(node, "auto_pad", b"NOTSET").decode()
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = attribute(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
        return list(pads[:rank]), list(pads[rank:])
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    needed = [
        max(0, (math.ceil(size / step) - 1) * step + (taps - 1) * dilation + 1 - size)
        for size, taps, step, dilation in zip(source, kernel, strides, dilations, strict=True)
    ]
    less, more = [each // 2 for each in needed], [each - each // 2 for each in needed]
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _pad(chain: Chain, name: str, rank: int, axis: int, missing: int) -> str:
    """Zeros at the end of an axis: they add nothing to a sum."""
    if not missing:
        return name
    return chain.add("Pad", name, chain.shape([0] * (rank + axis) + [missing] + [0] * (rank - axis - 1)))


def _zeros(chain: Chain, *shapes: list[int | tuple[str, int, int]]) -> str:
    """Zeros of the shape that `shapes` are broadcast to; a size is a number, or sizes from one axis to before
    another of a tensor, which may be open."""
    zeros = chain.constant(0.0)
    for shape in shapes:
        sizes = [_sizes(chain, part) for part in shape]
        zeros = chain.add("Expand", zeros, chain.add("Concat", *sizes, axis=0))
    return zeros


def _sizes(chain: Chain, part: int | tuple[str, int, int]) -> str:
    if isinstance(part, int):
        return chain.shape([part])
    name, first, last = part
    return chain.add("Slice", chain.add("Shape", name), chain.shape([first]), chain.shape([last]))


def _known(shape: Shape) -> tuple[int, ...]:
    """The sizes; an open number of rows, which nothing here depends on, is 0."""
    return tuple(size or 0 for size in shape)
