"""Costs of data that only move: copies, lookups, links between IPUs, and inputs and outputs of
bodies (section 6)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simipu.chip.target import HALF_BYTES
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.code import code_of
from simipu.operators.formulas.layout import WHOLE_ATOM_BYTES, linear, moved_atom
from simipu.operators.formulas.work import VIEW, Context, Work

INDEX_BYTES = 4
"""Bytes of an index: the chip has no 64-bit types."""


def move(context: Context) -> Work:
    """Return the cost of an exchange, and of a copy on the tile in pieces that stay together."""
    moved = context.bytes_per_tile(context.result)
    compute = moved * v.REARRANGE_CYCLES_PER_BYTE[_atom_bytes(context)]
    exchange = context.exchange_cycles(moved)
    work = context.spread("data movement", compute, exchange, temporary=moved)
    return replace(work, code=work.code.rearranging(moved))


def remap(context: Context) -> Work:
    """Return the cost of Remap: its source is copied into even parts, row after row, or only on its
    tiles if it already lies there. With `fwd_clone_layout` nothing moves (graphcore/examples,
    remap_tensor_ce.cpp)."""
    if context.attribute("fwd_clone_layout", 0):
        return Work(VIEW)
    value, source, even = context.source, context.source_layout, linear(context.result)
    moved = context.bytes_per_tile(value)
    if source is None or source.identity == even.identity:
        copied = moved / context.target.copy_bytes_per_cycle
        return context.spread("data movement", copied, steps=0, local_steps=1, layout=even)
    copied = moved * v.REARRANGE_CYCLES_PER_BYTE[moved_atom(value, source, even)]
    exchange = context.exchange_cycles(moved)
    work = context.spread("data movement", copied, exchange, temporary=moved, layout=even)
    return replace(work, code=work.code.rearranging(moved))


def _atom_bytes(context: Context) -> int:
    """Return the bytes that stay together: the largest part of a row that both the source and the
    result have."""
    value, layout = context.result, context.source_layout
    inner = (value.shape[-1] if value.shape else 1) * value.bytes_per_element
    own = layout.grain * value.bytes_per_element if layout else inner
    together = math.gcd(inner, own)
    return next((atom for atom in v.REARRANGE_CYCLES_PER_BYTE if together % atom == 0), HALF_BYTES)


def gather(context: Context) -> Work:
    """Return the cost of a lookup of rows by index (popops' multi-slice). Rows are cut, the table
    is divided, and the indices are distributed; the cheapest way is chosen."""
    table, indices = context.inputs[0], context.inputs[1]
    if table is None or indices is None or context.is_constant(1):
        return move(context)
    # Whatever the axis, a row is what an index selects: the result's elements over the indices.
    count = max(1, indices.size)
    row = max(1, context.result.size // count)
    lookup = _Lookup(context, count, row, max(1, table.size // row), table.bytes_per_element)
    compute, exchange, temporary = min(lookup.iter_ways(), key=lambda way: way[0] + way[1])
    own = linear(context.result, context.node.output[0])
    layout = replace(own, imbalance=context.calibration.lookup_imbalance)
    return context.spread("gather", compute, exchange, steps=3, temporary=temporary, layout=layout)


def gather_elements(context: Context) -> Work:
    """Return the cost of a lookup of single elements along an axis: a group of rows of one element
    for each place of the other dimensions (popops' grouped multi-slice), whether or not the indices
    are constants. A tile has whole groups, or a share of the indices of one, each with the group's
    table."""
    table, indices = context.inputs[0], context.inputs[1]
    if table is None or indices is None:
        return move(context)
    target, workers = context.target, context.target.workers_per_tile
    rank = max(1, len(table.shape))
    rows = max(1, table.shape[context.attribute("axis", 0) % rank] if table.shape else 1)
    groups = max(1, table.size // rows)
    width = table.bytes_per_element
    # A tile with part of a group scans indices of that group only; all of them hit.
    picked = math.ceil(max(1, indices.size) / target.num_tiles)
    hit = v.GATHER_HIT + 2 * math.ceil(width / 4)
    compute = workers * (v.GATHER_WORKER + math.ceil(picked / workers) * hit)
    own = math.ceil(groups / target.num_tiles) * rows * width
    received = own + picked * (0 if context.is_constant(1) else INDEX_BYTES)
    exchange = context.exchange_cycles(received)
    work = context.spread("gather", compute, exchange, temporary=own)
    return replace(work, code=work.code.rearranging(own))


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Lookup of `count` rows of `row` elements in a table of `table_rows`."""

    context: Context
    count: int
    row: int
    table_rows: int
    width: int

    def iter_ways(self) -> Iterator[tuple[float, float, int]]:
        """Yield compute, exchange and copied bytes of a tile for each way: rows in parts of whole
        vectors, and indices in shares, each of which needs its own copy of the table (section
        6.2)."""
        # columns * shares * parts tiles. Powers of two are tried for the first two, and the table
        # takes as many parts as there are tiles left: more parts mean fewer indices that hit.
        tiles = self.context.target.num_tiles
        for columns in _powers_of_two(max(1, self.row * self.width // WHOLE_ATOM_BYTES)):
            for shares in _powers_of_two(max(1, min(self.count, tiles // columns))):
                parts = max(1, min(tiles // (columns * shares), self.table_rows))
                yield self._way(math.ceil(self.row / columns), shares, parts)

    def _way(self, columns: int, shares: int, parts: int) -> tuple[float, float, int]:
        """Return the cost if a tile has `columns` columns of a part of the table. Each of several
        parts gives a candidate for each index, and a second stage selects the right one."""
        #         columns
        #        +---+---+      A tile holds one such field, for one share of the indices. It
        #  parts |   |   |      compares each index with its part of the rows (v.GATHER_INDEX), and
        #        +---+---+      copies a row that it has, 4 bytes in 2 cycles (`hit`).
        #        |   |   |
        #        +---+---+      The indices are assumed to hit all parts evenly.
        #
        # Every part answers every index, right or not: a tile of the second stage receives one
        # candidate from each part and looks up the right one in the same way. Several shares each
        # need the table, which is sent to them (`own`).
        workers = self.context.target.workers_per_tile
        hit = v.GATHER_HIT + 2 * math.ceil(columns * self.width / 4)
        scanned = math.ceil(self.count / shares / workers)
        hits = math.ceil(scanned / parts)
        compute = float(
            workers * (v.GATHER_WORKER + hits * hit + (scanned - hits) * v.GATHER_INDEX)
        )
        own = math.ceil(self.table_rows / parts) * columns * self.width if shares > 1 else 0
        candidates = self.count / shares * columns * self.width if parts > 1 else 0.0
        if parts > 1:
            rows_taken = math.ceil(self.count / shares / parts / workers)
            compute += workers * (v.GATHER_WORKER + rows_taken * hit)
        received = own + candidates + self.count / shares * INDEX_BYTES
        return compute, self.context.exchange_cycles(received), math.ceil(own + candidates)


def _powers_of_two(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length())]


def control(context: Context, runs: int) -> Work:
    """Return the cost of an If, Loop or Scan itself: a decision for each run, and copies of inputs
    and outputs."""
    # A body has tensors of its own: each run copies what goes in and what comes out, on the tiles.
    copied = sum(map(context.bytes_per_tile, (*filter(None, context.inputs), *context.outputs)))
    compute = runs * math.ceil(copied / context.target.copy_bytes_per_cycle)
    work = context.spread("control flow", compute, steps=runs, temporary=copied)
    return replace(work, code=code_of("control flow", context.node.op_type, steps=1))


def copy_between_ipus(context: Context) -> Work:
    """Return the cost of moving one tensor over the links between two IPUs (section 1.3)."""
    target = context.target
    # The links belong to the IPU, not to a tile: all bytes of the tensor pass through them.
    cycles = math.ceil(context.result.bytes / target.link_bytes_per_second * target.clock_hz)
    code = code_of("link", "link", steps=1)
    return Work("link", exchange=cycles, steps=1, tiles=target.num_tiles, code=code)
