"""Planning matmuls and convolutions: the cheapest way to split one over the tiles, as poplin's planner would.

A product is `groups` times rows x k x n, for each of `taps` kernel positions. Rows, k and n are split over
tiles, n or k also in time (serially) when the operands of all at once do not fit into the memory that
availableMemoryProportion allows. A tile computes its part with the AMP units or, where most of them would be
idle, with the dot product or outer product vertex; the vertices for convolutions of few channels are
`operators.py`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from simipu.cost import constants as c
from simipu.target import Target

Array = npt.NDArray[Any]

_ODD_SPLITS = (1, 3, 5, 7, 9, 11, 13)
_SERIAL_N, _SERIAL_K = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)


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


@dataclass(frozen=True, slots=True)
class Settings:
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
def plan_product(product: Product, target: Target, settings: Settings) -> Plan:
    """The cheapest plan, operands swapped or not; equal products are planned once.

    A narrow side always is the one that streams past the coefficients; of a single row the formulas decide,
    which have the matrix stream past it: nobody measured one alone, and decoding with one row at a time comes
    out nearer so.
    """
    swapped = replace(product, rows=product.n, n=product.rows)
    candidates = [product, swapped]
    if product.convolution or 1 < product.rows <= min(product.n, c.NARROW_SIDE):
        candidates = [product]
    elif 1 < product.n <= c.NARROW_SIDE:
        candidates = [swapped]
    plans = [_plan(candidate, target, settings) for candidate in candidates]
    return min(
        plans, key=lambda plan: (not plan.fits, plan.cycles + plan.steps * target.internal_sync_cycles)
    )


def _plan(product: Product, target: Target, settings: Settings) -> Plan:
    half, quarter = product.element_bytes == 2, product.element_bytes == 1
    units = _units(product, target)
    k_grain = 32 if quarter else 16 if half else 8
    k_blocks, n_blocks = math.ceil(product.k / k_grain), math.ceil(product.n / units)
    group_tiles = max(1, target.num_tiles // product.groups)
    groups = math.ceil(product.groups / target.num_tiles)
    k_split, n_split, n_serial, k_serial = _candidates(k_blocks, n_blocks, group_tiles)
    row_split = np.minimum(group_tiles // (k_split * n_split), product.rows)

    rows = np.ceil(product.rows / row_split)
    in_blocks, out_blocks = np.ceil(k_blocks / (k_split * k_serial)), np.ceil(n_blocks / (n_split * n_serial))
    k, n = np.minimum(in_blocks * k_grain, product.k), np.minimum(out_blocks * units, product.n)
    inputs = rows * product.inputs_per_row * k * product.element_bytes
    weights = k * n * product.taps * product.element_bytes
    partials = rows * n * product.partial_bytes

    rate = target.exchange_bytes_per_cycle
    # Two neighbouring tiles that receive the same data share their bus (PL ExchangeEstimator.hpp).
    exchange = inputs * (1 - 1 / n_split) / np.where(n_split % 2 == 0, 2, 1) / rate
    exchange += weights * (1 - 1 / row_split) / rate + np.where(k_split > 1, partials / rate, 0)
    coefficient_rate = c.COEFFICIENT_BYTES_PER_CYCLE * (2 if settings.use_128bit_conv_unit_load else 1)
    load = k_grain * units * product.element_bytes / coefficient_rate
    amp = vertex_cycles(product, rows, in_blocks, out_blocks, load, groups)
    other, other_kind = _other_vertex(product, rows, n, groups)
    is_other = (k_split == 1) & (n_serial == 1) & (k_serial == 1) & (other < amp)
    compute = np.where(is_other, other, amp)
    if product.taps > 1:
        compute += groups * rows * n / (4 if product.partial_bytes == 2 else 2)  # zeroing
    compute += _reduction(np.ceil(rows * n / k_split), k_split, product.partial_bytes)
    cast = (k_split == 1) & (product.partial_bytes > product.element_bytes)
    compute += np.where(cast, groups * c.WORKERS * (26 + np.ceil(rows * n / c.WORKERS) / 2), 0)
    serial = n_serial * k_serial
    slices = c.WORKERS * (c.SERIAL_SLICE_CYCLES + 2 * weights / 48) + 25
    compute = np.where(serial > 1, serial * (compute + slices), compute)
    exchange = serial * groups * exchange
    padded = rows * product.inputs_per_row * in_blocks * k_grain * product.element_bytes
    memory = groups * (padded + weights + partials)
    kept = (k_split > 1) | cast | (serial > 1)
    parts = groups * np.stack([padded, weights, np.where(kept, partials, 0)])
    copied = _whole_elements(parts, target).sum(axis=0) + product.packed_bytes / target.num_tiles
    field_rows: Any = np.ceil(rows * product.inputs_per_row / product.width) if product.taps > 1 else 1
    messages = groups * in_blocks * (field_rows + product.taps * out_blocks) + np.where(
        k_split > 1, k_split, 0
    )

    fits = memory <= settings.available_memory_proportion * target.bytes_per_tile
    steps = serial * 2 + np.where(k_split > 1, 2, 0)
    total = compute + exchange + steps * target.internal_sync_cycles
    best = int(np.argmin(np.where(fits, total, np.inf) if fits.any() else memory))
    streamed = float(groups * (inputs + partials)[best])
    layout = c.FIELD_CYCLES if product.convolution else streamed * c.STREAMED_CYCLES_PER_BYTE
    named = {"rows": row_split, "in": k_split, "out": n_split, "serial": serial}
    return Plan(
        compute=math.ceil(compute[best] + layout) + c.PLANNED_CYCLES,
        exchange=math.ceil(exchange[best]),
        steps=int(steps[best]),
        tiles=min(
            target.num_tiles,
            int(min(product.groups, target.num_tiles) * (row_split * k_split * n_split)[best]),
        ),
        temporary_bytes=math.ceil(memory[best]),
        copied_bytes=int(copied[best]),
        messages=int(messages[best]),
        splits=" ".join(f"{name} {int(split[best])}" for name, split in named.items() if split[best] > 1)
        or "one tile",
        kind=other_kind if is_other[best] else "",
        fits=bool(fits[best]),
    )


def _whole_elements(size: Array, target: Target) -> Array:
    whole: Array = np.ceil(size / target.memory_element_bytes) * target.memory_element_bytes
    return whole


def _units(product: Product, target: Target) -> int:
    """AMP units at work, which is the grain of the output channels."""
    if product.element_bytes == 1:
        return 16
    if product.element_bytes == 4:
        return target.float_macs
    return (
        target.half_macs_half_partials if product.partial_bytes == 2 else target.half_macs_float_partials
    ) // 4


def _candidates(k_blocks: int, n_blocks: int, tiles: int) -> tuple[Array, Array, Array, Array]:
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


def vertex_cycles(
    product: Product, rows: Array, in_blocks: Array, out_blocks: Array, load: float, groups: int
) -> Array:
    """The AMP vertex: for every block of weights, load it and stream the rows of the six workers through."""
    worker_rows = np.ceil(rows / c.WORKERS)
    row_cycles = 8 if product.element_bytes == 4 else 4
    if product.taps > 1:
        width = np.minimum(worker_rows, product.width)
        runs = np.ceil(worker_rows / width)
        worker = 18 + runs * np.where(width < 3, 19 + 4 * width, 28 + row_cycles * (width - 3))
        overhead = c.FP8_BLOCK_CYCLES / 2 if product.element_bytes == 1 else c.TAP_CYCLES
        block = product.taps * (overhead + load + c.WORKERS * worker)
        nx1: Array = c.ROW_VERTEX_CYCLES + groups * (16 + in_blocks * (14 + out_blocks * (14 + block)))
        return nx1
    if product.element_bytes == 1:
        block = row_cycles * worker_rows * c.WORKERS + c.FP8_BLOCK_CYCLES
        quarter: Array = c.VERTEX_CYCLES + groups * in_blocks * out_blocks * block
        return quarter
    worker = np.where(worker_rows < 3, 17 + 9 * worker_rows, 31 + 4 * (worker_rows - 3))
    if product.element_bytes == 4:
        worker = 53 + 8 * (worker_rows - 3)
    block = c.OUT_CHANNEL_CYCLES + load + c.WORKERS * worker
    total: Array = c.VERTEX_CYCLES + groups * (
        c.GROUP_CYCLES + in_blocks * (c.IN_CHANNEL_CYCLES + out_blocks * block)
    )
    return total


def _other_vertex(product: Product, rows: Array, n: Array, groups: int) -> tuple[Array, str]:
    """What the outer product vertex takes, where there is one input channel, or else the dot product vertex
    (notes, 3.1)."""
    half = product.element_bytes == 2
    if product.taps > 1 or product.convolution or product.element_bytes == 1:
        return np.full(rows.shape, np.inf), ""
    if product.k == 1:
        width = np.ceil(rows / c.WORKERS)
        row = 6 + np.maximum(0, n - 12) / (4 if half else 2)
        return c.WORKERS * (25 + groups * (11 + width * row)), "outer product"
    vector = 4 if half else 2
    aligned = product.k % vector == 0
    dot = (
        7
        + (4 if half and product.partial_bytes == 2 else 0)
        + np.ceil(product.k / vector) * (1 if aligned else 2)
    )
    each = groups * (np.ceil(rows * n / c.WORKERS) * dot + 10 * np.ceil(rows / c.WORKERS))
    return c.VERTEX_CYCLES + c.WORKERS * each, "dot product"


def _reduction(outputs: Array, depth: Array, partial_bytes: int) -> Array:
    """Adding up the partial sums of `depth` tiles, in one to three stages."""
    shallow, deep = c.REDUCE_STAGE_DEPTHS
    stages = np.where(depth < shallow, 1, np.where(depth < deep, 2, 3))
    stage_depth = np.ceil(depth ** (1 / stages))
    loops = np.ceil(np.ceil(outputs / (8 if partial_bytes == 2 else 4)) / c.WORKERS)
    return np.where(depth > 1, stages * c.WORKERS * (c.REDUCE_CYCLES + loops * (3 * stage_depth + 8)), 0)
