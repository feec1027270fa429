"""Planning of matmuls and convolutions: the cheapest split over the tiles, as by poplin's planner.

A product is `groups` times rows x k x n, for each of `taps` kernel positions:

                n_split * n_serial
                 +-----+-----+
               k |  W  |     |  k_split * k_serial
                 +-----+-----+
        k
     +-----+     +-----+-----+
     |  F  |     | sums|     |  row_split
     +-----+     +-----+-----+

A tile has rows/row_split x k/k_split of the field F, k/k_split x n/n_split of the weights W, and
makes rows/row_split x n/n_split sums. With k_split > 1 these are partial sums of k_split tiles,
which are added up afterwards. Serial parts run one after another on the same tiles, so that they
need less memory at once.

A tile computes its part with the AMP units or, if most of them would be idle, with the dot product
or outer product vertex. The vertices for groups of few channels are in `narrow.py`. The
search and the costs follow graphcore/poplibs lib/poplin (ConvPlan.cpp, ConvModel.cpp,
PerformanceEstimation.hpp); docs/ipu-performance.md, section 3, lists the parts that are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from popef._tools.arrays import Array
from simipu.chip.target import HALF_BYTES, Target
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.calibration import Calibration
from simipu.operators.formulas.layout import BLOCK
from simipu.operators.formulas.splits import find_rounds, find_splits
from simipu.operators.formulas.spread import Axis, Grid

FEWER_UNITS = 8
"""Smaller number of AMP units that poplin also tries if a chip has more (ConvVertexType.cpp): fewer
output channels are padded, and fewer weights loaded at a time."""
PIECES_OF_A_ROW = 1.5
"""Pieces in which a row of a field's part arrives, because its maker split the field elsewhere.
Chosen for the sum of EfficientNet's exchange code (section 8); the two extremes are 1, the same
splits, and 2."""


@dataclass(frozen=True, slots=True)
class Product:
    """Product to plan: its sizes, the bytes of an element (1 is fp8) and of a partial sum, and what
    a convolution adds to a matmul."""

    groups: int
    rows: int
    k: int
    n: int
    element_bytes: int = 2
    partial_bytes: int = 2
    taps: int = 1
    width: int = 1
    """Output positions of a field row, which a worker of the nx1 vertex processes at a time."""
    inputs_per_row: float = 1.0
    """Input positions that must be on a tile for each output position; more than one with strides
    and halos."""
    convolution: bool = False
    """True if rows are positions of a field that must not be swapped with the output channels."""
    field: bool = False
    """True if rows are positions of a field, whatever the kernel: parts of it have two
    dimensions."""
    stored: bool = False
    """True if the n columns are weights, which the planner lays out as the operand that it
    prefers."""
    packed_bytes: int = 0
    """Bytes, over all tiles, of the copy of an input with kernel positions in its channels."""
    expanded: int = 1
    """Number of kernel positions that are whole dimensions of the kernel in the input channels."""

    @property
    def is_quarter(self) -> bool:
        """Return whether its operands are fp8."""
        return self.element_bytes < HALF_BYTES

    @property
    def is_float(self) -> bool:
        """Return whether its operands are fp32."""
        return self.element_bytes > HALF_BYTES

    @property
    def macs(self) -> int:
        """Number of multiply-adds."""
        return self.groups * self.rows * self.k * self.n * self.taps


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Compiler options that a plan depends on."""

    available_memory_proportion: float = 0.6
    use_128bit_conv_unit_load: bool = False

    def limit_bytes(self, target: Target) -> float:
        """Return the bytes of a tile that a plan may take for copies and partial sums."""
        return self.available_memory_proportion * target.bytes_per_tile


