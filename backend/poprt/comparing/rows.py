"""Comparison of a row's results in its batch with its results elsewhere.

A batch of rows x0 x1 x2 x3 is computed whole, and then

    in another order,     x3 z1 x1 z3           with rows z of another batch in parts
    x0 | x2 x3 | x1 | ..  of 1 to 3 rows at every place, so at other batch sizes

Each row must give the same result as in the whole batch. If runs are slow, only two parts are
computed: the last row with another one, and the first row alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import has_types
from simipu.numerics import QUARTERS

from popef._tools.arrays import Array
from poprt.comparing.outputs import measure_difference

Compute = Callable[[Sequence[Array]], Sequence[Array]]
"""Function that returns the outputs of some rows; all arrays have rows along their first axis."""

_MAX_PART_ROWS = 3
"""Maximum number of rows of a part."""
_ENOUGH_SECONDS = 0.3
"""Time in seconds after which no further part is computed."""
_MAX_SECONDS_OF_RUN = 0.05
"""Maximum time in seconds of a run of the whole batch; if a run takes longer, few rows are computed
again."""
_BOUND, _HALF_BOUND, _QUARTER_BOUND = 1e-4, 2.0**-6, 2.0**-3
"""Bounds in float, half and 8 bits; `find_bound` says why they are so large."""


def find_bound(model: onnx.ModelProto) -> float:
    """Return how far results of the same row may differ, relative to 1 or the largest result.

    Kernels sum in another order for other numbers of rows: the difference is some 1e-6 in float. In
    half and 8 bits this sometimes decides how a result is rounded, which later operators enlarge.
    Rows that leak into each other differ by much more: 1e-4 showed all six wrong rules that were
    ever found, over 116 models.
    """
    if has_types(model.graph, QUARTERS):
        return _QUARTER_BOUND
    return _HALF_BOUND if has_types(model.graph, (TensorProto.FLOAT16,)) else _BOUND


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch computed as a whole: inputs, outputs and run time; rows lie along the first axis."""

    rows: Sequence[Array]
    results: Sequence[Array]
    seconds: float

    @classmethod
    def of(cls, compute: Compute, rows: Sequence[Array]) -> Batch:
        """Compute the outputs of a batch."""
        start = time.monotonic()
        return cls(rows, compute(rows), time.monotonic() - start)


def measure_rows(compute: Compute, whole: Batch, others: Sequence[Array]) -> list[float]:
    """Return for each output the largest difference between a row in its batch and the same row
    elsewhere.

    `others` is another batch of the inputs; batches have at least 2 rows. Differences are relative
    to 1 or the largest finite value of the output; infinite where only one of two values is finite,
    or integers differ.
    """
    distances = [0.0] * len(whole.results)
    batch = len(whole.rows[0])
    start = time.monotonic()
    for numbers in _iter_parts(batch, whole.seconds > _MAX_SECONDS_OF_RUN):
        part_results = compute(_take(whole.rows, others, numbers))
        places = [place for place, number in enumerate(numbers) if number < batch]
        mine = [numbers[place] for place in places]
        for index, (expected, values) in enumerate(zip(whole.results, part_results, strict=True)):
            distances[index] = max(distances[index], _measure(values[places], expected[mine]))
        if time.monotonic() - start > _ENOUGH_SECONDS:
            break
    return distances


def _take(rows: Sequence[Array], others: Sequence[Array], numbers: Sequence[int]) -> list[Array]:
    """Return rows by number; the rows of `others` continue the numbering."""
    return [np.concatenate(pair)[list(numbers)] for pair in zip(rows, others, strict=True)]


def _iter_parts(batch: int, is_slow: bool) -> Iterator[list[int]]:
    """Yield the numbers of rows to compute together.

    Numbers from `batch` on are rows of the other batch.
    """
    if is_slow:
        yield from ([batch - 1, batch], [0])
        return
    yield [batch - 1 - place if place % 2 == 0 else batch + place for place in range(batch)]
    for size in range(1, min(_MAX_PART_ROWS, batch - 1) + 1):
        yield from (list(range(first, first + size)) for first in range(batch - size + 1))


def _measure(found: Array, expected: Array) -> float:
    if found.shape != expected.shape:
        return float("inf")
    difference = measure_difference(found, expected, 1.0)
    return float("inf") if difference and expected.dtype.kind != "f" else difference
