"""Matrix products whose sums are kept in half, block by block, and the helpers to build such chains
of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnxgraph import Tape, make_body

Shape = tuple[int | None, ...]
"""Sizes; None for a size that the compiled graph leaves open, such as the number of rows."""
Round = Callable[[Tape, str], str]
"""Function that adds the rounding of a sum to a tape, and returns the name of the result."""
Size = int | tuple[str, int, int]
"""A number, or the sizes of a tensor from one axis to before another, which may be open."""


def multiply_blocks(
    op: Tape, left: str, right: str, shapes: tuple[Shape, Shape], block: int, round_sum: Round
) -> str:
    """Add the product left x right, of two or more axes each, summed `block` channels at a time:

                      block 0   block 1  ...
             +-------+-------+-------+              sum = 0
        rows |   L0  |   L1  |   L2 0|    k         sum = round(sum + L0 x R0)
             +-------+-------+-------+              sum = round(sum + L1 x R1)
                                                    sum = round(sum + L2 x R2), its last channels
                                                    zeros

    A Scan has one body for all blocks, so the graph does not grow with its channels. `shapes` are
    the operands', with known channels. Return the name of the result.
    """
    # ONNX Runtime's MatMul sums one channel after the other, as the definition says, except for a
    # single row or column. So a row or column is added if there is, or may be, only one.
    (rows, columns), depth = map(len, shapes), known(shapes[0])[-1]
    lonely = (shapes[0][-2] in (1, None), shapes[1][-1] in (1, None))
    left = pad_end(op, left, rows, rows - 2, int(lonely[0]))
    right = pad_end(op, right, columns, columns - 1, int(lonely[1]))
    if depth <= block:
        total = round_sum(op, op.add("MatMul", left, right))
    else:
        total = _scan_blocks(op, left, right, (rows, columns, depth), block, round_sum)
    added = [axis for axis, is_lonely in zip((-2, -1), lonely, strict=True) if is_lonely]
    return cut_end(op, total, added)


def _scan_blocks(
    op: Tape, left: str, right: str, sizes: tuple[int, int, int], block: int, round_sum: Round
) -> str:
    """Add a product of more than one block; `sizes` are the numbers of axes of the operands and the
    number of channels."""
    rows, columns, depth = sizes
    blocks = math.ceil(depth / block)
    # A Scan takes equal parts only. The chip also pads the last block, and zeros change no sum.
    left = pad_end(op, left, rows, rows - 1, blocks * block - depth)
    right = pad_end(op, right, columns, columns - 2, blocks * block - depth)
    # The number of rows may be open until the graph is run, so zeros of the result's shape are made
    # from the operands' sizes; leading axes broadcast.
    result_columns: list[Size] = [(right, 0, columns - 2), 1, (right, columns - 1, columns)]
    start = add_zeros(op, [(left, 0, rows - 1), 1], result_columns)
    lefts = op.add("Reshape", left, op.ints([*[0] * (rows - 1), blocks, block]))
    rights = op.add("Reshape", right, op.ints([*[0] * (columns - 2), blocks, block, -1]))
    # MatMul sums the block's own products in float; only the stored sum is rounded, as in the
    # accumulator of the AMP unit.
    body = Tape(f"{op.prefix}/block")
    names = [f"{body.prefix}/{name}" for name in ("sum", "left", "right")]
    total = round_sum(body, body.add("Add", names[0], body.add("MatMul", *names[1:])))
    inner, axes = make_body(body, names, [total]), [rows - 1, columns - 2]
    operands = start, lefts, rights
    return op.add("Scan", *operands, body=inner, num_scan_inputs=2, scan_input_axes=axes)


def pad_end(op: Tape, name: str, rank: int, axis: int, missing: int) -> str:
    """Add zeros at the end of an axis, which add nothing to a sum."""
    if not missing:
        return name
    pads = op.ints([0] * (rank + axis) + [missing] + [0] * (rank - axis - 1))
    return op.add("Pad", name, pads)


def cut_end(op: Tape, name: str, axes: Sequence[int]) -> str:
    """Add a slice that drops the last position of some axes."""
    if not axes:
        return name
    starts, ends = op.ints([0] * len(axes)), op.ints([-1] * len(axes))
    return op.add("Slice", name, starts, ends, op.ints(axes))


def add_zeros(op: Tape, *shapes: Sequence[Size]) -> str:
    """Add zeros of the shape that `shapes` are broadcast to."""
    zeros = op.constant(0.0)
    for shape in shapes:
        sizes = [_add_sizes(op, part) for part in shape]
        zeros = op.add("Expand", zeros, op.add("Concat", *sizes, axis=0))
    return zeros


def _add_sizes(op: Tape, part: Size) -> str:
    if isinstance(part, int):
        return op.ints([part])
    name, first, last = part
    return op.add("Slice", op.add("Shape", name), op.ints([first]), op.ints([last]))


def known(shape: Shape) -> tuple[int, ...]:
    """Return the sizes, with 0 for an open number of rows, on which nothing here depends."""
    return tuple(size or 0 for size in shape)