@dataclass(frozen=True, slots=True)
class Plan:
    """Cheapest plan found; cycles are those of the busiest tile."""

    compute: int
    exchange: int
    steps: int
    """Number of supersteps, each of which ends in a sync."""
    tiles: int
    temporary_bytes: int
    """Bytes of a tile for copies of the operands and partial sums, which availableMemoryProportion
    limits."""
    copies: tuple[int, int, int]
    """Bytes of a tile for copies of the rows, of the columns, and of the sums; sums that are the
    result are not a copy."""
    receivers: tuple[int, int]
    """Number of tiles that receive the same part of the rows, and of the columns. Those of the rows
    each have a part of a row of the result."""
    k_parts: int
    """Number of tiles over which the sums are split."""
    serial: int
    """Number of parts that follow one another."""
    messages: int
    """Messages that a tile receives, each in one piece: blocks of channels of a field row, blocks
    of weights, partial sums."""
    result_elements: int
    """Elements of the result on the fullest tile."""
    swapped: bool
    """True if the operands' roles were exchanged."""
    splits: str
    """Description of the splits."""
    kind: str
    """Name of the vertex, if it is not that of the AMP units."""
    fits: bool
    """True if `temporary_bytes` respect availableMemoryProportion; otherwise it is the plan with
    the least memory."""
    rows: int
    """Rows of the fullest tile, which the AMP vertex's workers share."""
    result: Grid
    """Elements of the result on each tile."""
    columns: Grid
    """Elements of the columns, such as weights, on each tile."""

    @property
    def cycles(self) -> int:
        """Cycles without syncs."""
        return self.compute + self.exchange

    def copied_bytes(self, *, stay: tuple[bool, bool] = (False, False)) -> int:
        """Return the bytes of a tile for copies, beside the operands and the result. Rows or
        columns that `stay` are already where they are read: they are copied only if several tiles
        read them, or several parts one after the other."""
        *operands, sums = self.copies
        return sums + sum(
            0 if here and receivers == self.serial == 1 else size
            for size, receivers, here in zip(operands, self.receivers, stay, strict=True)
        )


@lru_cache(maxsize=16384)
def plan_product(
    product: Product, target: Target, options: PlanOptions, calibration: Calibration
) -> Plan:
    """Return the cheapest plan, with operands swapped or not; equal products are planned once.

    For a matmul with weights the planner prefers plans where the weights stream past the rows,
    which are loaded as coefficients. It charges the others for rearranging both operands and the
    result (ConvModel.cpp, addTransformCycleEstimate). Here that charge also counts as time,
    although a run does not rearrange the weights: otherwise a smaller product could take longer.
    Two activations are rearranged in any case. The result is the fastest plan that respects
    availableMemoryProportion, or the smallest if none does.
    """
    swapped = replace(product, rows=product.n, n=product.rows)
    if product.convolution:
        return _plan(product, target, options, calibration, swapped=False)
    first = _plan(swapped, target, options, calibration, swapped=True)
    second = _plan(product, target, options, calibration, swapped=False)
    if product.stored:
        # The layout of both operands and the result changes.
        sizes = product.rows * product.k + product.k * product.n + product.rows * product.n
        elements = product.groups * sizes / second.tiles
        charge = math.ceil(v.transform_cycles(elements, product.element_bytes))
        second = replace(second, compute=second.compute + charge)

    # Plans that fit come first, by cycles; plans that do not, by memory.
    def objective(plan: Plan) -> tuple[bool, float, float]:
        cycles = plan.cycles + plan.steps * calibration.step_cycles(target)
        return not plan.fits, 0 if plan.fits else plan.temporary_bytes, cycles

    return min(first, second, key=objective)


