"""Planning of convolutions whose groups have up to four channels: the SLIC and VMAC vertices, each
with the cheapest split over the tiles (docs/ipu-performance.md, section 3.4).

A vertex computes a block of groups together, at every kernel position:

             width
          +---------+
    rows  | field   |  of the result, for each image and each block of groups
          +---------+

The tiles share the blocks; those of a block share the field's rows and, if there are more tiles
than rows, parts of a row or rows of the kernel, whose sums are then added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simipu.chip.target import HALF_BYTES, Target
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.calibration import Calibration
from simipu.operators.formulas.splits import find_rounds

MAX_CHANNELS = 4
"""Maximum number of channels of a group that the SLIC vertex processes."""
_PARTS_OF_A_ROW = (1, 2, 3, 4, 6, 8)
"""Numbers of parts of a row that are tried; shorter parts are mostly start-up."""
_PARTS_OF_A_KERNEL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of parts of the kernel's rows that are tried: poplin tries all."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Convolution to plan: sizes of the field of the result and of the kernel, each of whose
    dimensions but the last are one number, their rows."""

    groups: int
    channels: int
    """Input or output channels of a group, whichever are more; one for each with `depthwise`."""
    rows: int
    """Rows of the result's field, of all images."""
    width: int
    kernel_rows: int
    kernel_width: int
    row_stride: int
    stride: int
    """Stride along a row."""
    element_bytes: int
    partial_bytes: int
    depthwise: bool
    is_dilated: bool = False
    """True if the kernel's or the input's elements do not follow one another: no SLIC."""


@dataclass(frozen=True, slots=True)
class NarrowPlan:
    """Cheapest plan found; cycles and bytes are those of the busiest tile."""

    kind: str
    compute: int
    exchange: int
    steps: int
    tiles: int
    received_bytes: int
    block: int
    """Channels that lie together: those of the groups of a block."""
    result_elements: int
    """Elements of the result on the fullest tile."""

    def cycles(self, calibration: Calibration, target: Target) -> int:
        """Return the cycles with syncs."""
        return self.compute + self.exchange + self.steps * calibration.step_cycles(target)


@lru_cache(maxsize=16384)
def plan_narrow(narrow: Narrow, target: Target, calibration: Calibration) -> NarrowPlan | None:
    """Return the cheapest plan, or None if neither vertex can compute the convolution, as with gaps
    between the kernel's elements and several channels a group; equal ones are planned once."""
    return min(
        _iter_plans(narrow, target, calibration),
        key=lambda plan: plan.cycles(calibration, target),
        default=None,
    )


def _iter_plans(narrow: Narrow, target: Target, calibration: Calibration) -> Iterator[NarrowPlan]:
    for kind, groups in _iter_vertices(narrow):
        blocks = math.ceil(narrow.groups / groups)
        for rounds in find_rounds(blocks, target.num_tiles):
            # Tiles of a share of the blocks, each of which takes `rounds` of them, one after the
            # other, of one part of the field.
            shares = math.ceil(blocks / rounds)
            tiles = max(1, target.num_tiles // shares)
            for split in _iter_splits(narrow, tiles):
                yield _plan(narrow, target, calibration, kind, groups, (shares, rounds), split)


def _iter_vertices(narrow: Narrow) -> Iterator[tuple[str, int]]:
    """Yield the vertices and the number of groups of a block (ConvVertexType.cpp): four channels,
    or with one channel and half partials eight or sixteen."""
    wider = (8, 16) if narrow.channels == 1 and narrow.partial_bytes == HALF_BYTES else ()
    # Groups of three channels are padded to four.
    if not narrow.is_dilated and narrow.stride <= v.SLIC_MAX_STRIDE:
        yield from (
            ("SLIC", groups)
            for groups in (MAX_CHANNELS // (1 << (narrow.channels - 1).bit_length()), *wider)
        )
    if narrow.depthwise:
        yield from (("VMAC", groups) for groups in (4, *wider))


def _iter_splits(narrow: Narrow, tiles: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of the field's rows, of a row and of the kernel's rows over `tiles` tiles."""
    for kernel in _PARTS_OF_A_KERNEL:
        if kernel > min(narrow.kernel_rows, tiles):
            return
        for row in _PARTS_OF_A_ROW:
            if row > narrow.width or kernel * row > tiles:
                break
            yield min(narrow.rows, tiles // (kernel * row)), row, kernel


def _plan(
    narrow: Narrow,
    target: Target,
    calibration: Calibration,
    kind: str,
    groups: int,
    blocks: tuple[int, int],
    split: tuple[int, int, int],
) -> NarrowPlan:
    workers = target.workers_per_tile
    shares, rounds = blocks
    rows, width, kernel_rows = (
        math.ceil(size / parts)
        for size, parts in zip((narrow.rows, narrow.width, narrow.kernel_rows), split, strict=True)
    )
    block = groups * narrow.channels
    positions = rows * width
    sums = rounds * block * positions
    kernel = (kernel_rows, narrow.kernel_width)
    vertex = v.slic_cycles if kind == "SLIC" else v.vmac_cycles
    compute = calibration.planned_cycles + vertex(
        (rounds, groups), (rows, width), kernel, narrow.stride, narrow.partial_bytes, workers
    )
    # With the kernel in parts a tile adds up the sums of its share of the results; else sums that
    # are wider than the result are cast.
    parts = split[2]
    results = math.ceil(sums / parts)
    if parts > 1:
        depth = v.partials_reduction_cycles(
            np.array(results), np.array(parts), narrow.partial_bytes, workers
        )
        compute += float(depth)
    elif narrow.partial_bytes > narrow.element_bytes:
        compute += workers * (v.CAST_WORKER + math.ceil(sums / workers) / v.CAST_VECTOR)
    # Inputs of the part of the field, with the kernel's positions beyond it, and the weights.
    read = ((rows - 1) * narrow.row_stride + kernel_rows) * (
        (width - 1) * narrow.stride + narrow.kernel_width
    )
    received = rounds * block * (read + math.prod(kernel)) * narrow.element_bytes
    partials = sums * narrow.partial_bytes if parts > 1 else 0
    return NarrowPlan(
        kind,
        compute=math.ceil(compute),
        exchange=math.ceil((received + partials) / target.exchange_bytes_per_cycle),
        steps=2 if parts > 1 else 1,
        tiles=min(target.num_tiles, shares * math.prod(split)),
        received_bytes=received + partials,
        block=block,
        result_elements=results,
    )
