"""Vertices of poplibs whose cycles the cost model counts, each with its formula.

Every number is from one of poplibs' cycle estimators (graphcore/poplibs at 7eac0f26;
docs/ipu-performance.md names file and section). Cycles of a worker become cycles of a tile times
the number of workers, which take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from popef._tools.arrays import Array
from simipu.chip.target import FLOAT_BYTES, HALF_BYTES

VECTOR_BYTES = 8
"""Bytes that a worker loads or stores in a cycle: 64 bits, 4 halves or 2 floats (poplibs,
Target::getVectorWidth)."""
PIPELINE_DEPTH = 3
"""Number of rows that the AMP units process at a time: fewer rows are not streamed but pushed
through, one by one."""


@dataclass(frozen=True, slots=True)
class RowLoop:
    """Cycles of a worker whose AMP units process `n` rows with one block of weights.

    n:       0       1       2     | 3      4      5 ...
    cycles:  short + n * short_row | full + (n - 3) * row
    """

    short: int
    short_row: int
    full: int
    row: int

    def cycles(self, rows: Array) -> Array:
        """Return the cycles of a worker for `rows` rows."""
        cycles: Array = np.where(
            rows < PIPELINE_DEPTH,
            self.short + self.short_row * rows,
            self.full + self.row * (rows - PIPELINE_DEPTH),
        )
        return cycles


@dataclass(frozen=True, slots=True)
class AmpVertex:
    """Loops around the blocks of weights: groups, blocks of input channels, of output channels.

    start
    for each group                      + group
        for each input block            + in_block
            for each output block      + out_block + the block itself: load, then stream rows
    """

    start: float
    group: float = 0
    in_block: float = 0
    out_block: float = 0

    def cycles(
        self, groups: Array | int, in_blocks: Array, out_blocks: Array, block: Array
    ) -> Array:
        """Return the cycles of a tile if each block takes `block` cycles."""
        inner = self.in_block + out_blocks * (self.out_block + block)
        cycles: Array = self.start + groups * (self.group + in_blocks * inner)
        return cycles


# PerformanceEstimation.hpp of poplin, getConvPartial1x1... and getConvPartialnx1... (section 3.2).
# The 1x1 vertex's loop over output channels takes 19, and 6 or 7 for each pass of the units.
AMP_1X1 = AmpVertex(start=92, group=13, in_block=15, out_block=25.5)
AMP_1X1_ROWS = RowLoop(short=17, short_row=9, full=31, row=4)
AMP_1X1_FLOAT_ROWS = RowLoop(short=47, short_row=0, full=46, row=8)
AMP_1X1_FLOAT_ZERO = RowLoop(short=2, short_row=8, full=26, row=8)
"""Additional cycles of its first pass, which sets the sums of floats to zero, one output channel
after the other."""
AMP_1X1_QUARTER = AmpVertex(start=92)
"""Vertex for fp8, whose loops are part of `Calibration.fp8_block_cycles`."""
AMP_QUARTER_ROW = 4
"""Cycles of a worker for a row of quarters, streamed or not: 32 channels of 8 bits at 8 bytes a
cycle."""

AMP_NX1 = AmpVertex(start=109, group=16, in_block=14, out_block=14)
AMP_NX1_ROWS = RowLoop(short=19, short_row=4, full=28, row=4)
AMP_NX1_FLOAT_ROWS = RowLoop(short=16, short_row=11, full=39, row=8)
AMP_NX1_TAP, AMP_NX1_WORKER = 45, 18
"""Cycles of the nx1 vertex: for each kernel position, loop and pointers; and of each worker for it,
before its first row."""

SUPERVISOR_START = 92
"""Cycles of launching the workers of a product's vertex from the supervisor."""
CAST_WORKER, CAST_VECTOR = 26, 2
"""Start cycles of a worker that casts partial sums, and elements that it casts in a cycle (section
3.5)."""