@dataclass(frozen=True, slots=True)
class _Ways:
    """Ways to split a product that are tried, side by side: an array has an element for each of
    them. Counts are for the busiest tile and, unless noted, for one serial part of one group."""

    product: Product
    target: Target
    groups: Array
    """Groups that a tile computes one after the other."""
    shares: Array
    """Number of shares of the groups; each share has tiles of its own."""
    channels: int
    """Input channels of a block: the AMP units take no fewer at a time."""
    units: Array
    """Output channels of a block: one for each AMP unit at work."""
    row_split: Array
    k_split: Array
    n_split: Array
    n_serial: Array
    serial: Array
    """Parts that follow one another, of k or of n."""
    rows: Array
    in_blocks: Array
    out_blocks: Array
    n: Array
    """Output channels; the padding of the last block is not stored."""
    positions: Array
    """Positions of the input: the rows' with their halo."""
    input_bytes: Array
    padded_bytes: Array
    """Bytes of the input as it lies on the tile, with its blocks of channels padded."""
    weight_bytes: Array
    partial_bytes: Array
    is_cast: Array
    """True if sums become narrower without being added up: then a pass of its own casts them."""

    @staticmethod
    def of(product: Product, target: Target, *, serial: bool) -> _Ways:
        """Return all ways to split a product. Each share of the groups has its tiles; k and n are
        spread over them, and rows over the remaining tiles."""
        channels = target.channel_block_bytes // product.element_bytes
        units = target.amp_units(product.element_bytes, product.partial_bytes)
        fewer = units > FEWER_UNITS and not product.is_quarter
        k_blocks = math.ceil(product.k / channels)
        sizes = product.groups, product.rows, k_blocks, product.n
        rounds = [
            find_splits(sizes, round_, width, target, serial)
            for round_ in find_rounds(product.groups, target.num_tiles)
            for width in ((units, FEWER_UNITS) if fewer else (units,))
        ]
        groups, shares, units_at_work, n_blocks, k_split, n_split, n_serial, k_serial, rows = (
            np.hstack(rounds)
        )
        # Sizes of a part are rounded up to whole blocks of channels, because the AMP units take no
        # fewer. `k` and `n` are what is stored of them: no more than the product has.
        row_split = np.ceil(product.rows / rows)
        in_blocks = np.ceil(k_blocks / (k_split * k_serial))
        out_blocks = np.ceil(n_blocks / (n_split * n_serial))
        k = np.minimum(in_blocks * channels, product.k)
        n = np.minimum(out_blocks * units_at_work, product.n)
        positions = rows * product.inputs_per_row
        return _Ways(
            product,
            target,
            groups=groups,
            shares=shares,
            channels=channels,
            units=units_at_work,
            row_split=row_split,
            k_split=k_split,
            n_split=n_split,
            n_serial=n_serial,
            serial=n_serial * k_serial,
            rows=rows,
            in_blocks=in_blocks,
            out_blocks=out_blocks,
            n=n,
            positions=positions,
            input_bytes=positions * k * product.element_bytes,
            weight_bytes=k * n * product.taps * product.element_bytes,
            padded_bytes=positions * in_blocks * channels * product.element_bytes,
            partial_bytes=rows * n * product.partial_bytes,
            is_cast=(k_split == 1) & (product.partial_bytes > product.element_bytes),
        )

    def spread_over(self, way: int, *, swapped: bool) -> dict[str, Grid]:
        """Return the elements of the result and of the columns on each tile."""
        # Serial parts follow one another on the same tiles: they add to the parts there. Tiles
        # that compute partial sums of the same results each keep an equal part of these, and
        # tiles that read the same weights each store an equal part of those.
        product, n_serial = self.product, int(self.n_serial[way])
        parts = {
            name: int(getattr(self, name)[way])
            for name in ("shares", "k_split", "row_split", "n_split")
        }
        k = int(self.in_blocks[way]) * self.channels * (int(self.serial[way]) // n_serial)
        n = int(self.out_blocks[way] * self.units[way]) * n_serial
        groups = Axis(parts["shares"], int(self.groups[way]), product.groups)
        sums = Axis(parts["k_split"], k, product.k)
        rows = Axis(parts["row_split"], int(self.rows[way]), product.rows)
        columns = Axis(parts["n_split"], n, product.n)
        result = Grid((groups, Axis(parts["k_split"]), rows, columns))
        if swapped:
            stored = groups, sums, rows, Axis(parts["n_split"])
        else:
            stored = groups, sums, Axis(parts["row_split"]), columns
        return {"result": result, "columns": Grid(stored, product.taps)}

    @property
    def memory(self) -> Array:
        """Bytes that availableMemoryProportion limits."""
        return self.groups * (self.padded_bytes + self.weight_bytes + self.partial_bytes)

    @property
    def steps(self) -> Array:
        """Number of supersteps: each serial part is exchanged and computed; then partial sums are
        exchanged and added up."""
        return self.serial + np.where(self.k_split > 1, 1, 0)

    def exchange_cycles(self) -> Array:
        """Return the cycles of exchanging operands that other tiles hold, and partial sums to the
        tiles that add them up.

        A tile already has 1 / n_split of its inputs, and 1 / row_split of its weights. Neighbours
        that receive the same inputs share their bus (ExchangeEstimator.hpp), which happens if the
        splits of n come in pairs. Serial parts of n share their inputs, which are sent once, before
        the first part (the planner's broadcast before its loop). The planner always charges the
        first exchange of partial sums. Without a split of k there is none, and omitting it is
        closer to the simulator.
        """
        # A serial part of n needs all inputs of the tile, which come once for all parts: a part
        # pays its share (/ n_serial). Weights and sums are those of one part. All of it is repeated
        # for each serial part and each group.
        rate, bus = self.target.exchange_bytes_per_cycle, self.target.tiles_per_exchange_bus
        shared = np.where(self.n_split % bus == 0, bus, 1)
        exchange: Array = self.input_bytes * (1 - 1 / self.n_split) / shared / rate / self.n_serial
        exchange += self.weight_bytes * (1 - 1 / self.row_split) / rate
        exchange += np.where(self.k_split > 1, self.partial_bytes / rate, 0)
        exchange *= self.serial * self.groups
        return exchange

    def messages(self) -> Array:
        """Return the number of messages that a tile receives. For a block of channels these are the
        rows of its part of a field, which is assumed to be as high as it is wide. For a matmul
        it is one message for all rows, which have one dimension only."""
        product = self.product
        rows: Any = np.ceil(np.sqrt(self.positions) * PIECES_OF_A_ROW) if product.field else 1
        # The maker of the rows made 16 channels at a time: a block of quarters has two such pieces.
        pieces = max(1, self.channels // BLOCK)
        # Weights come in blocks of input by output channels, one for each kernel position; of the
        # partial sums a tile adds up, each of the k_split tiles sends its own.
        blocks = self.groups * self.in_blocks * (pieces * rows + product.taps * self.out_blocks)
        return blocks + np.where(self.k_split > 1, self.k_split, 0)

    def copies(self) -> Array:
        """Return the bytes of input, weights and sums, a row each. Sums that need no further
        processing are the result, and not a copy. For quarters the results are halves, like the
        sums."""
        # Sums are a copy if another pass reads them: the addition of several tiles' sums, the cast
        # to a narrower result, or the next serial part.
        is_cast = self.is_cast & (not self.product.is_quarter)
        is_copied = (self.k_split > 1) | is_cast | (self.serial > 1)
        packed = self.product.packed_bytes / self.target.num_tiles
        parts = [self.padded_bytes, self.weight_bytes, np.where(is_copied, self.partial_bytes, 0)]
        return self.groups * np.stack(parts) + np.array([[packed], [0], [0]])


def _plan(
    product: Product,
    target: Target,
    options: PlanOptions,
    calibration: Calibration,
    *,
    swapped: bool,
) -> Plan:
    """Return the best of all ways, over the groups that follow one another and the AMP units at
    work. Serial parts only save memory: they are tried if the fastest way without them does not
    fit."""
    for serial in (False, True):
        counted = _Counted.of(_Ways.of(product, target, serial=serial), options, calibration)
        fastest = int(np.argmin(counted.total))
        if counted.fits[fastest]:
            return counted.plan(fastest, calibration, swapped=swapped)
    return counted.plan(counted.best, calibration, swapped=swapped)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Costs of all ways, from which one is chosen."""

    ways: _Ways
    compute: Array
    exchange: Array
    total: Array
    """Cycles with syncs, which poplin's objective leaves out, but which are part of the
    estimate."""
    fits: Array
    is_other: Array
    other_kind: str

    @staticmethod
    def of(ways: _Ways, options: PlanOptions, calibration: Calibration) -> _Counted:
        """Return the costs of all ways for a chip and its options."""
        compute, is_other, other_kind = _compute(ways, options, calibration)
        product = ways.product
        packed = product.packed_bytes / product.element_bytes / ways.target.num_tiles
        compute += v.transform_cycles(packed, product.element_bytes)
        exchange = ways.exchange_cycles()
        total = compute + exchange + ways.steps * calibration.step_cycles(ways.target)
        fits = ways.memory <= options.limit_bytes(ways.target)
        return _Counted(ways, compute, exchange, total, fits, is_other, other_kind)

    @property
    def best(self) -> int:
        """Index of the fastest way that fits or, if none does, of the smallest."""
        costs = np.where(self.fits, self.total, np.inf) if self.fits.any() else self.ways.memory
        return int(np.argmin(costs))

    def plan(self, way: int, calibration: Calibration, *, swapped: bool) -> Plan:
        """Return the plan of one of the ways."""
        # Tiles at work = the product of all splits in space; serial splits are in time. After the
        # addition a tile has 1 / k_split of the results that it helped to compute, of all serial
        # parts of n. An input goes to the n_split tiles beside each other in a row of the picture
        # above, weights to the row_split tiles of a column. A swapped product is planned with the
        # operands' roles exchanged: they are exchanged back here.
        ways = self.ways
        counts = ways.row_split, ways.k_split, ways.n_split, ways.serial
        splits = zip(("rows", "in", "out", "serial"), counts, strict=True)
        busy = (ways.shares * ways.row_split * ways.k_split * ways.n_split)[way]
        receivers = (int(ways.n_split[way]), int(ways.row_split[way]))
        *operands, sums = (math.ceil(size) for size in ways.copies()[:, way])
        results = ways.groups * ways.rows * ways.n * ways.n_serial / ways.k_split
        return Plan(
            compute=math.ceil(self.compute[way]) + calibration.planned_cycles,
            exchange=math.ceil(self.exchange[way]),
            steps=int(ways.steps[way]),
            tiles=min(ways.target.num_tiles, int(busy)),
            temporary_bytes=math.ceil(ways.memory[way]),
            copies=(*(operands[::-1] if swapped else operands), sums),
            receivers=(receivers[1], receivers[0]) if swapped else receivers,
            k_parts=int(ways.k_split[way]),
            serial=int(ways.serial[way]),
            messages=int(ways.messages()[way]),
            result_elements=math.ceil(results[way]),
            swapped=swapped,
            splits=" ".join(f"{name} {int(split[way])}" for name, split in splits if split[way] > 1)
            or "one tile",
            kind=self.other_kind if self.is_other[way] else "",
            fits=bool(self.fits[way]),
            rows=int(ways.rows[way]),
            **ways.spread_over(way, swapped=swapped),
        )


def _compute(
    ways: _Ways, options: PlanOptions, calibration: Calibration
) -> tuple[Array, Array, str]:
    """Return the compute cycles of a tile, whether another vertex than the AMP units' is faster,
    and the name of that vertex."""
    # For one serial part of one group:
    #     AMP vertex, or dot or outer product       the sums of the tile
    #     + zeroing                                 only of the nx1 vertex
    #     + addition of k_split tiles' sums         each tile adds 1 / k_split of the outputs
    #     + cast                                    if sums are wider than the result
    # Each serial part first slices its weights out of all the tile's weights.
    product, workers = ways.product, ways.target.workers_per_tile
    load = (
        ways.channels * ways.units * product.element_bytes / ways.target.coefficient_bytes_per_cycle
    )
    if options.use_128bit_conv_unit_load:
        load = load / 2
    amp = amp_cycles(
        product, ways.rows, ways.in_blocks, ways.out_blocks, load, ways.groups, workers, calibration
    )
    other, kind = _other_vertex(ways)
    # The other vertices compute whole results only: they are not used if sums are split over tiles
    # or time.
    is_other = (ways.k_split == 1) & (ways.serial == 1) & (other < amp)
    compute = np.where(is_other, other, amp)
    sums = ways.rows * ways.n
    if product.taps > 1:
        # The 1x1 vertex sets its sums to zero in its first pass; for the nx1 vertex that is a
        # separate pass of 64 bits a cycle.
        compute += ways.groups * sums / (v.VECTOR_BYTES // product.partial_bytes)
    compute += v.partials_reduction_cycles(
        np.ceil(ways.groups * sums / ways.k_split), ways.k_split, product.partial_bytes, workers
    )
    cast = v.CAST_WORKER + np.ceil(sums / workers) / v.CAST_VECTOR
    compute += np.where(ways.is_cast, ways.groups * workers * cast, 0)
    slices = v.serial_slice_cycles(ways.weight_bytes, workers)
    return np.where(ways.serial > 1, ways.serial * (compute + slices), compute), is_other, kind


def amp_cycles(
    product: Product,
    rows: Array,
    in_blocks: Array,
    out_blocks: Array,
    load: Array | float,
    groups: Array | int,
    workers: int,
    calibration: Calibration,
) -> Array:
    """Return the cycles of the AMP vertex: for every block of weights, `load` it and have the
    workers stream their rows through."""
    worker_rows = np.ceil(rows / workers)
    if product.taps > 1:
        # A worker processes whole rows of the field, if it has so many positions: each row starts
        # anew.
        width = np.minimum(worker_rows, product.width)
        row = (v.AMP_NX1_FLOAT_ROWS if product.is_float else v.AMP_NX1_ROWS).cycles(width)
        worker = v.AMP_NX1_WORKER + np.ceil(worker_rows / width) * row
        # There is no measurement of quarters here alone: half of the 1x1 vertex's cycles for a
        # block is assumed.
        tap = calibration.fp8_block_cycles / 2 if product.is_quarter else v.AMP_NX1_TAP
        block = product.taps * (tap + load + workers * worker)
        return v.AMP_NX1.cycles(groups, in_blocks, out_blocks, block)
    if product.is_quarter:
        block = v.AMP_QUARTER_ROW * worker_rows * workers + calibration.fp8_block_cycles
        return v.AMP_1X1_QUARTER.cycles(groups, in_blocks, out_blocks, block)
    loop = v.AMP_1X1_FLOAT_ROWS if product.is_float else v.AMP_1X1_ROWS
    cycles = v.AMP_1X1.cycles(
        groups, in_blocks, out_blocks, load + workers * loop.cycles(worker_rows)
    )
    if product.is_float:
        # Only the first pass over the input channels sets sums to zero: once for each output block.
        cycles += groups * out_blocks * workers * v.AMP_1X1_FLOAT_ZERO.cycles(worker_rows)
    return cycles


def _other_vertex(ways: _Ways) -> tuple[Array, str]:
    """Return the cycles of the outer product vertex for one input channel, else those of the dot
    product vertex. Neither supports fields. Quarters become halves for the dot product (section
    3.3)."""
    product, workers = ways.product, ways.target.workers_per_tile
    if product.taps > 1 or product.convolution:
        return np.full(ways.rows.shape, np.inf), ""
    if product.k == 1 and not product.is_quarter:
        cycles = v.outer_product_cycles(
            ways.groups, ways.rows, ways.n, product.element_bytes, workers
        )
        return cycles, "outer product"
    widths = (max(HALF_BYTES, product.element_bytes), product.partial_bytes)
    sums = ways.rows * ways.n
    cycles = v.dot_product_cycles(ways.groups, sums, ways.rows, product.k, widths, workers)
    if product.is_quarter:
        # Both operands are widened before the dot product, by all workers together.
        loops = np.ceil(
            ways.groups * (ways.input_bytes + ways.weight_bytes) / workers / v.WIDENED.vector
        )
        cycles += workers * (v.CAST_WORKER + loops * v.WIDENED.cycles)
    return cycles, "dot product"
