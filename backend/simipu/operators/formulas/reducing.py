"""Costs of operators that read many elements for a result: reductions, softmax, norms and pools
(section 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxgraph import TensorSize

from simipu.chip.target import FLOAT_BYTES, HALF_BYTES
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.elementwise import broadcast_cycles
from simipu.operators.formulas.layout import Layout, linear, turning_cycles
from simipu.operators.formulas.work import Context, Work, is_wide

_GATHER_START = 60
"""Start cycles, roughly, of the copy that brings the pieces of rows together
(CycleEstimationFunctions.cpp of popops; section 5.1)."""
_POOL_VECTOR = 4
"""Channels that a pool processes together (section 5.4)."""
_PASSES = 2
"""Passes of a norm with vectors: a factor and a summand."""
_CHANNELS_LAST = 2
"""Number of axes of a tensor whose norm is over its rows; with more axes, the channels are the
second."""
_EXP_START = 55
_EXP, _EXP_FLOAT = v.InnerLoop(4, 4), v.InnerLoop(6, 2)
_OF_A_ROW_BYTES = 12
"""Temporary bytes of a row: its largest element, its sum and the inverse of the sum, in float."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a tensor along one axis, as they lie on the fullest tile."""

    elements: int
    count: int
    """Number of rows of which the tile has at least a part."""
    run: int
    """Contiguous elements of a row."""
    parts: int
    """Number of tiles over which a row is spread."""
    element_bytes: int
    grain: int

    @staticmethod
    def of(context: Context, value: TensorSize, layout: Layout | None, axis: int) -> _Rows:
        """Return the rows along `axis` of a tensor with that layout. The caller first brings
        together the rows of another axis."""
        # A row of 768 channels in pieces of 16 over 12 tiles: a tile has 64 of it (`own`), in runs
        # of 16, as many such parts as its elements make (`count`). Along another axis than the
        # pieces', rows are first brought together, so that they lie whole.
        length = max(1, value.shape[axis] if value.shape else 1)
        lay = layout or linear(value)
        elements = context.fullest(value.size, lay)
        along = lay.axis == axis % max(1, len(value.shape))
        parts = lay.row_parts if along else 1
        own = max(1, math.ceil(length / parts))
        run = min(own, lay.piece) if along else own
        count, grain = math.ceil(elements / own), lay.grain if along else own
        return _Rows(elements, count, run, parts, value.bytes_per_element, grain)

    @staticmethod
    def of_groups(context: Context, value: TensorSize, layout: Layout | None, groups: int) -> _Rows:
        """Return groups of channels with all their positions, each spread over its share of the
        tiles."""
        lay = layout or linear(value)
        elements = context.fullest(value.size, lay)
        parts = max(1, context.target.num_tiles // groups)
        count = max(1, math.ceil(groups / context.target.num_tiles))
        return _Rows(elements, count, lay.piece, parts, value.bytes_per_element, lay.grain)

    @property
    def pieces(self) -> int:
        """Number of pieces of a row on the tile."""
        return max(1, round(self.elements / max(1, self.count) / self.run))

    def reduce_cycles(self, workers: int) -> float:
        """Return the cycles of adding up each row, or finding its largest element: pieces are
        copied together first."""
        # Results of products lie as [channels / 16][rows][16]: a tile with several blocks of
        # channels has several pieces of a row, but the vertex needs it whole (section 5.1).
        copied = self.elements * self.element_bytes
        together = copied / v.VECTOR_BYTES + _GATHER_START if self.pieces > 1 else 0.0
        own = self.run * self.pieces
        return together + v.continuous_reduce_cycles(
            self.count, own, self.element_bytes, workers, self.grain
        )

    def across_cycles(self, workers: int) -> float:
        """Return the cycles of adding up the parts of rows that several tiles have."""
        if self.parts == 1:
            return 0.0
        # The `parts` tiles that have the same rows share them: each adds up its part of them. Sums
        # travel as floats, also those of halves, and rows of them count as aligned to vectors.
        rows, grain = math.ceil(self.count / self.parts), v.VECTOR_BYTES // FLOAT_BYTES
        return v.continuous_reduce_cycles(rows, self.parts, FLOAT_BYTES, workers, grain)

    def broadcast_cycles(self, workers: int) -> float:
        """Return the cycles of a pass with a value for each row."""
        return v.outer_vector_cycles(
            self.count * self.pieces, self.run, self.element_bytes, workers, self.grain
        )


def softmax(context: Context) -> Work:
    """Return the cost of Softmax in the stable form that PopART always uses: the largest element,
    the differences, their exponentials, their sum, the quotients."""
    return softmax_of(context, context.source, context.source_layout, context.attribute("axis", -1))


def softmax_of(
    context: Context, value: TensorSize, layout: Layout | None = None, axis: int = -1
) -> Work:
    """Return the cost of a softmax of any tensor: two reductions, three passes, and the inverses of
    the sums, which are floats (popnn's NonLinearity.cpp; section 5.2)."""
    # largest of each row    reduction      exchanged if several tiles have parts of a row
    # x - largest            pass with a value for each row
    # exp                    pass over the elements
    # sum                    reduction      exchanged as above
    # 1 / sum, and its cast  two passes over one value for each row
    # x * (1 / sum)          pass with a value for each row
    rows = _Rows.of(context, value, layout, axis)
    workers = context.target.workers_per_tile
    exp = _EXP_FLOAT if is_wide(value) else _EXP
    compute = 2 * rows.reduce_cycles(workers) + 2 * rows.broadcast_cycles(workers)
    compute += context.loop_cycles(rows.elements, exp, _EXP_START)
    compute += 2 * context.loop_cycles(rows.count, v.InnerLoop(6, 2))
    split = rows.parts > 1
    compute += 2 * rows.across_cycles(workers)
    exchange = 2 * context.exchange_cycles(rows.count * rows.parts * FLOAT_BYTES) if split else 0.0
    return context.spread(
        "softmax",
        compute,
        exchange,
        steps=4 if split else 1,
        local_steps=6,
        # In place except for the largest of each row, its sum and the sum's inverse.
        temporary=rows.count * _OF_A_ROW_BYTES,
        layout=layout,
    )


def fast_norm(context: Context) -> Work:
    """Return the cost of a norm of whole rows in one vertex. Each row is brought to one tile, with
    the vectors that scale it. If there are fewer rows than tiles they are cut, and their sums added
    up in between (section 5.3).

    PopRT's FastNorm is not public. NormCE, by the same authors, is public, and both cost the same
    here.
    """
    return _by_rows(
        context, "norm", v.FAST_NORM, [source for source in context.inputs[1:3] if source]
    )


def fast_softmax(context: Context) -> Work:
    """Return the cost of a softmax of whole rows in one vertex, as in SoftmaxV2 and V3 (section
    5.2)."""
    return _by_rows(context, "softmax", v.FAST_SOFTMAX, [])


def _by_rows(
    context: Context, kind: str, vertex: v.RowVertex, vectors: Sequence[TensorSize]
) -> Work:
    # More rows than tiles: a tile takes `rows` whole rows. Fewer: a row is cut into `parts`, each
    # at least a vector for each worker. Then the parts' sums are added up, in a step of its own.
    value, num_tiles = context.source, context.target.num_tiles
    width, length = value.bytes_per_element, max(1, value.shape[-1] if value.shape else 1)
    count = max(1, value.size // length)
    parts = max(1, min(num_tiles // count, length // vertex.least_part))
    own = math.ceil(length / parts)
    rows = math.ceil(count / num_tiles)
    moved = rows * own * width
    compute = moved / context.target.copy_bytes_per_cycle
    compute += vertex.cycles(rows, own, width, context.target.workers_per_tile)
    whole_rows, layout = linear(value, ("whole rows", value.size, rows, own)), context.source_layout
    if layout is not None:
        compute += turning_cycles(value, layout, whole_rows, moved)
    received = moved + sum(vector.bytes for vector in vectors) / parts
    imbalance = rows * own * num_tiles / max(1, value.size)
    return context.spread(
        kind,
        compute,
        context.exchange_cycles(received),
        steps=1 if parts == 1 else 2,
        local_steps=1,
        # Rows are brought together, then processed in place.
        temporary=moved,
        layout=replace(whole_rows, imbalance=max(1.0, imbalance)),
    )


def channel_norm(context: Context) -> Work:
    """Return the cost of a norm of groups of channels, axis 1, with all their positions."""
    return norm(context, of_channels=True)


def norm(context: Context, *, of_channels: bool = False) -> Work:
    """Return the cost of a norm: sums and sums of squares, the inverse deviation, and four passes:
    minus the mean, times the inverse, times gamma, plus beta. PopART's group norm needs groups of
    four channels, and returns the result in the source's layout: two regroupings, element by
    element (section 5.3)."""
    value, layout = context.source, context.source_layout
    workers, width = context.target.workers_per_tile, value.bytes_per_element
    if of_channels and len(value.shape) > _CHANNELS_LAST:
        groups = value.shape[0] * max(1, context.attribute("num_groups", value.shape[1]))
        vector = TensorSize((value.shape[1], *(1 for _ in value.shape[2:])), width)
        rows = _Rows.of_groups(context, value, layout, groups)
    else:
        vector = TensorSize((value.shape[-1] if value.shape else 1,), width)
        rows = _Rows.of(context, value, layout, len(value.shape) - 1)
    # sum and sum of squares            two reductions
    # - mean, * inverse deviation       two passes with a value for each row
    # * gamma, + beta                   two passes with a vector for all rows (`scaled`)
    # inverse deviation                 a pass over one value for each row
    # to groups of four, and back       the tensor is moved twice, element by element
    scaled = _PASSES * broadcast_cycles(context, vector, rows.elements, layout)[0]
    compute = 2 * rows.reduce_cycles(workers) + 2 * rows.broadcast_cycles(workers) + scaled
    compute += context.loop_cycles(rows.count, v.InnerLoop(18, 2)) + rows.across_cycles(workers)
    moved = 2 * rows.elements * width
    compute += moved * v.REARRANGE_CYCLES_PER_BYTE[max(HALF_BYTES, min(FLOAT_BYTES, width))]
    split = rows.parts > 1
    received = moved + (2 * rows.count * rows.parts * FLOAT_BYTES if split else 0)
    return context.spread(
        "norm",
        compute,
        context.exchange_cycles(received),
        steps=5 if split else 3,
        local_steps=6,
        temporary=2 * context.bytes_per_tile(value),
        layout=layout,
    )


def reduction(context: Context) -> Work:
    """Return the cost of a reduction. It has one stage if every tile has results of its own to add
    up, else a second that adds up the tiles' partial results."""
    stages = 1 if context.result.size >= context.target.num_tiles else 2
    elements = context.per_tile(context.source.size)
    # A tile reads a vector a cycle and does nothing else with its elements (section 5.1).
    read = elements * context.source.bytes_per_element / v.VECTOR_BYTES
    return context.spread(
        "reduction", stages * context.calibration.reduction_cycles + read, steps=stages
    )


def pool(context: Context) -> Work:
    """Return the cost of a pool. It reads every position of the kernel for each result; the whole
    input is exchanged, for its halos."""
    taps = math.prod(context.attribute("kernel_shape", [1]))
    workers = context.target.workers_per_tile
    vectors = math.ceil(context.per_tile(context.result.size) / _POOL_VECTOR / workers)
    # The vertex is one of halves; floats take twice as long.
    width = context.source.bytes_per_element / HALF_BYTES
    compute = (
        context.calibration.pool_start_cycles
        + workers * vectors * (v.POOL_POSITION + v.POOL_TAP * taps) * width
    )
    exchange = context.exchange_cycles(context.bytes_per_tile(context.source))
    return context.spread("pool", compute, exchange, steps=2)
