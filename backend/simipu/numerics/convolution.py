"""Convolutions whose sums are kept in half: in which order the chip adds up, as chains of small products.

The AMP unit takes a block of input channels at a kernel position; the SLIC vertex, for groups of few
channels, four kernel positions of a row (poplibs, ConvPartial1x1 and ConvPartial1xNSLIC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import Chain, attribute, make_body

from simipu.numerics.blocks import Round, Shape, Size, add_zeros, known, multiply_blocks, pad_end

SLIC_CHANNELS, SLIC_TAPS = 4, 4
"""Channels of a group up to which it takes the SLIC vertex, and the kernel positions whose products that adds
up."""
PACKED_ROWS = (4, 2, 1)
"""Kernel rows that poplin takes for channels where there are few of those (its kernel height packing)."""
MOST_UNROLLED = 32
"""Kernel positions up to which each gets nodes of its own; more go through a loop, so that no graph grows
with its kernels."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """The geometry of a convolution, its field padded already, and the order of its sums.

    A block is `block` input channels at one kernel position; the sum of an output is rounded after each:

        field, one row of one group          kernel, 3 positions a row       sum of one output
                  0   1   2   3   4   5              t0  t1  t2
        ch 0-15   a0  a1  a2  a3  a4  a5     ch 0-15  p   q   r      round( 0  + p.a0 )  block 0, t0
        ch 16-31  b0  b1  b2  b3  b4  b5     ch 16-31 u   v   w      round(sum + q.a1 )  block 0, t1
                  \\___window___/                                    round(sum + r.a2 )  block 0, t2
                                                                     round(sum + u.b0 )  block 1, t0 ...

    With fewer channels than a block rows of the kernel are taken for channels (`pack_rows`): a block is then
    `rows` rows of all channels at one position of a row.
    """

    groups: int
    outputs: int
    channels: int
    """Of a group's input."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    field: tuple[int, ...] = ()
    """Spatial sizes of the input with its padding."""
    result: tuple[int, ...] = ()
    """Spatial sizes of the output."""

    @staticmethod
    def of(node: onnx.NodeProto, weights: Shape) -> Convolution:
        """As node and filters say; neither field nor result are known yet."""
        outputs, channels, *kernel = known(weights)
        ones = [1] * len(kernel)
        strides, dilations = (tuple(attribute(node, name, ones)) for name in ("strides", "dilations"))
        return Convolution(attribute(node, "group", 1), outputs, channels, tuple(kernel), strides, dilations)

    @property
    def rank(self) -> int:
        """Axes of the operands."""
        return len(self.kernel) + 2

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return math.prod(self.kernel)

    @property
    def is_grouped(self) -> bool:
        """Whether its groups are convolutions of their own."""
        return self.groups > 1

    @property
    def is_slic(self) -> bool:
        """Whether its groups have so few channels that the AMP units would be idle."""
        return self.is_grouped and self.channels <= SLIC_CHANNELS

    def count_sums(self, block: int) -> int:
        """Sums of an output that are rounded."""
        # The SLIC vertex adds four neighbouring positions of a kernel row before it stores.
        if self.is_slic:
            return math.prod(self.kernel[:-1]) * math.ceil(self.kernel[-1] / SLIC_TAPS)
        packed = self.pack_rows(self.packed_rows(block))
        return math.ceil(packed.channels / block) * packed.taps

    def packed_rows(self, block: int) -> int:
        """Kernel rows that are taken for channels."""
        # Poplin packs to keep the AMP units busy: only where channels alone do not fill a block, and never
        # across groups, whose channels are other convolutions'.
        if self.is_grouped or self.channels >= block:
            return 1
        return min(next(rows for rows in PACKED_ROWS if rows * self.channels <= block), self.kernel[0])

    def pack_rows(self, rows: int) -> Convolution:
        """The same convolution with so many kernel rows as channels; what they lack is filled up."""
        if rows == 1:
            return self
        height, dilation = math.ceil(self.kernel[0] / rows), self.dilations[0]
        # Copy r of the field starts r rows further down, so that all copies end together (rows - 1) rows
        # before the end; rows of zeros that fill up the last part of the kernel lengthen the field again.
        seen = (height * rows - self.kernel[0] - (rows - 1)) * dilation
        return replace(
            self,
            channels=rows * self.channels,
            kernel=(height, *self.kernel[1:]),
            dilations=(rows * dilation, *self.dilations[1:]),
            field=(self.field[0] + seen, *self.field[1:]) if self.field else (),
        )

    def padding(self, node: onnx.NodeProto, source: Sequence[int]) -> tuple[list[int], list[int]]:
        """Positions added before and after each spatial axis of a field of those sizes."""
        rank, mode = len(self.kernel), attribute(node, "auto_pad", b"NOTSET").decode()
        # By ONNX's rule, SAME is the padding with which the result has ceil(size / stride) positions; an odd
        # one goes behind (UPPER) or before (LOWER).
        if mode not in ("SAME_UPPER", "SAME_LOWER"):
            pads = attribute(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
            return list(pads[:rank]), list(pads[rank:])
        sizes = zip(source, self.kernel, self.strides, self.dilations, strict=True)
        needed = [
            max(0, (math.ceil(size / step) - 1) * step + (taps - 1) * dilation + 1 - size)
            for size, taps, step, dilation in sizes
        ]
        less, more = [each // 2 for each in needed], [each - each // 2 for each in needed]
        return (less, more) if mode == "SAME_UPPER" else (more, less)

    def windows(self) -> Windows:
        """The positions of the field that each kernel position meets."""
        starts, ends = self._find_windows(1)
        return Windows(starts, ends, self.strides)

    def row_windows(self, taps: int) -> Windows:
        """The parts of the field that `taps` kernel positions of a row meet together: all that lies between,
        for the Conv that multiplies them has the strides."""
        starts, ends = self._find_windows(taps)
        ends[:, -1] += (taps - 1) * self.dilations[-1]
        return Windows(starts, ends, (1,) * len(self.kernel))

    def _find_windows(self, taps: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        counts = [*self.kernel[:-1], math.ceil(self.kernel[-1] / taps)]
        steps = [*self.dilations[:-1], self.dilations[-1] * taps]
        # In row-major order, the order in which the vertex goes through the kernel and so of the sums.
        starts = np.indices(counts).reshape(len(counts), -1).T * steps
        return starts, starts + (np.array(self.result) - 1) * self.strides + 1


@dataclass(frozen=True, slots=True)
class Windows:
    """Parts of a field that have the size of the result: starts and ends along the spatial axes, one row for
    each window, and the steps between positions."""

    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    @property
    def axes(self) -> range:
        """The spatial axes."""
        return range(2, 2 + len(self.steps))


def convolve(
    chain: Chain, node: onnx.NodeProto, shapes: tuple[Shape, Shape, Shape], block: int, round_sum: Round
) -> str:
    """The nodes that compute a Conv without its bias; `shapes` are of field, filters and result."""
    source, result = known(shapes[0]), known(shapes[2])
    conv = Convolution.of(node, shapes[1])
    before, after = conv.padding(node, source[2:])
    sizes = zip(source[2:], before, after, strict=True)
    conv = replace(conv, field=tuple(map(sum, sizes)), result=result[2:])
    field, filters = node.input[0], node.input[1]
    if any(before) or any(after):
        field = chain.add("Pad", field, chain.shape([0, 0, *before, 0, 0, *after]))
    # Padding is done once for all windows: a padded position adds zeros to a sum, as it does on the chip.
    if conv.is_slic:
        return _sum_rows(chain, conv, field, filters, round_sum)
    if conv.groups == conv.taps == 1:
        return _multiply_positions(chain, conv, field, filters, block, round_sum)
    packed = conv.packed_rows(block)
    if packed > 1:
        field, filters = _pack_rows(chain, conv, field, filters, packed)
        conv = conv.pack_rows(packed)
    return _sum_blocks(chain, conv, field, filters, min(block, conv.channels), round_sum)


def _multiply_positions(
    chain: Chain, conv: Convolution, field: str, filters: str, block: int, round_sum: Round
) -> str:
    """A convolution whose kernel is one position is a matrix product: a block takes fewer nodes than as one
    of kernels."""
    sizes, strides = conv.result, conv.strides
    # With one position a stride only leaves positions out: so they are, before anything is multiplied.
    if math.prod(strides) > 1:
        ends = [(size - 1) * step + 1 for size, step in zip(sizes, strides, strict=True)]
        axes = chain.shape(range(2, conv.rank))
        field = chain.add(
            "Slice", field, chain.shape([0] * len(sizes)), chain.shape(ends), axes, chain.shape(strides)
        )
    columns = chain.add("Reshape", field, chain.shape([0, conv.channels, -1]))
    rows = chain.add("Reshape", filters, chain.shape([conv.outputs, conv.channels]))
    total = multiply_blocks(chain, rows, columns, (2, 3), conv.channels, block, round_sum)
    return chain.add("Reshape", total, chain.shape([0, conv.outputs, *sizes]))


def _pack_rows(chain: Chain, conv: Convolution, field: str, filters: str, packed: int) -> tuple[str, str]:
    """The operands of `conv.pack_rows(packed)`: the field beside itself, a kernel row further each time, and
    the filters' rows between their channels."""
    height, *others = conv.kernel
    groups, dilation = math.ceil(height / packed), conv.dilations[0]
    missing = groups * packed - height
    field = pad_end(chain, field, conv.rank, 2, missing * dilation)
    seen = conv.pack_rows(packed).field[0]
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
    filters = pad_end(chain, filters, conv.rank, 2, missing)
    shape = chain.shape([conv.outputs, conv.channels, groups, packed, *others])
    filters = chain.add("Reshape", filters, shape)
    filters = chain.add("Transpose", filters, perm=[0, 3, 1, 2, *range(4, 4 + len(others))])
    shape = chain.shape([conv.outputs, packed * conv.channels, groups, *others])
    return field, chain.add("Reshape", filters, shape)


def _sum_blocks(
    chain: Chain, conv: Convolution, field: str, filters: str, block: int, round_sum: Round
) -> str:
    """Block of channels after block, and in each position after position: a Scan over the blocks, or none
    where there is one."""
    blocks = math.ceil(conv.channels / block)
    missing = blocks * block - conv.channels
    # A filter of one position for each block and position. Where there is one group, the positions of the
    # result are the columns of a matrix product, which is faster than a convolution.
    filters = pad_end(chain, filters, conv.rank, 1, missing)
    filters = chain.add("Reshape", filters, chain.shape([0, blocks, block, conv.taps]))
    filters = chain.add("Transpose", filters, perm=[1, 3, 0, 2])
    ones = [1] * len(conv.kernel) if conv.is_grouped else []
    filters = chain.add("Reshape", filters, chain.shape([blocks, conv.taps, conv.outputs, block, *ones]))
    whole = chain.shape([0, conv.outputs, *conv.result])
    if blocks == 1:
        filters = chain.add("Gather", filters, chain.constant(0, np.int64), axis=0)
        return chain.add("Reshape", _sum_taps(chain, conv, field, filters, "", block, round_sum), whole)
    field = chain.add("Reshape", field, chain.shape([0, conv.groups, conv.channels, *conv.field]))
    field = pad_end(chain, field, conv.rank + 1, 2, missing)
    field = chain.add("Reshape", field, chain.shape([0, conv.groups, blocks, block, *conv.field]))
    start = add_zeros(chain, [(field, 0, 1), conv.outputs, *_result_axes(conv)])
    body = Chain(f"{chain.prefix}/block")
    names = [f"{body.prefix}/{name}" for name in ("sum", "field", "filters")]
    part = body.add("Reshape", names[1], body.shape([0, conv.groups * block, *conv.field]))
    total = _sum_taps(body, conv, part, names[2], names[0], block, round_sum)
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


def _result_axes(conv: Convolution) -> Sequence[int]:
    """What a position makes has an axis for each of the field's, or one for all where it is a matrix
    product."""
    return conv.result if conv.is_grouped else [math.prod(conv.result)]


def _sum_taps(
    chain: Chain, conv: Convolution, field: str, filters: str, total: str, block: int, round_sum: Round
) -> str:
    """Add to `total` ("" for none) the products of one block of channels, kernel position by kernel position.

    `filters` has a filter of kernel size 1 for each position, a matrix where there is one group.
    """

    def multiply(part: Chain, seen: str, tap: str) -> str:
        if conv.is_grouped:
            return part.add("Conv", seen, tap, group=conv.groups)
        return part.add("MatMul", tap, part.add("Reshape", seen, part.shape([0, block, -1])))

    if conv.taps == math.prod(conv.strides) == 1:  # the window is the whole field
        tap = chain.add("Gather", filters, chain.constant(0, np.int64), axis=0)
        product = multiply(chain, field, tap)
        return round_sum(chain, chain.add("Add", total, product) if total else product)
    outputs: list[Size] = [(filters, 1, 2), *_result_axes(conv)]
    return _sum_windows(chain, field, filters, (total, outputs), conv.windows(), multiply, round_sum)


def _sum_rows(chain: Chain, conv: Convolution, field: str, filters: str, round_sum: Round) -> str:
    """As the SLIC vertex: the products of a few kernel positions of a row are one sum."""
    taps = min(SLIC_TAPS, conv.kernel[-1])
    missing = -conv.kernel[-1] % taps
    field = pad_end(chain, field, conv.rank, conv.rank - 1, missing * conv.dilations[-1])
    filters = pad_end(chain, filters, conv.rank, conv.rank - 1, missing)
    # One Conv multiplies all groups for the positions of a part of a row: in float inside, rounded outside.
    windows = conv.row_windows(taps)
    shape = [conv.outputs, conv.channels, len(windows), taps]
    parts = chain.add("Reshape", filters, chain.shape(shape))
    parts = chain.add("Transpose", parts, perm=[2, 0, 1, 3])
    ones = [1] * (len(conv.kernel) - 1)
    parts = chain.add("Reshape", parts, chain.shape([-1, conv.outputs, conv.channels, *ones, taps]))

    def multiply(part: Chain, seen: str, row: str) -> str:
        return part.add("Conv", seen, row, group=conv.groups, strides=conv.strides, dilations=conv.dilations)

    return _sum_windows(chain, field, parts, ("", [conv.outputs, *conv.result]), windows, multiply, round_sum)


def _sum_windows(
    chain: Chain,
    field: str,
    filters: str,
    start: tuple[str, Sequence[Size]],
    windows: Windows,
    multiply: Callable[[Chain, str, str], str],
    round_sum: Round,
) -> str:
    """Add one window of the field after the other times its part of `filters`, which has one for each along
    its leading axis, to a sum: its name ("" for none), and its shape without the rows."""
    total, outputs = start
    if len(windows) > MOST_UNROLLED:
        total = total or add_zeros(chain, [(field, 0, 1), *outputs])
        return _scan_windows(chain, field, filters, total, windows, multiply, round_sum)
    along, every = chain.shape(windows.axes), chain.shape(windows.steps)
    for i, (first, last) in enumerate(windows):
        seen = chain.add("Slice", field, chain.shape(first), chain.shape(last), along, every)
        product = multiply(chain, seen, chain.add("Gather", filters, chain.constant(i, np.int64), axis=0))
        total = round_sum(chain, chain.add("Add", total, product) if total else product)
    return total


def _scan_windows(
    chain: Chain,
    field: str,
    filters: str,
    total: str,
    windows: Windows,
    multiply: Callable[[Chain, str, str], str],
    round_sum: Round,
) -> str:
    """The same in a Scan over the windows."""
    body = Chain(f"{chain.prefix}/{len(chain.nodes)}/window")
    sum_, first, last, part = names = [f"{body.prefix}/{name}" for name in ("sum", "start", "end", "filters")]
    seen = body.add("Slice", field, first, last, body.shape(windows.axes), body.shape(windows.steps))
    result = round_sum(body, body.add("Add", sum_, multiply(body, seen, part)))
    inner = make_body(body, names, [result], whole=(first, last))
    tables = (chain.constant(table, np.int64) for table in (windows.starts, windows.ends))
    return chain.add("Scan", total, *tables, filters, body=inner, num_scan_inputs=3)