def outer_product_cycles(
    groups: Array | int, rows: Array, columns: Array, element_bytes: int, workers: int
) -> Array:
    """Return the cycles of a tile with the vertex for one input channel: every worker multiplies
    its rows with all columns (section 3.3)."""
    # A worker starts in 25 cycles, a group in 11. The workers share the rows. A row takes 6 cycles
    # and fills the pipeline with its first 12 columns; the others follow a vector a cycle.
    row = 6 + np.maximum(0, columns - 12) / (VECTOR_BYTES // element_bytes)
    cycles: Array = workers * (25 + groups * (11 + np.ceil(rows / workers) * row))
    return cycles


def dot_product_cycles(
    groups: Array | int, outputs: Array, rows: Array, k: int, widths: tuple[int, int], workers: int
) -> Array:
    """Return the cycles of a tile with the vertex that computes every output separately, a vector
    of both operands at a time (section 3.3). There are `k` channels of elements and partial sums of
    those `widths` in bytes."""
    element_bytes, partial_bytes = widths
    vector = VECTOR_BYTES // element_bytes
    # Rows that do not begin at 64 bits are read twice.
    loads = 1 if k % vector == 0 else 2
    # An output takes 7 cycles, and 4 more if operands and sums are halves.
    more = 4 if element_bytes == partial_bytes == HALF_BYTES else 0
    sum_cycles = 7 + more + math.ceil(k / vector) * loads
    # The workers share the outputs, rows times columns; each row starts anew, in 10 cycles.
    worker = groups * (np.ceil(outputs / workers) * sum_cycles + 10 * np.ceil(rows / workers))
    cycles: Array = SUPERVISOR_START + workers * worker
    return cycles


def partials_reduction_cycles(
    outputs: Array, depth: Array, partial_bytes: int, workers: int
) -> Array:
    """Return the cycles of a tile that adds up the partial sums of several tiles, for `outputs`
    outputs; 0 for one sum of each (ConvReducePlan.cpp, section 3.5)."""
    # `depth` sums of each output lie on as many tiles. In a stage a tile adds up the root of
    # them, so that all stages are equally deep. From 16 sums on there are two stages, from 125 on
    # three, because messages cost memory:
    #     12 sums    one stage     12 -> 1
    #     64 sums    two stages    64 -> 8 -> 1
    #    216 sums    three         216 -> 36 -> 6 -> 1
    # The loop adds two vectors at a time, 4 floats or 8 halves.
    shallow, deep = 16, 125
    stages = np.where(depth < shallow, 1, np.where(depth < deep, 2, 3))
    stage_depth = np.ceil(depth ** (1 / stages))
    loops = np.ceil(np.ceil(outputs / (2 * VECTOR_BYTES // partial_bytes)) / workers)
    output_cycles = 32 + loops * (3 * stage_depth + 8)
    return np.where(depth > 1, stages * workers * output_cycles, 0)


SLICE_WORKER = 63
"""Cycles of a worker of a dynamic slice, in addition to the vectors that it copies."""


def serial_slice_cycles(num_bytes: Array, workers: int) -> Array:
    """Return the cycles of a tile for a dynamic slice of `num_bytes` bytes of its weights, one for
    each part of a serially split product (section 3.5)."""
    # A vector takes 2 cycles, the supervisor 25.
    vectors = num_bytes / (VECTOR_BYTES * workers)
    cycles: Array = workers * (SLICE_WORKER + 2 * vectors) + 25
    return cycles


_FOUR = 4
"""Channels, and kernel positions of a row, that the SLIC vertex processes at a time; channels of
the narrowest VMAC vertex."""


def _iter_pieces(field: tuple[int, int], workers: int) -> Iterator[tuple[int, int, int]]:
    """Yield, for each worker, the positions of its first piece of a row, the number of whole rows
    that follow, and the positions of its last piece (ConvUtilInternal.cpp,
    partitionConvPartialByWorker)."""
    # The workers take equal numbers of positions, row after row: of five rows of 28 each has 23 or
    # 24 of them, which mostly belong to two rows.
    rows, width = field
    for worker in range(workers):
        begin, end = (rows * width * i // workers for i in (worker, worker + 1))
        first, last = -(-begin // width), end // width
        if first > last:
            yield end - begin, 0, 0
        else:
            yield first * width - begin, last - first, end - last * width


def vmac_cycles(
    blocks: tuple[int, int],
    field: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,  # noqa: ARG001 (it moves a pointer only)
    partial_bytes: int,
    workers: int,
) -> float:
    """Return the cycles of a tile with the vertex for depthwise convolutions: a worker adds up a
    row of the kernel at an output position, 4 channels or, with half partials, 8 at a time.

    `blocks` are the number of blocks and the channels of a block, `field` the rows and width of the
    result (PerformanceEstimation.hpp, getConvPartialVerticalMac...; section 3.4).
    """
    # The worker's loop runs over its positions and the rows of the kernel, each of which stores its
    # sums and loads them again. Each worker has sums of its own for all positions, which are set to
    # zero before and added up afterwards.
    num_blocks, channels = blocks
    positions = field[0] * field[1]
    floats = partial_bytes > HALF_BYTES
    share = math.ceil(positions / workers) * kernel[0]
    if channels > _FOUR:
        eights = channels // 8
        worker = (13 if eights == 1 else 25) + eights * share * (25 + 3 * (kernel[1] - 1))
    else:
        worker = 18 + floats + share * (13 + 2 * floats + 2 * (kernel[1] - 1))
    zeroed = 4 + math.ceil(positions / (2 if floats else 4))
    added = (7 + 2 * floats + (1 + floats) * (workers - 1)) * math.ceil(positions / workers)
    return 100 + num_blocks * (zeroed + 56 + workers * worker + 10 + added)


SLIC_MAX_STRIDE = 2
"""Largest stride along a row that the SLIC vertex processes."""
_SLIC_SHORT = 5
"""Positions of a row below which the SLIC vertex pushes them through one by one."""


def slic_cycles(
    blocks: tuple[int, int],
    field: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    partial_bytes: int,
    workers: int,
) -> float:
    """Return the cycles of a tile with the vertex for groups of few channels: four channels and
    four kernel positions of a row at a time.

    `blocks` are the number of blocks and the groups of a block, `field` the rows and width of the
    result (PerformanceEstimation.hpp, getConvPartialSlic...; section 3.4).
    """
    # A kernel of 3 x 5 has 3 rows of ceil(5 / 4) sub-kernels. For each of them, and for each four
    # channels of a block, the weights are loaded and the whole field passes by, twice with float
    # partials. A worker starts each piece of a row in 10 cycles and fills the pipeline in 15, which
    # include 5 positions; with a stride of two a position takes two cycles. The estimator does not
    # repeat the first sub-kernel for each four channels of a wider block, which the vertex does.
    num_blocks, groups = blocks
    floats = partial_bytes > HALF_BYTES
    # Blocks of 8 and 16 groups are taken four groups at a time.
    fours = max(1, groups // _FOUR)
    sub_kernels = math.ceil(kernel[1] / _FOUR) * kernel[0]

    def row(length: int) -> int:
        if stride > 1:
            return 9 + 2 * length
        return 13 + length if length < _SLIC_SHORT else 10 + length

    def piece(length: int) -> int:
        return (10 + (1 + 2 * row(length) if floats else row(length))) * (length > 0)

    rows = max(
        piece(before) + full * piece(field[1]) + piece(after)
        for before, full, after in _iter_pieces(field, workers)
    )
    inner = workers * (17 + 4 * (fours > 1) + rows)
    # Weights are rearranged by the workers, unless a block is one group of four channels.
    moved = {1: 0, 2: 12, 4: 10}.get(groups, 11)
    load = 37 + moved * workers if moved else 34
    sub_kernel = fours * (load + inner + 21) + 15
    return 28 + num_blocks * (21 + sub_kernels * (sub_kernel + 6))


def transform_cycles(elements: float, element_bytes: int) -> float:
    """Return the cycles of a tile for changing the layout of `elements` elements as poplin's
    planner estimates it: copying them one by one, a quarter more than their bytes, and exchanging
    them. The planner counts quarters as the halves that they become (ConvModel.cpp,
    addTransformCycleEstimate; section 3.6)."""
    width = max(HALF_BYTES, element_bytes)
    # An element is a copy of its own, however narrow: 2 bytes take as long as 8 would.
    return elements * width * (5 / 4 / min(8, width) + 1 / 4)


REARRANGE_CYCLES_PER_BYTE = {8: 0.44, 4: 3.1, 2: 5.15}
"""Cycles of changing a layout, by the bytes that stay together (poplin's ConvModel.cpp, a
regression, without its constant, which is that of the superstep; section 3.6)."""


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """Inner loop of a worker: cycles for a vector of `vector` elements (popops' and popnn's
    estimators, section 4)."""

    cycles: float
    vector: int


WIDENED = InnerLoop(2, 8)
"""Loop that widens quarters to halves (section 4)."""
INNER_GRAIN = 4
"""Number of halves of which a piece of the inner vector's vertex must be a multiple; else the
operand is copied out."""


def inner_vector_cycles(pieces: float, run: int, repeats: float, workers: int) -> float:
    """Return the cycles of a tile with the vertex that adds or multiplies a row of halves to many
    rows. There are `pieces` of `run` halves, each of which is repeated for `repeats` rows
    (popopsCycleEstimators.cpp 697-1186; section 4.1)."""
    # The workers share the rows, and start in 22 cycles, a piece in 12. 8 halves of the vector stay
    # in registers while a worker goes down its rows, 2 cycles each; the 15 cycles before and after
    # that loop include the first row:
    #
    #     gamma   |8 halves|8 halves|      for each 8 halves: 15 + 2 * (rows - 1)
    #     rows    |   |    |   |    |
    #             |   v    |   v    |
    rows = math.ceil(math.ceil(repeats) / workers)
    run_cycles = 12 + math.ceil(run / 8) * (15 + 2 * (rows - 1))
    return SPREAD_START + workers * (22 + math.ceil(pieces) * run_cycles)


def outer_vector_cycles(
    rows: int, columns: int, element_bytes: int, workers: int, grain: int
) -> float:
    """Return the cycles of a tile with the vertex that has a value for each row: `rows` rows of
    `columns` contiguous elements, in multiples of `grain` (popopsCycleEstimators.cpp 232-300;
    section 4.1)."""
    # A worker takes 15 cycles, a row 7, or 25 if it does not end at 64 bits, a vector 2.
    width = VECTOR_BYTES // min(VECTOR_BYTES, max(HALF_BYTES, element_bytes))
    row = 7 if grain % width == 0 else 25
    # Short rows would leave workers without a vector: each worker takes whole rows. Of long
    # rows all workers take a part, one row after the other.
    if columns < workers * width:
        loops = math.ceil(rows / workers) * (row + 2 * math.ceil(columns / width))
    else:
        loops = rows * (row + 2 * math.ceil(math.ceil(columns / workers) / width))
    return SPREAD_START + workers * (15 + loops)


def continuous_reduce_cycles(
    rows: int, columns: int, element_bytes: int, workers: int, grain: int
) -> float:
    """Return the cycles of a tile with the vertex that adds up rows of contiguous elements, each by
    one worker: `rows` rows of `columns` elements, in multiples of `grain`
    (CycleEstimationFunctions.cpp of popops; section 5.1)."""
    # A worker starts in 17 cycles, a row in 12. It loads a row's elements a vector a cycle, and
    # adds them meanwhile. Rows that end within a vector go to the general vertex: 40 cycles a row,
    # 6 a vector.
    width = min(FLOAT_BYTES, element_bytes)
    vectors = math.ceil(columns * width / VECTOR_BYTES)
    row_cycles = 40 + 6 * vectors if grain * width % VECTOR_BYTES else 12 + vectors
    return SPREAD_START + workers * (17 + math.ceil(rows / workers) * row_cycles)


@dataclass(frozen=True, slots=True)
class RowVertex:
    """Vertex that computes an operator on whole rows, each by all workers."""

    row: int
    """Cycles of a worker for each row."""
    vector: float
    """Cycles for each 8 bytes of the worker's part."""
    least_part: int = 48
    """Minimum number of elements of a part; shorter rows are not cut: a vector for each worker."""

    def cycles(self, rows: int, length: int, element_bytes: int, workers: int) -> float:
        """Return the cycles of a tile with `rows` rows of `length` elements."""
        vectors = math.ceil(math.ceil(length / workers) * element_bytes / VECTOR_BYTES)
        return SPREAD_START + workers * rows * (self.row + vectors * self.vector)


FAST_NORM = RowVertex(row=60, vector=6)
"""Vertex of a norm: sums and sums of squares while the row is loaded, then a pass that subtracts,
multiplies twice and adds. These are loops of 1, 1 and 4 instructions for 4 halves
(graphcore/PopTransformer, custom_ops/NormCE.S). The start of a row is a rough count."""
FAST_SOFTMAX = RowVertex(row=40, vector=10.25)
"""Vertex of a softmax: 40 and 41 cycles for 16 keys, as measured for another fused kernel on a C600
(osmarks/ipu-stack)."""
SPREAD_START, UNARY_START, BINARY_START, BROADCAST_START = 11, 17, 28, 20
"""Start cycles of a vertex over a tile's elements: of the supervisor, and of each worker, by its
operands (section 4)."""
GATHER_WORKER, GATHER_INDEX, GATHER_HIT = 30, 8, 19
"""Cycles of the multi-slice vertex: of a worker; of a tile for every index that it checks (is the
row one of its own?), and for each such row (section 6.2)."""
POOL_POSITION, POOL_TAP = 5, 3
"""Cycles of a worker for a vector of four channels at an output position, and for each kernel
position of it (section 5.4)."""
