"""Data that only change their place: copies, lookups, links between IPUs and what goes in and out of bodies
(section 6)."""

from __future__ import annotations

import math
from dataclasses import replace

from simipu.operators.formulas.code import code_of
from simipu.operators.formulas.layout import linear
from simipu.operators.formulas.vertices import (
    GATHER_HIT,
    GATHER_INDEX,
    GATHER_WORKER,
    REARRANGE_CYCLES_PER_BYTE,
    REARRANGE_START,
)
from simipu.operators.formulas.work import Context, Work
from simipu.target import HALF_BYTES


def move(context: Context) -> Work:
    """An exchange, and a copy on the tile in pieces that stay together."""
    moved = context.bytes_per_tile(context.result)
    atom = _atom_bytes(context)
    work = context.spread(
        "data movement",
        rearrangement_cycles(moved, atom),
        context.exchange_cycles(moved),
        temporary=moved,
    )
    return replace(work, code=work.code.rearranging(moved))


def rearrangement_cycles(moved: float, atom_bytes: int) -> float:
    """Of a tile that changes the layout of so many bytes, in pieces of that size."""
    return REARRANGE_START + moved * REARRANGE_CYCLES_PER_BYTE[atom_bytes]


def _atom_bytes(context: Context) -> int:
    """Bytes that stay together: as much of a row as both the source and the result have."""
    value, layout = context.result, context.source_layout
    inner = (value.shape[-1] if value.shape else 1) * value.bytes_per_element
    own = layout.grain * value.bytes_per_element if layout else inner
    return next((atom for atom in REARRANGE_CYCLES_PER_BYTE if math.gcd(inner, own) % atom == 0), HALF_BYTES)


def gather(context: Context) -> Work:
    """Embedding lookup: the table is split over tiles, each of which scans the indices for those of its own.

    Copies of the table, among which the indices are divided, shorten the scan and lengthen the broadcast:
    there are so many that one takes as long as the other.
    """
    table, indices = context.inputs[0], context.inputs[1]
    if table is None or indices is None or context.is_constant(1):
        return move(context)
    tiles = context.target.num_tiles
    scan = indices.size * GATHER_INDEX
    broadcast = table.bytes / tiles / context.target.exchange_bytes_per_cycle
    copies = min(tiles, max(1, math.floor((scan / max(broadcast, 1)) ** 0.5)))
    row_bytes = context.result.bytes / max(1, indices.size)
    hits = math.ceil(indices.size / tiles)
    # A row is copied 4 bytes a cycle: two loads and a store for each 64 bits.
    compute = (
        context.target.workers_per_tile * GATHER_WORKER + scan / copies + hits * (GATHER_HIT + row_bytes / 4)
    )
    received = context.bytes_per_tile(context.result) + indices.bytes / copies
    exchange = (copies - 1) * broadcast + context.exchange_cycles(received)
    # The first of the copies is the table itself.
    temporary = math.ceil((copies - 1) * table.bytes / tiles)
    even = linear(context.node.output[0], context.result)
    layout = replace(even, imbalance=context.calibration.lookup_imbalance)
    return context.spread("gather", compute, exchange, steps=3, temporary=temporary, layout=layout)


def control(context: Context, runs: int) -> Work:
    """What an If, Loop or Scan takes itself: a decision each time, and copies of what goes in and comes
    out."""
    copied = sum(map(context.bytes_per_tile, (*filter(None, context.inputs), *context.outputs)))
    compute = runs * math.ceil(copied / context.target.copy_bytes_per_cycle)
    work = context.spread("control flow", compute, steps=runs, temporary=copied)
    return replace(work, code=code_of("control flow", context.node.op_type, steps=1))


def copy_between_ipus(context: Context) -> Work:
    """One tensor over the links between two IPUs (section 1.3)."""
    target = context.target
    cycles = math.ceil(context.result.bytes / target.link_bytes_per_second * target.clock_hz)
    return Work(
        "link", exchange=cycles, steps=1, tiles=target.num_tiles, code=code_of("link", "link", steps=1)
    )
