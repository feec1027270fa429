"""The numbers of the cost model, each with its source. Cycles are of a tile, which all six workers share.

`PL` is graphcore/poplibs at 7eac0f26 (its cycle estimators), `notes` the project's IPU performance notes,
which collect public measurements on real C600 and Bow chips; `fitted` numbers come from the calibration data
in `benchmarks/data`, and `benchmarks/validation.py` prints what they are worth.
"""

from __future__ import annotations

WORKERS = 6
"""Worker threads of a tile; a step of one worker takes six tile cycles (IPU Programmer's Guide)."""

# Matmul and convolution (PL lib/poplin/PerformanceEstimation.hpp, ConvModel.cpp, ConvReducePlan.cpp)

PLANNED_CYCLES, FIELD_CYCLES, STREAMED_CYCLES_PER_BYTE = 1_600, 700, 0.03
"""Of each planned product beside what its plan says: zeroing, layout phases, control. Further, of a
convolution's field with its halos and, of a matmul, of each byte of a tile's inputs and partial sums.
Fitted."""
NARROW_SIDE = 64
"""Rows or columns of a product up to which this side streams past the other, which is loaded as coefficients,
although the planner's formulas may say otherwise (dense products on a Bow take what that costs; 32 to 512 fit
as well)."""
VERTEX_CYCLES, ROW_VERTEX_CYCLES = 92, 109
"""Launching a 1x1 and an nx1 AMP vertex."""
GROUP_CYCLES, IN_CHANNEL_CYCLES, OUT_CHANNEL_CYCLES = 13, 15, 25.5
"""Loops of the 1x1 vertex over groups, input channel blocks and output channel blocks."""
TAP_CYCLES = 45
"""Of the nx1 vertex for each kernel position: loop and pointer set-up."""
FP8_BLOCK_CYCLES = 280
"""Of a block of 32 by 16 fp8 weights: the C++ vertex has more overhead than the assembly of the others.
Fitted; the notes estimate 360, where no cast was counted."""
FP8_CAST_CYCLES = 5
"""Of a worker for 8 halves that become fp8: two loads, two conversions and a store. Assumed; PL's cast from
fp8 to fp8, which goes through half, takes 13."""
COEFFICIENT_BYTES_PER_CYCLE = 8
"""Loading weights into the AMP units; twice that with use128BitConvUnitLoad (PL ConvOptions.hpp)."""
REDUCE_CYCLES, REDUCE_STAGE_DEPTHS = 32, (16, 125)
"""Starting a worker of a reduction of partials, and the depths from which it takes two and three stages."""
SERIAL_SLICE_CYCLES = 63
"""Starting a worker of the dynamic slice that each part of a serially split product needs."""
REARRANGE_CYCLES_PER_BYTE = {8: 0.44, 4: 3.1, 2: 5.15}
"""Changing a layout, by the bytes that stay together (PL ConvModel.cpp, regression)."""
REARRANGE_CYCLES = 587
COPY_BYTES_PER_CYCLE = 8
"""From one place of a tile to another (Target::getMemcpyBytesPerCycle, quoted by the notes)."""

# Everything else (PL lib/popops, popnn; cycles are worker cycles for `vector` elements)

ELEMENTWISE_START, BROADCAST_START = 11, 20
SOFTMAX_CYCLES, SOFTMAX_CYCLES_PER_HALF = 2_000, 3.0
"""The stable softmax: two reductions and three passes (notes, section 3.4; the fixed part is assumed
there)."""
NORM_CYCLES, NORM_CYCLES_PER_HALF = 4_000, 3.5
"""A normalisation: two reductions and four passes (notes, section 3.5; the fixed part is assumed there)."""
REDUCTION_CYCLES = 1_250
"""Of each stage of a reduction, beside its elements (PL benchmark regression: 1,466 to 1,882 for one stage,
2,446 to 3,357 for two)."""
POOL_START, POOL_TAP_CYCLES = 600, 3
GATHER_INDEX_CYCLES, GATHER_HIT_CYCLES = 8, 19
"""Of a tile for every index that it looks at (is the row one of its own?), and for each row that is."""
FALLBACK_CYCLES_PER_ELEMENT = 6.0
"""Of an operator without a formula: dearer than the common ones, so that the estimate errs on the safe
side."""

# Host (notes, section 1.3)

HOST_CALL_SECONDS = 130e-6
"""Of a synchronous call: 0.447 ms of the least latency of ResNet-50 against 0.321 ms streamed
(graphcore/PopRT)."""
HOST_BATCH_SECONDS = 100e-6
"""The host's own work for a batch, which only shows where the chip is faster: Wide&Deep's intervals, 90 to
166 us above what the link takes (graphcore/PopRT, ByteMLPerf); fitted."""
HOST_BYTES_PER_SECOND = {"ipu1": 5.5e9, "ipu2": 5.5e9, "bow": 5.5e9, "ipu21": 9.4e9}
"""To and from the host: M2000 gateways as seen by graphcore/examples, C600 by Wide&Deep's slope."""
EXTERNAL_SYNC_CYCLES = 600
"""Target::getGlobalSyncCycles, quoted by the notes for C600."""

# Links between IPUs (notes, section 1.1: 16 GB/s a link and direction, of which PL's model lets 85 % be used)

LINK_BYTES_PER_SECOND = {"ipu1": 54.4e9, "ipu2": 54.4e9, "bow": 54.4e9, "ipu21": 27.2e9}
"""From one IPU to its neighbour: four links on a card of two, two between C600 cards (PL
lib/poplibs_test/Util.cpp, bytedance/ByteMLPerf)."""

CUT_SLACK = 0.1
"""Of an IPU's share, by which the share may be missed where the graph is cut, for the sake of smaller copies.
Chosen; PopRT's tools/auto_sharding.py too only cuts where branches join."""

# Memory of a tile (notes, section 5)

CODE_BYTES, PRODUCT_CODE_BYTES, STEP_CODE_BYTES = 8_192, 1_536, 460
"""Of every program, of each distinct planned product without its exchange code (with it, 2.0 to 2.5 kB were
seen for dense products), and of each other distinct compute set. Planning figures."""
MESSAGE_CODE_BYTES, MESSAGE_BYTES = 4, 4
"""Of exchange code for each message that a tile sends or receives (PL DynamicSlice.cpp), and the least that
one carries."""
IMBALANCE = 1.05
"""The fullest tile's share of a tensor over the mean (assumed in the notes: 5 to 10 %)."""
RESERVED_BYTES = 16_384
"""At the bottom of a tile, for the loader (osmarks/ipu-stack, on a C600)."""
CHANNEL_BLOCK_BYTES = 32
"""Of the input channels that an AMP unit takes at a time: 16 halves, 32 quarters or 8 floats (PL
getWeightsPerConvUnit)."""
