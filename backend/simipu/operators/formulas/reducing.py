"""Operators that look at many elements for a result: reductions, softmax, norms and pools (section 5)."""

from __future__ import annotations

import math

from onnxgraph import Value

from simipu.operators.formulas.vertices import POOL_POSITION, POOL_TAP
from simipu.operators.formulas.work import Context, Work
from simipu.target import HALF_BYTES

_SOFTMAX_STEPS, _NORM_STEPS = 8, 6
"""Compute sets, each with its sync (sections 5.2 and 5.3)."""
_LOAD_BYTES = 8
"""That a tile reads in a cycle: a reduction does nothing else with its elements (section 5.1)."""
_POOL_VECTOR = 4
"""Channels that a pool looks at together (section 5.4)."""


def softmax(context: Context) -> Work:
    """The stable form that PopART always takes: the largest, the differences, their exponentials, their sum,
    the quotients."""
    return softmax_of(context, context.source)


def softmax_of(context: Context, value: Value) -> Work:
    """The same of any tensor."""
    fitted = context.calibration
    start, per_half = fitted.softmax_cycles, fitted.softmax_cycles_per_half
    return _passes(context, "softmax", value, start, per_half, _SOFTMAX_STEPS)


def norm(context: Context) -> Work:
    """Sums and sums of squares, the inverse deviation, and four passes: less the mean, times the inverse,
    times gamma, plus beta."""
    fitted = context.calibration
    start, per_half = fitted.norm_cycles, fitted.norm_cycles_per_half
    return _passes(context, "norm", context.source, start, per_half, _NORM_STEPS)


def _passes(context: Context, kind: str, value: Value, start: int, per_half: float, steps: int) -> Work:
    """Floats take twice as long; the source is copied once and a result is made."""
    width = value.bytes_per_element / HALF_BYTES
    elements = context.per_tile(value.size)
    temporary = 2 * context.bytes_per_tile(value)
    return context.spread(kind, start + elements * per_half * width, steps=steps, temporary=temporary)


def reduction(context: Context) -> Work:
    """One stage where every tile has results of its own to add up, else a second that adds up the tiles'
    partial results."""
    stages = 1 if context.result.size >= context.target.num_tiles else 2
    elements = context.per_tile(context.source.size)
    read = elements * context.source.bytes_per_element / _LOAD_BYTES
    return context.spread("reduction", stages * context.calibration.reduction_cycles + read, steps=stages)


def pool(context: Context) -> Work:
    """Every position of the kernel is looked at for each result; the input is exchanged as a whole, for its
    halos."""
    taps = math.prod(context.attribute("kernel_shape", [1]))
    workers = context.target.workers_per_tile
    vectors = math.ceil(context.per_tile(context.result.size) / _POOL_VECTOR / workers)
    width = context.source.bytes_per_element / HALF_BYTES
    compute = (
        context.calibration.pool_start_cycles + workers * vectors * (POOL_POSITION + POOL_TAP * taps) * width
    )
    exchange = context.exchange_cycles(context.bytes_per_tile(context.source))
    return context.spread("pool", compute, exchange, steps=2)
