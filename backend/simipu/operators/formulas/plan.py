"""Planning matmuls and convolutions: the cheapest way to split one over the tiles, as poplin's planner would.

A product is `groups` times rows x k x n, for each of `taps` kernel positions:

                n_split * n_serial
                 +-----+-----+
               k |  W  |     |  k_split * k_serial       A tile has rows/row_split x k/k_split of the field F,
                 +-----+-----+                           k/k_split x n/n_split of the weights W, and makes
        k                                                rows/row_split x n/n_split sums. With k_split > 1
     +-----+     +-----+-----+                           these are partial sums of k_split tiles, which are
     |  F  |     | sums|     |  row_split                added up afterwards. Serial parts follow one another
     +-----+     +-----+-----+                           on the same tiles, so that less lies there at once.

A tile computes its part with the AMP units or, where most of them would be idle, with the dot product or
outer product vertex; the vertices for convolutions of few channels are `products.py`'s. What is searched and
counted follows graphcore/poplibs lib/poplin (ConvPlan.cpp, ConvModel.cpp, PerformanceEstimation.hpp);
docs/ipu-performance.md, section 3, says what of it is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.calibration import Calibration
from simipu.target import HALF_BYTES, Target

Array = npt.NDArray[Any]

_ODD_SPLITS = (1, 3, 5, 7, 9, 11, 13)
_SERIAL_N, _SERIAL_K = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)
"""Of the splits that poplin tries, enough that another does not change the cheapest plan's cycles by much;
all of them would take minutes for a large model."""


@dataclass(frozen=True, slots=True)
class Product:
    """What is multiplied: bytes of an element (1 is fp8) and of a partial sum; what a convolution adds to a
    matmul."""

    groups: int
    rows: int
    k: int
    n: int
    element_bytes: int = 2
    partial_bytes: int = 2
    taps: int = 1
    width: int = 1
    """Output positions of a field row, which a worker of the nx1 vertex takes at a time."""
    inputs_per_row: float = 1.0
    """Input positions that must be on a tile for each output position; more than one with strides and
    halos."""
    convolution: bool = False
    """Rows are positions of a field: they are never swapped with the output channels."""
    packed_bytes: int = 0
    """Of all tiles, for the copy of an input of few channels with kernel rows packed into its channels."""

    @property
    def is_quarter(self) -> bool:
        """Whether its operands are fp8."""
        return self.element_bytes < HALF_BYTES

    @property
    def is_float(self) -> bool:
        """Whether its operands are fp32."""
        return self.element_bytes > HALF_BYTES

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.groups * self.rows * self.k * self.n * self.taps


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The compiler options that a plan depends on."""

    available_memory_proportion: float = 0.6
    use_128bit_conv_unit_load: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest plan found; cycles are those of the busiest tile."""

    compute: int
    exchange: int
    steps: int
    """Supersteps, each of which ends in a sync."""
    tiles: int
    temporary_bytes: int
    """Of a tile, for copies of the operands and partial sums: what availableMemoryProportion limits."""
    copied_bytes: int
    """Of a tile, beside the operands and the result themselves: partial sums that are the result are not
    counted twice, and the AMP units want operands in memory elements of their own."""
    messages: int
    """Received by a tile, each in one piece: blocks of channels of a field row, blocks of weights, partial
    sums."""
    result_elements: int
    """Of the fullest tile."""
    row_parts: int
    """Tiles over which the output channels are spread."""
    splits: str
    """How it is split, in words."""
    kind: str
    """The vertex, where it is not that of the AMP units."""
    fits: bool
    """Whether `temporary_bytes` keep to availableMemoryProportion; otherwise it is the plan that needs
    least."""

    @property
    def cycles(self) -> int:
        """Without syncs."""
        return self.compute + self.exchange


@lru_cache(maxsize=16384)
def plan_product(product: Product, target: Target, options: PlanOptions, calibration: Calibration) -> Plan:
    """The cheapest plan, operands swapped or not; equal products are planned once.

    A narrow side always is the one that streams past the coefficients; of a single row the formulas decide,
    which have the matrix stream past it: nobody measured one alone, and decoding with one row at a time comes
    out nearer so.
    """
    swapped = replace(product, rows=product.n, n=product.rows)
    candidates = [product, swapped]
    if product.convolution or 1 < product.rows <= min(product.n, calibration.narrow_side):
        candidates = [product]
    elif 1 < product.n <= calibration.narrow_side:
        candidates = [swapped]
    plans = [
        _plan(candidate, target, options, calibration, swapped=candidate is swapped)
        for candidate in candidates
    ]
    return min(
        plans, key=lambda plan: (not plan.fits, plan.cycles + plan.steps * (target.internal_sync_cycles + calibration.phase_cycles))
    )


@dataclass(frozen=True, slots=True)
class _Ways:
    """All ways to split a product that are tried, side by side: an array has an element for each of them.
    What is counted is of the busiest tile, and of one serial part of one group where nothing else is said."""

    product: Product
    target: Target
    groups: int
    """One after the other where there are more than tiles."""
    channels: int
    """Input channels of a block: the AMP units take no fewer at a time."""
    units: int
    """Output channels of a block: one for each AMP unit."""
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
    """Output channels; what fills up the last block is not stored."""
    positions: Array
    """Of the input: the rows' with their halo."""
    input_bytes: Array
    padded_bytes: Array
    """The input as it lies on the tile, its blocks of channels filled up."""
    weight_bytes: Array
    partial_bytes: Array
    is_cast: Array
    """Whether sums become narrower without being added up: then a pass of its own casts them."""

    @staticmethod
    def of(product: Product, target: Target) -> _Ways:
        """Groups are spread over the tiles first, then k and n; rows take the tiles that are left."""
        channels = target.channel_block_bytes // product.element_bytes
        units = target.amp_units(product.element_bytes, product.partial_bytes)
        k_blocks, n_blocks = math.ceil(product.k / channels), math.ceil(product.n / units)
        tiles = max(1, target.num_tiles // product.groups)
        k_split, n_split, n_serial, k_serial = _candidates(k_blocks, n_blocks, tiles)
        row_split = np.minimum(tiles // (k_split * n_split), product.rows)
        rows = np.ceil(product.rows / row_split)
        in_blocks = np.ceil(k_blocks / (k_split * k_serial))
        out_blocks = np.ceil(n_blocks / (n_split * n_serial))
        k, n = np.minimum(in_blocks * channels, product.k), np.minimum(out_blocks * units, product.n)
        positions = rows * product.inputs_per_row
        return _Ways(
            product,
            target,
            groups=math.ceil(product.groups / target.num_tiles),
            channels=channels,
            units=units,
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

    @property
    def memory(self) -> Array:
        """What availableMemoryProportion limits."""
        return self.groups * (self.padded_bytes + self.weight_bytes + self.partial_bytes)

    @property
    def steps(self) -> Array:
        """Each serial part is exchanged and computed; then partial sums are exchanged and added up."""
        found: Array = self.serial + np.where(self.k_split > 1, 1, 0)
        return found

    def exchange_cycles(self) -> Array:
        """Operands that other tiles hold, and partial sums on their way to where they are added up.

        Of its inputs a tile has 1 / n_split already, of its weights 1 / row_split. Neighbours that receive
        the same inputs share their bus (ExchangeEstimator.hpp), which they do where the splits of n come in
        pairs. The planner always charges the first exchange of partial sums; without a split of k there is
        none, and leaving it out there is nearer to the simulator.
        """
        rate = self.target.exchange_bytes_per_cycle
        shared = np.where(
            self.n_split % self.target.tiles_per_exchange_bus == 0, self.target.tiles_per_exchange_bus, 1
        )
        exchange: Array = self.input_bytes * (1 - 1 / self.n_split) / shared / rate
        exchange += self.weight_bytes * (1 - 1 / self.row_split) / rate
        exchange += np.where(self.k_split > 1, self.partial_bytes / rate, 0)
        exchange *= self.serial * self.groups
        return exchange

    def messages(self) -> Array:
        """Received by a tile."""
        product = self.product
        field_rows: Any = np.ceil(self.positions / product.width) if product.taps > 1 else 1
        blocks = self.groups * self.in_blocks * (field_rows + product.taps * self.out_blocks)
        found: Array = blocks + np.where(self.k_split > 1, self.k_split, 0)
        return found

    def copied_bytes(self) -> Array:
        """Input, weights and sums each begin a memory element, so that the AMP units can load both operands
        and store in the same cycle; sums that nothing else is done with are the result, and no copy."""
        kept = (self.k_split > 1) | self.is_cast | (self.serial > 1)
        parts = self.groups * np.stack(
            [self.padded_bytes, self.weight_bytes, np.where(kept, self.partial_bytes, 0)]
        )
        element = self.target.memory_element_bytes
        whole = np.ceil(parts / element) * element
        found: Array = whole.sum(axis=0) + self.product.packed_bytes / self.target.num_tiles
        return found


def _plan(
    product: Product, target: Target, options: PlanOptions, calibration: Calibration, *, swapped: bool
) -> Plan:
    ways = _Ways.of(product, target)
    compute, is_other, other_kind = _compute(ways, options, calibration)
    exchange, steps, memory = ways.exchange_cycles(), ways.steps, ways.memory
    # As poplin: the fastest that fits or, where none does, the smallest. Poplin's objective leaves syncs out;
    # here they count, since they are a part of what is estimated.
    fits = memory <= options.available_memory_proportion * target.bytes_per_tile
    total = compute + exchange + steps * (target.internal_sync_cycles + calibration.phase_cycles)
    best = int(np.argmin(np.where(fits, total, np.inf) if fits.any() else memory))
    streamed = float(ways.groups * (ways.input_bytes + ways.partial_bytes)[best])
    layout = (
        calibration.field_cycles if product.convolution else streamed * calibration.streamed_cycles_per_byte
    )
    splits = {"rows": ways.row_split, "in": ways.k_split, "out": ways.n_split, "serial": ways.serial}
    busy = min(product.groups, target.num_tiles) * (ways.row_split * ways.k_split * ways.n_split)[best]
    return Plan(
        compute=math.ceil(compute[best] + layout) + calibration.planned_cycles,
        exchange=math.ceil(exchange[best]),
        steps=int(steps[best]),
        tiles=min(target.num_tiles, int(busy)),
        temporary_bytes=math.ceil(memory[best]),
        copied_bytes=int(ways.copied_bytes()[best]),
        messages=int(ways.messages()[best]),
        result_elements=math.ceil((ways.groups * ways.rows * ways.n * ways.n_serial / ways.k_split)[best]),
        row_parts=int((ways.row_split if swapped else ways.n_split)[best]),
        splits=" ".join(f"{name} {int(split[best])}" for name, split in splits.items() if split[best] > 1)
        or "one tile",
        kind=other_kind if is_other[best] else "",
        fits=bool(fits[best]),
    )


def _compute(ways: _Ways, options: PlanOptions, calibration: Calibration) -> tuple[Array, Array, str]:
    """Cycles of all that a tile computes, whether a vertex other than the AMP units' is the faster, and
    which."""
    product, workers = ways.product, ways.target.workers_per_tile
    load = ways.channels * ways.units * product.element_bytes / ways.target.coefficient_bytes_per_cycle
    if options.use_128bit_conv_unit_load:
        load /= 2
    amp = amp_cycles(
        product, ways.rows, ways.in_blocks, ways.out_blocks, load, ways.groups, workers, calibration
    )
    other, kind = _other_vertex(ways)
    # The other vertices make whole results only: they are not taken where sums are split over tiles or time.
    is_other = (ways.k_split == 1) & (ways.serial == 1) & (other < amp)
    compute = np.where(is_other, other, amp)
    sums = ways.rows * ways.n
    if product.taps > 1:
        # The 1x1 vertex sets its sums to zero in its first pass; the nx1 vertex has that done, 64 bits a
        # cycle.
        compute += ways.groups * sums / (8 // product.partial_bytes)
    compute += v.PARTIALS_REDUCTION.cycles(
        np.ceil(sums / ways.k_split), ways.k_split, product.partial_bytes, workers
    )
    cast = v.CAST_WORKER + np.ceil(sums / workers) / v.CAST_VECTOR
    compute += np.where(ways.is_cast, ways.groups * workers * cast, 0)
    slices = v.SERIAL_SLICE.cycles(ways.weight_bytes, workers)
    return np.where(ways.serial > 1, ways.serial * (compute + slices), compute), is_other, kind


def _candidates(k_blocks: int, n_blocks: int, tiles: int) -> tuple[Array, Array, Array, Array]:
    """The splits of k and n over tiles, then of n and k in time, that leave every part a block."""
    grid: list[Any] = [_splits(min(k_blocks, tiles)), _splits(min(n_blocks, tiles)), _SERIAL_N, _SERIAL_K]
    k_split, n_split, n_serial, k_serial = (
        axis.ravel() for axis in np.meshgrid(*map(np.array, grid), indexing="ij")
    )
    possible = (
        (k_split * n_split <= tiles) & (n_split * n_serial <= n_blocks) & (k_split * k_serial <= k_blocks)
    )
    possible &= (n_serial == 1) | (k_serial == 1)
    return k_split[possible], n_split[possible], n_serial[possible], k_serial[possible]


def _splits(limit: int) -> list[int]:
    """The splits worth trying: small odd numbers times powers of two, and the finest."""
    found = {odd << bit for bit in range(limit.bit_length()) for odd in _ODD_SPLITS if odd << bit <= limit}
    return sorted(found | {1, limit})


def amp_cycles(
    product: Product,
    rows: Array,
    in_blocks: Array,
    out_blocks: Array,
    load: float,
    groups: int,
    workers: int,
    calibration: Calibration,
) -> Array:
    """The AMP vertex: for every block of weights, `load` it and have the workers stream their rows
    through."""
    worker_rows = np.ceil(rows / workers)
    if product.taps > 1:
        # A worker takes whole rows of the field, as far as it has so many positions: each begins anew.
        width = np.minimum(worker_rows, product.width)
        row = (v.AMP_NX1_FLOAT_ROWS if product.is_float else v.AMP_NX1_ROWS).cycles(width)
        worker = v.AMP_NX1_WORKER + np.ceil(worker_rows / width) * row
        # Nobody measured quarters here alone: half of what the 1x1 vertex's block takes is assumed.
        tap = calibration.fp8_block_cycles / 2 if product.is_quarter else v.AMP_NX1_TAP
        block = product.taps * (tap + load + workers * worker)
        return v.AMP_NX1.cycles(groups, in_blocks, out_blocks, block)
    if product.is_quarter:
        block = v.AMP_QUARTER_ROW * worker_rows * workers + calibration.fp8_block_cycles
        return v.AMP_1X1_QUARTER.cycles(groups, in_blocks, out_blocks, block)
    loop = v.AMP_1X1_FLOAT_ROWS if product.is_float else v.AMP_1X1_ROWS
    return v.AMP_1X1.cycles(groups, in_blocks, out_blocks, load + workers * loop.cycles(worker_rows))


def _other_vertex(ways: _Ways) -> tuple[Array, str]:
    """What the outer product vertex takes, where there is one input channel, or else the dot product vertex;
    neither takes fields or quarters (section 3.3)."""
    product, workers = ways.product, ways.target.workers_per_tile
    if product.taps > 1 or product.convolution or product.is_quarter:
        return np.full(ways.rows.shape, np.inf), ""
    if product.k == 1:
        found = v.OUTER_PRODUCT.cycles(ways.groups, ways.rows, ways.n, product.element_bytes, workers)
        return found, "outer product"
    widths = (product.element_bytes, product.partial_bytes)
    sums = ways.rows * ways.n
    return v.DOT_PRODUCT.cycles(ways.groups, sums, ways.rows, product.k, widths, workers), "dot product"
