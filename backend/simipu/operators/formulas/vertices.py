"""Vertices of poplibs whose cycles the cost model counts: one literal each, with its formula.

Every number is from one of poplibs' cycle estimators (graphcore/poplibs at 7eac0f26;
docs/ipu-performance.md names file and section), except two of `Slic`, which are chosen. Cycles of a
worker become cycles of a tile times the number of workers, which take turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from popef._tools.arrays import Array
from simipu.target import FLOAT_BYTES, HALF_BYTES

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
        found: Array = np.where(
            rows < PIPELINE_DEPTH,
            self.short + self.short_row * rows,
            self.full + self.row * (rows - PIPELINE_DEPTH),
        )
        return found


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
        found: Array = self.start + groups * (self.group + in_blocks * inner)
        return found


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


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """Vertex for one input channel: every worker multiplies its rows with all columns (section
    3.3)."""

    worker: int = 25
    group: int = 11
    row: int = 6
    prologue: int = 12
    """Columns that are in the pipeline before the loop begins."""

    def cycles(
        self, groups: Array | int, rows: Array, columns: Array, element_bytes: int, workers: int
    ) -> Array:
        """Return the cycles of a tile."""
        # The workers share the rows. A row's first columns fill the pipeline; the others follow a
        # vector a cycle.
        row = self.row + np.maximum(0, columns - self.prologue) / (VECTOR_BYTES // element_bytes)
        found: Array = workers * (
            self.worker + groups * (self.group + np.ceil(rows / workers) * row)
        )
        return found


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Vertex that computes every output separately, a vector of both operands at a time (section
    3.3)."""

    output: int = 7
    half_output: int = 4
    """Additional cycles if operands and sums are halves."""
    row: int = 10

    def cycles(
        self,
        groups: Array | int,
        outputs: Array,
        rows: Array,
        k: int,
        widths: tuple[int, int],
        workers: int,
    ) -> Array:
        """Return the cycles of a tile for `k` channels of elements and partial sums of those
        `widths` in bytes."""
        element_bytes, partial_bytes = widths
        vector = VECTOR_BYTES // element_bytes
        # Rows that do not begin at 64 bits are read twice.
        loads = 1 if k % vector == 0 else 2
        more = self.half_output if element_bytes == partial_bytes == HALF_BYTES else 0
        # The workers share the outputs, rows times columns; each row starts anew.
        each = self.output + more + math.ceil(k / vector) * loads
        worker = groups * (np.ceil(outputs / workers) * each + self.row * np.ceil(rows / workers))
        found: Array = SUPERVISOR_START + workers * worker
        return found


