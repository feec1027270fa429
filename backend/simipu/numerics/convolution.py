"""Convolutions whose sums are kept in half, in the chip's order of summation, as chains of small
products.

The AMP unit processes a block of input channels at a kernel position; the SLIC vertex, for groups
of few channels, four kernel positions of a row (poplibs, ConvPartial1x1 and ConvPartial1xNSLIC).
Every such product is a MatMul of all groups at once, because ONNX Runtime's Conv sums in orders of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import Tape, attribute, make_body

from simipu.numerics.blocks import Round, Shape, add_zeros, cut_end, known, multiply_blocks, pad_end

SLIC_CHANNELS, SLIC_TAPS = 4, 4
"""Maximum number of channels of a group for the SLIC vertex, and the number of kernel positions
whose products the vertex sums."""
PACKED_ROWS = (4, 2, 1)
"""Numbers of kernel rows that poplin packs into channels if there are few channels (its kernel
height packing)."""
MAX_UNROLLED = 32
"""Maximum number of kernel positions that each get nodes of their own; more positions use a loop,
so that no graph grows with its kernels."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Geometry of a convolution, and the order of its sums.

    A block is `block` input channels at one kernel position; the sum of an output is rounded after
    each:

        field, one row of one group          kernel, 3 positions a row       sum of one output
                  0   1   2   3   4   5              t0  t1  t2
        ch 0-15   a0  a1  a2  a3  a4  a5     ch 0-15  p   q   r      round( 0  + p.a0 )  block 0, t0
        ch 16-31  b0  b1  b2  b3  b4  b5     ch 16-31 u   v   w      round(sum + q.a1 )  block 0, t1
                  \\___window___/                                    round(sum + r.a2 )  block 0, t2
                                                                     round(sum + u.b0 )  block 1, t0
                                                                     ...

    With fewer channels than a block, neighbouring kernel positions count as channels. A block is
    then all channels of up to `packing` positions, one position after the other.
    """

    groups: int
    outputs: int
    channels: int
    """Number of channels of a group's input."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    result: tuple[int, ...] = ()
    """Spatial sizes of the output."""

    @staticmethod
    def of(node: onnx.NodeProto, weights: Shape) -> Convolution:
        """Return the convolution of a node with filters of that shape; the result's sizes are not
        set yet."""
        outputs, channels, *kernel = known(weights)
        ones = [1] * len(kernel)
        strides = tuple(attribute(node, "strides", ones))
        dilations = tuple(attribute(node, "dilations", ones))
        groups = attribute(node, "group", 1)
        return Convolution(groups, outputs, channels, tuple(kernel), strides, dilations)

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return math.prod(self.kernel)

    @property
    def is_slic(self) -> bool:
        """Return whether its groups have so few channels that the AMP units would be idle."""
        return self.groups > 1 and self.channels <= SLIC_CHANNELS

    @property
    def slic_taps(self) -> int:
        """Number of neighbouring positions of a kernel row that the SLIC vertex adds before it
        stores; 0 if another vertex computes it."""
        return SLIC_TAPS if self.is_slic else 0

    def packed_rows(self, block: int) -> int:
        """Return the number of kernel rows that are packed into channels."""
        # Poplin packs to keep the AMP units busy: only if the channels alone do not fill a block,
        # and never across groups, whose channels belong to other convolutions.
        if self.groups > 1 or self.channels >= block:
            return 1
        fitting = next(rows for rows in PACKED_ROWS if rows * self.channels <= block)
        return min(fitting, self.kernel[0])

    def packing(self, block: int) -> Packing:
        """Return which positions of the kernel a block covers."""
        # The SLIC vertex adds four neighbouring positions of a kernel row before it stores.
        if self.is_slic:
            axis = len(self.kernel) - 1
            return Packing(self, axis, min(SLIC_TAPS, self.kernel[axis]))
        return Packing(self, 0, self.packed_rows(block))

    def padding(self, node: onnx.NodeProto, source: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the positions added before and after each spatial axis of a field of those
        sizes."""
        rank, mode = len(self.kernel), attribute(node, "auto_pad", b"NOTSET").decode()
        # By ONNX's rule, SAME is the padding with which the result has ceil(size / stride)
        # positions; an odd one is added at the end (UPPER) or the beginning (LOWER).
        if mode not in ("SAME_UPPER", "SAME_LOWER"):
            pads = attribute(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
            return list(pads[:rank]), list(pads[rank:])
        sizes = zip(source, self.kernel, self.strides, self.dilations, strict=True)
        totals = [
            max(0, (math.ceil(size / step) - 1) * step + (taps - 1) * dilation + 1 - size)
            for size, taps, step, dilation in sizes
        ]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return (less, more) if mode == "SAME_UPPER" else (more, less)


@dataclass(frozen=True, slots=True)
class Packing:
    """Convolution in which `count` neighbouring kernel positions along an axis are packed into
    channels:

        kernel row    t0 t1 t2 t3 t4         field   a0 a1 a2 a3 a4 a5 a6 ...
        4 a window    t0 t4     channel 0 of the packed field   a0 a1 a2 ...
                      t1  -     channel 1                       a1 a2 a3 ...
                      t2  -     channel 2                       a2 a3 a4 ...
                      t3  -     channel 3                       a3 a4 a5 ...

    Window 0 is at a0 and has all four, window 1 is at a4 and has the first only.
    """

    whole: Convolution
    axis: int
    count: int

    @property
    def kernel(self) -> list[int]:
        """Number of windows along each axis."""
        kernel = list(self.whole.kernel)
        kernel[self.axis] = math.ceil(kernel[self.axis] / self.count)
        return kernel

    @property
    def missing(self) -> int:
        """Number of positions that the last window along the axis lacks."""
        return -self.whole.kernel[self.axis] % self.count

    @property
    def steps(self) -> list[int]:
        """Distance from window to window, in positions of the field, along each axis."""
        steps = list(self.whole.dilations)
        steps[self.axis] *= self.count
        return steps

    @property
    def field(self) -> list[int]:
        """Spatial sizes of the part of the field that the windows cover."""
        whole = self.whole
        axes = zip(self.kernel, self.steps, whole.result, whole.strides, strict=True)
        return [(taps - 1) * step + (size - 1) * stride + 1 for taps, step, size, stride in axes]

    def windows(self, channels: int) -> Windows:
        """Return the windows as parts of the packed field. They are in row-major order, in which
        the vertex goes through the kernel; `channels` are a block's at one position."""
        # `at` has the kernel position of each window, a row for each. Its part of the field begins
        # there and has as many positions as the result, a stride apart. Only the last window along
        # the packed axis may have fewer channels.
        at = np.indices(self.kernel).reshape(len(self.kernel), -1).T
        starts = at * self.steps
        ends = starts + (np.array(self.whole.result) - 1) * self.whole.strides + 1
        is_last = at[:, self.axis] == self.kernel[self.axis] - 1
        depths = channels * (self.count - self.missing * is_last)[:, None]
        return Windows(
            np.hstack([np.zeros_like(depths), starts]),
            np.hstack([depths, ends]),
            (1, *self.whole.strides),
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """Parts of a packed field: starts and ends along its channels and spatial axes, one row for
    each window, and the steps between positions."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def axes(self) -> range:
        """Channel and spatial axes of the field; before them are the batch and the groups."""
        return range(2, 2 + len(self.steps))

    @property
    def have_one_depth(self) -> bool:
        """Return whether all windows cover all channels."""
        return len(set(self.ends[:, 0].tolist())) == 1


@dataclass(frozen=True, slots=True)
class _Sum:
    """Common properties of the nodes of a sum. It has `outputs` channels of each group at
    `positions` positions of the result."""

    windows: Windows
    groups: int
    outputs: int
    positions: int
    round: Round

    @property
    def sizes(self) -> list[int]:
        """Sizes of the sum, without its rows."""
        return [self.groups, self.outputs, max(2, self.positions)]


@dataclass(frozen=True, slots=True)
class Placed:
    """Convolution of two tensors, with the sizes of its field, and the zeros before and after
    it."""

    geometry: Convolution
    field: str
    filters: str
    sizes: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]


def place_operands(op: Tape, node: onnx.NodeProto, shapes: tuple[Shape, Shape, Shape]) -> Placed:
    """Return the convolution that a Conv or a ConvTranspose computes; nodes that change its
    operands are added to the chain if needed. `shapes` are of field, filters and result."""
    source, result = known(shapes[0])[2:], known(shapes[2])[2:]
    if node.op_type == "ConvTranspose":
        return turn(op, node, shapes[1], source, result)
    conv = Convolution.of(node, shapes[1])
    field, filters = node.input[:2]
    return Placed(replace(conv, result=result), field, filters, source, *conv.padding(node, source))


def convolve(
    op: Tape,
    node: onnx.NodeProto,
    shapes: tuple[Shape, Shape, Shape],
    block: int,
    round_sum: Round,
) -> str:
    """Add the nodes that compute a Conv or a ConvTranspose without its bias, and return the name of
    the result; `shapes` are of field, filters and result."""
    placed = place_operands(op, node, shapes)
    conv, field, filters, before = placed.geometry, placed.field, placed.filters, placed.before
    packing, rank = conv.packing(block), len(conv.kernel)
    # Padding is done once for all windows: a padded position adds zeros to a sum, as it does on the
    # chip. The copies of a packed field have the same end, beyond the data, where nothing is read.
    after = list(placed.after)
    after[packing.axis] += packing.missing * conv.dilations[packing.axis]
    if any(before) or any(after):
        field = op.add("Pad", field, op.ints([0, 0, *before, 0, 0, *after]))
    if conv.groups == conv.taps == 1:
        total = _multiply_positions(op, conv, field, filters, block, round_sum)
    else:
        sizes = [sum(parts) for parts in zip(placed.sizes, before, after, strict=True)]
        field = op.add("Reshape", field, op.ints([0, conv.groups, conv.channels, *sizes]))
        if conv.channels > block:
            blocks = math.ceil(conv.channels / block)
            field = pad_end(op, field, 3 + rank, 2, blocks * block - conv.channels)
            field = op.add("Reshape", field, op.ints([0, 0, blocks, block, *sizes]))
        field = _pack(op, packing, field)
        total = _sum_blocks(op, packing, field, filters, min(block, conv.channels), round_sum)
    return op.add("Reshape", total, op.ints([0, conv.outputs, *conv.result]))


def turn(
    op: Tape, node: onnx.NodeProto, weights: Shape, source: Sequence[int], result: Sequence[int]
) -> Placed:
    """Return a ConvTranspose as an equivalent convolution:

    field   a b c, in steps of 2          0 0 a 0 b 0 c 0 0      zeros between its positions and
    around filters p q r                             r q p              reversed, inputs for outputs
    """
    inputs, outputs, *kernel = known(weights)
    rank, groups = len(kernel), attribute(node, "group", 1)
    ones = [1] * rank
    strides, dilations = (attribute(node, name, ones) for name in ("strides", "dilations"))
    field, spread = node.input[0], [size * step for size, step in zip(source, strides, strict=True)]
    if max(strides) > 1:
        field = _spread(op, field, inputs, source, strides)
        field = op.add("Reshape", field, op.ints([0, inputs, *spread]))
    # The first result position sees the last kernel position only, so that `reach` zeros stand
    # before the field, less the positions of the result that are cut there. A convolution of
    # result + reach positions gives the result; what field and `before` lack of them comes after.
    reaches = [(taps - 1) * step for taps, step in zip(kernel, dilations, strict=True)]
    cut = _cut_before(node, source, reaches)
    before = [reach - less for reach, less in zip(reaches, cut, strict=True)]
    sizes = [size + reach for size, reach in zip(result, reaches, strict=True)]
    after = [size - seen - first for size, seen, first in zip(sizes, spread, before, strict=True)]
    if any(before) or any(after):  # a negative pad cuts: the result may omit positions
        field = op.add("Pad", field, op.ints([0, 0, *before, 0, 0, *after]))
    channels = inputs // groups
    filters = op.ints([groups, channels, outputs, *kernel])
    filters = op.add("Reshape", node.input[1], filters)
    filters = op.add("Transpose", filters, perm=[0, 2, 1, *range(3, 3 + rank)])
    turned = op.ints([groups * outputs, channels, *kernel])
    filters = op.add("Reshape", filters, turned)
    # The kernel is reversed: from the last position (-1) to the first, which only the least integer
    # includes, in steps of -1.
    last, first = op.ints([-1] * rank), op.ints([np.iinfo(np.int64).min] * rank)
    back = op.ints([-1] * rank)
    filters = op.add("Slice", filters, last, first, op.ints(range(2, 2 + rank)), back)
    sizes_of = tuple(kernel), tuple(ones), tuple(dilations), tuple(result)
    conv = Convolution(groups, groups * outputs, channels, *sizes_of)
    return Placed(conv, field, filters, sizes, [0] * rank, [0] * rank)


def _spread(
    op: Tape, field: str, channels: int, sizes: Sequence[int], strides: Sequence[int]
) -> str:
    """Add nodes that put zeros after each position of a field, which gets an axis of its own."""
    alone = [number for size in sizes for number in (size, 1)]
    zeros = [number for step in strides for number in (0, step - 1)]
    field = op.add("Reshape", field, op.ints([0, channels, *alone]))
    return op.add("Pad", field, op.ints([0] * (2 + len(alone)) + [0, 0] + zeros))


def _cut_before(node: onnx.NodeProto, source: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Return the number of positions of a ConvTranspose's result that are cut at the beginning of
    each axis."""
    rank, mode = len(source), attribute(node, "auto_pad", b"NOTSET").decode()
    strides = attribute(node, "strides", [1] * rank)
    more = attribute(node, "output_padding", [0] * rank)
    output_sizes = attribute(node, "output_shape", [])[-rank:]
    if not output_sizes and mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = attribute(node, "pads", [0] * rank) if mode == "NOTSET" else [0] * rank
        return list(pads[:rank])
    # By ONNX's rule, cut as many as give the result its declared size, or the size that source and
    # strides give; an odd one at the end only with SAME_UPPER.
    output_sizes = output_sizes or [size * step for size, step in zip(source, strides, strict=True)]
    axes = zip(source, strides, reaches, more, output_sizes, strict=True)
    cut = [
        max(0, (size - 1) * step + reach + 1 + add - want) for size, step, reach, add, want in axes
    ]
    return [excess // 2 if mode == "SAME_UPPER" else excess - excess // 2 for excess in cut]


def _multiply_positions(
    op: Tape, conv: Convolution, field: str, filters: str, block: int, round_sum: Round
) -> str:
    """Add a convolution with a kernel of one position as a matrix product, which needs fewer nodes
    for a block."""
    sizes, strides = conv.result, conv.strides
    # With one position a stride only skips positions: drop them before the product.
    if math.prod(strides) > 1:
        ends = [(size - 1) * step + 1 for size, step in zip(sizes, strides, strict=True)]
        axes = op.ints(range(2, 2 + len(sizes)))
        starts, steps = op.ints([0] * len(sizes)), op.ints(strides)
        field = op.add("Slice", field, starts, op.ints(ends), axes, steps)
    shapes = (conv.outputs, conv.channels), (0, conv.channels, math.prod(sizes))
    columns = op.add("Reshape", field, op.ints(shapes[1]))
    rows = op.add("Reshape", filters, op.ints(shapes[0]))
    return multiply_blocks(op, rows, columns, shapes, block, round_sum)


def _pack(op: Tape, packing: Packing, field: str) -> str:
    """Add nodes that join shifted copies of the field, each one kernel position further. The axes
    of the field are rows, groups, channels and the spatial ones."""
    if packing.count == 1:
        return field
    axis, step = op.ints([3 + packing.axis]), packing.whole.dilations[packing.axis]
    seen = packing.field[packing.axis]
    copies = [
        op.add("Slice", field, op.ints([first]), op.ints([first + seen]), axis)
        for first in range(0, packing.count * step, step)
    ]
    return op.add("Concat", *copies, axis=2)


def _sum_blocks(
    op: Tape, packing: Packing, field: str, filters: str, block: int, round_sum: Round
) -> str:
    """Add the sum of all blocks of channels and, in each, of all windows: a Scan over the blocks.
    The field has an axis of blocks after the groups', or none if there is one block."""
    conv = packing.whole
    blocks = math.ceil(conv.channels / block)
    group_outputs, positions = conv.outputs // conv.groups, math.prod(conv.result)
    outputs = max(2, group_outputs)  # a MatMul of one row or column sums in another order
    filters = _arrange(op, packing, filters, (blocks, block, outputs))
    window_sum = _Sum(packing.windows(block), conv.groups, outputs, positions, round_sum)
    if blocks == 1:
        total = _sum_windows(op, window_sum, field, filters, "")
    else:
        start = add_zeros(op, [(field, 0, 1), *window_sum.sizes])
        body = Tape(f"{op.prefix}/block")
        names = [f"{body.prefix}/{name}" for name in ("sum", "field", "filters")]
        total = _sum_windows(body, window_sum, names[1], names[2], names[0])
        inner, axes = make_body(body, names, [total]), [2, 0]
        operands = start, field, filters
        total = op.add("Scan", *operands, body=inner, num_scan_inputs=2, scan_input_axes=axes)
    added = (-2, outputs > group_outputs), (-1, window_sum.sizes[-1] > positions)
    return cut_end(op, total, [axis for axis, is_added in added if is_added])


def _arrange(op: Tape, packing: Packing, filters: str, sizes: tuple[int, int, int]) -> str:
    """Add nodes that arrange the filters as matrices of outputs and channels, one for each window
    and group, and for each block if there are several."""
    # [groups * outputs, channels, kernel]
    #   -> [groups, outputs, blocks, block, kernel with its axis `at` cut into windows and packing]
    #   -> [blocks, windows, groups, outputs, packing * block]
    # The order of the last axis is that of `_pack`: one position's channels after the other's.
    conv, (blocks, block, outputs) = packing.whole, sizes
    rank, group_outputs = len(conv.kernel), conv.outputs // conv.groups
    at = packing.axis
    filters = pad_end(op, filters, 2 + rank, 2 + at, packing.missing)
    filters = pad_end(op, filters, 2 + rank, 1, blocks * block - conv.channels)
    kernel = packing.kernel
    shape = [
        conv.groups,
        group_outputs,
        blocks,
        block,
        *kernel[: at + 1],
        packing.count,
        *kernel[at + 1 :],
    ]
    filters = op.add("Reshape", filters, op.ints(shape))
    filters = pad_end(op, filters, len(shape), 1, outputs - group_outputs)
    spatial = [axis for axis in range(4, len(shape)) if axis != 5 + at]
    filters = op.add("Transpose", filters, perm=[2, *spatial, 0, 1, 5 + at, 3])
    leading = [blocks, math.prod(kernel)] if blocks > 1 else [math.prod(kernel)]
    shape = [*leading, conv.groups, outputs, packing.count * block]
    return op.add("Reshape", filters, op.ints(shape))


def _sum_windows(op: Tape, window_sum: _Sum, field: str, filters: str, total: str) -> str:
    """Add the products of the windows of the field, one after the other, to the sum `total` ("" for
    none). `filters` has a part for each window along its leading axis."""
    windows = window_sum.windows
    if len(windows) > MAX_UNROLLED:
        total = total or add_zeros(op, [(field, 0, 1), *window_sum.sizes])
        return _scan_windows(op, window_sum, field, filters, total)
    for i, (first, last) in enumerate(zip(windows.starts, windows.ends, strict=True)):
        part = op.add("Gather", filters, op.constant(i, np.int64), axis=0)
        product = _multiply(op, window_sum, field, part, (op.ints(first), op.ints(last)))
        total = window_sum.round(op, op.add("Add", total, product) if total else product)
    return total


def _scan_windows(op: Tape, window_sum: _Sum, field: str, filters: str, total: str) -> str:
    """Add the sum of the windows in a Scan over them."""
    body = Tape(f"{op.prefix}/{len(op.nodes)}/window")
    sum_, first, last, part = names = [
        f"{body.prefix}/{name}" for name in ("sum", "start", "end", "filters")
    ]
    product = _multiply(body, window_sum, field, part, (first, last))
    rounded = window_sum.round(body, body.add("Add", sum_, product))
    inner = make_body(body, names, [rounded], whole=(first, last))
    windows = window_sum.windows
    tables = (op.constant(table, np.int64) for table in (windows.starts, windows.ends))
    return op.add("Scan", total, *tables, filters, body=inner, num_scan_inputs=3)


def _multiply(op: Tape, window_sum: _Sum, field: str, part: str, borders: tuple[str, str]) -> str:
    """Add the product of one window of the field, from the first to before the last of `borders`,
    with its filters."""
    windows, (first, last) = window_sum.windows, borders
    axes, steps = op.ints(windows.axes), op.ints(windows.steps)
    seen = op.add("Slice", field, first, last, axes, steps)
    # Reshape to a matrix of the same channels, of which some windows have fewer.
    seen = op.add("Reshape", seen, op.ints([0, 0, 0, window_sum.positions]))
    if window_sum.positions == 1:
        seen = op.add("Expand", seen, op.ints([1, 2]))
    if not windows.have_one_depth:
        depth = op.add("Slice", last, op.ints([0]), op.ints([1]))
        part = op.add("Slice", part, op.ints([0]), depth, op.ints([-1]))
    return op.add("MatMul", part, seen)