@dataclass(frozen=True, slots=True)
class PartialsReduction:
    """Sum of the partial sums of several tiles in up to three stages (ConvReducePlan.cpp, section
    3.5)."""

    worker: int = 32
    loop: int = 8
    partial: int = 3
    stage_depths: tuple[int, int] = (16, 125)
    """Numbers of partial sums of an output from which it takes two stages, and three: messages cost
    memory."""

    def cycles(self, outputs: Array, depth: Array, partial_bytes: int, workers: int) -> Array:
        """Return the cycles of a tile with `outputs` outputs; 0 for one sum of each."""
        # `depth` sums of each output lie on as many tiles. In a stage a tile adds up the root of
        # them, so that all stages are equally deep:
        #     12 sums    one stage     12 -> 1
        #     64 sums    two stages    64 -> 8 -> 1
        #    216 sums    three         216 -> 36 -> 6 -> 1
        # The loop adds two vectors at a time, 4 floats or 8 halves.
        shallow, deep = self.stage_depths
        stages = np.where(depth < shallow, 1, np.where(depth < deep, 2, 3))
        stage_depth = np.ceil(depth ** (1 / stages))
        loops = np.ceil(np.ceil(outputs / (2 * VECTOR_BYTES // partial_bytes)) / workers)
        each = self.worker + loops * (self.partial * stage_depth + self.loop)
        return np.where(depth > 1, stages * workers * each, 0)


@dataclass(frozen=True, slots=True)
class SerialSlice:
    """Dynamic slice of its weights for each part of a serially split product (section 3.5)."""

    worker: int = 63
    vector: int = 2
    """Cycles for each vector."""
    supervisor: int = 25

    def cycles(self, num_bytes: Array, workers: int) -> Array:
        """Return the cycles of a tile for `num_bytes` bytes."""
        vectors = num_bytes / (VECTOR_BYTES * workers)
        found: Array = workers * (self.worker + self.vector * vectors) + self.supervisor
        return found


@dataclass(frozen=True, slots=True)
class Vmac:
    """Vertex for depthwise convolutions, eight channels at a time: a worker adds up the kernel's
    positions (section 3.4)."""

    position: int = 25
    tap: int = 3

    def cycles(self, positions: int, taps: int, workers: int) -> int:
        """Return the cycles of a tile with `positions` output positions of 16 channels, which take
        two rounds."""
        # The first kernel position is part of a position's own cycles.
        return (
            2 * math.ceil(positions / workers) * workers * (self.position + self.tap * (taps - 1))
        )


@dataclass(frozen=True, slots=True)
class Slic:
    """Vertex for groups of few channels in blocks of 16: four kernel positions of a row at a time
    (section 3.4)."""

    start: int = 150
    """Start cycles. Chosen."""
    load: int = 50
    """Cycles of loading a block's weights for such a sub-kernel."""
    run: int = 25
    """Cycles of a worker for each row of the field."""
    zeroed: int = 8
    """Cycles of an output position, whose partial sums are set to zero, and cast at the end.
    Chosen."""
    taps: int = 4

    def cycles(
        self,
        positions: int,
        runs: int,
        row: float,
        kernel: tuple[int, ...],
        passes: int,
        workers: int,
    ) -> float:
        """Return the cycles of a tile with `positions` output positions. A worker has `runs` rows,
        which take `row` cycles a pass."""
        # A kernel of 3 x 5 has 3 rows of ceil(5 / 4) sub-kernels. For each of them the weights are
        # loaded and the whole field passes by, twice with float partials.
        sub_kernels = math.ceil(kernel[-1] / self.taps) * math.prod(kernel[:-1])
        worker = runs * (self.run + row)
        return (
            self.start
            + sub_kernels * passes * (self.load + workers * worker)
            + self.zeroed * positions
        )


@dataclass(frozen=True, slots=True)
class Transform:
    """Cost of changing a layout as poplin's planner estimates it: copying the elements one by one,
    a quarter more than their bytes, and exchanging them (ConvModel.cpp, addTransformCycleEstimate;
    section 3.6)."""

    copy: float = 5 / 4
    copy_bytes: int = 8
    """Maximum number of bytes that are copied in a cycle."""
    exchange: float = 1 / 4

    def cycles(self, elements: float, element_bytes: int) -> float:
        """Return the cycles of a tile with `elements` elements. The planner counts quarters as the
        halves that they become."""
        width = max(HALF_BYTES, element_bytes)
        # An element is a copy of its own, however narrow: 2 bytes take as long as 8 would.
        return elements * width * (self.copy / min(self.copy_bytes, width) + self.exchange)


TRANSFORM = Transform()
OUTER_PRODUCT, DOT_PRODUCT = OuterProduct(), DotProduct()
PARTIALS_REDUCTION, SERIAL_SLICE = PartialsReduction(), SerialSlice()
VMAC, SLIC = Vmac(), Slic()
REARRANGE_START = 587
REARRANGE_CYCLES_PER_BYTE = {8: 0.44, 4: 3.1, 2: 5.15}
"""Cycles of changing a layout, by the bytes that stay together (poplin's ConvModel.cpp, a
regression; section 3.6)."""


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """Inner loop of a worker: cycles for a vector of `vector` elements (popops' and popnn's
    estimators, section 4)."""

    cycles: float
    vector: int


WIDENED = InnerLoop(2, 8)
"""Loop that widens quarters to halves (section 4)."""


@dataclass(frozen=True, slots=True)
class InnerVector:
    """Vertex that adds or multiplies a row of halves to many rows. For each piece of the row a
    worker processes a share of the rows, 8 halves in 2 cycles (popopsCycleEstimators.cpp 697-1186;
    section 4.1)."""

    worker: int = 22
    piece: int = 12
    vector: int = 15
    """Cycles for each 8 halves of a piece, before and after the loop over rows."""
    row: int = 2
    width: int = 8
    grain: int = 4
    """Number of halves of which a piece must be a multiple; else the operand is copied out."""

    def cycles(self, pieces: float, run: int, repeats: float, workers: int) -> float:
        """Return the cycles of a tile with `pieces` of `run` halves, each of which is repeated for
        `repeats` rows."""
        # The workers share the rows. 8 halves of the vector stay in registers while a worker goes
        # down its rows; `vector` includes the first of them:
        #
        #     gamma   |8 halves|8 halves|      for each 8 halves: vector + row * (rows - 1)
        #     rows    |   |    |   |    |
        #             |   v    |   v    |
        rows = math.ceil(math.ceil(repeats) / workers)
        each = self.piece + math.ceil(run / self.width) * (self.vector + self.row * (rows - 1))
        return SPREAD_START + workers * (self.worker + math.ceil(pieces) * each)


@dataclass(frozen=True, slots=True)
class OuterVector:
    """Vertex with a value for each row. The workers share the rows or, if these are long, the
    columns of each row (popopsCycleEstimators.cpp 232-300; section 4.1)."""

    worker: int = 15
    row: int = 7
    broken_row: int = 25
    """Cycles of a row that does not end at 64 bits."""
    vector: int = 2

    def cycles(
        self, rows: int, columns: int, element_bytes: int, workers: int, grain: int
    ) -> float:
        """Return the cycles of a tile with `rows` rows of `columns` contiguous elements, in
        multiples of `grain`."""
        width = VECTOR_BYTES // min(VECTOR_BYTES, max(HALF_BYTES, element_bytes))
        row = self.row if grain % width == 0 else self.broken_row
        # Short rows would leave workers without a vector: each worker takes whole rows. Of long
        # rows all workers take a part, one row after the other.
        if columns < workers * width:
            loops = math.ceil(rows / workers) * (row + self.vector * math.ceil(columns / width))
        else:
            loops = rows * (row + self.vector * math.ceil(math.ceil(columns / workers) / width))
        return SPREAD_START + workers * (self.worker + loops)


@dataclass(frozen=True, slots=True)
class ContinuousReduce:
    """Vertex that adds up rows of contiguous elements, each by one worker
    (CycleEstimationFunctions.cpp of popops; section 5.1)."""

    worker: int = 17
    row: int = 12
    broken_row: int = 40
    broken_vector: int = 6
    """Cycles of a vector in the general vertex, which supports rows that do not end at 64 bits."""

    def cycles(
        self, rows: int, columns: int, element_bytes: int, workers: int, grain: int
    ) -> float:
        """Return the cycles of a tile with `rows` rows of `columns` elements, in multiples of
        `grain`."""
        # A worker loads a row's elements a vector a cycle, and adds them meanwhile. Rows that end
        # within a vector go to the general vertex.
        width = min(FLOAT_BYTES, element_bytes)
        vectors = math.ceil(columns * width / VECTOR_BYTES)
        is_broken = grain * width % VECTOR_BYTES
        each = self.broken_row + self.broken_vector * vectors if is_broken else self.row + vectors
        return SPREAD_START + workers * (self.worker + math.ceil(rows / workers) * each)


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
CONTINUOUS_REDUCE = ContinuousReduce()
INNER_VECTOR, OUTER_VECTOR = InnerVector(), OuterVector()
SPREAD_START, UNARY_START, BINARY_START, BROADCAST_START = 11, 17, 28, 20
"""Start cycles of a vertex over a tile's elements: of the supervisor, and of each worker, by its
operands (section 4)."""
GATHER_WORKER, GATHER_INDEX, GATHER_HIT = 30, 8, 19
"""Cycles of the multi-slice vertex: of a worker; of a tile for every index that it checks (is the
row one of its own?), and for each such row (section 6.2)."""
POOL_POSITION, POOL_TAP = 5, 3
"""Cycles of a worker for a vector of four channels at an output position, and for each kernel
position of it (section 5.4)."""
