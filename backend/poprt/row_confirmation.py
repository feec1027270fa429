"""Confirms by running what row rules have proven: results of a row do not depend on the rows beside it.

A batch of rows x0 x1 x2 x3 is computed whole, and then

    in another order,     x3 z1 x1 z3           beside rows z of another batch
    in parts              x0 | x3 | x1 x2 | ..  of 1 to 3 rows at every place, so at other batch sizes

and each row has to give what it gave in the whole batch. Nothing is loaded here: the caller computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from simipu.numerics.quarter import QUARTERS

from poprt.calibration import has_types

Array = npt.NDArray[Any]
Compute = Callable[[Sequence[Array]], Sequence[Array]]
"""Gives the outputs of some rows; all arrays have the rows along their first axis."""

_MAX_PART_ROWS = 3
_MIN_PARTS = 2
"""Parts that are computed however long they take: one row alone, and the last."""
_ENOUGH_SECONDS = 0.5
"""After which no further part is computed."""
_BOUND, _HALF_BOUND, _QUARTER_BOUND = 1e-4, 2.0**-6, 2.0**-3


def find_bound(model: onnx.ModelProto) -> float:
    """Return how far results of the same row may lie apart, relative to 1 or the largest result.

    Kernels add up in another order for other numbers of rows: some 1e-6 in float. In half and 8 bits that
    decides now and then how a result is rounded, which later operators enlarge. Rows that leak into each
    other differ by much more: 1e-4 showed all six wrong rules that were ever found, over 116 models.
    """
    if has_types(model.graph, QUARTERS):
        return _QUARTER_BOUND
    return _HALF_BOUND if has_types(model.graph, (TensorProto.FLOAT16,)) else _BOUND


def measure_rows(compute: Compute, rows: Sequence[Array], others: Sequence[Array]) -> list[float]:
    """Return for each output the largest difference between a row in its batch and the same row elsewhere.

    `rows` and `others` are two batches of the inputs, at least 2 rows each. Differences are relative to 1 or
    the largest finite value of the output; infinite where only one of two values is finite, or integers
    differ.
    """
    whole = compute(rows)
    distances = [0.0] * len(whole)

    def compare(found: Sequence[Array], places: Sequence[int], numbers: Sequence[int]) -> None:
        for index, (expected, values) in enumerate(zip(whole, found, strict=True)):
            distance = _measure(expected[list(numbers)], values[list(places)])
            distances[index] = max(distances[index], distance)

    batch = len(rows[0])
    mixed, places = _mix(rows, others, batch)
    compare(compute(mixed), places, [batch - 1 - place for place in places])
    start = time.monotonic()
    for done, (first, size) in enumerate(_iter_parts(batch)):
        if done >= _MIN_PARTS and time.monotonic() - start > _ENOUGH_SECONDS:
            break
        part = compute([value[first : first + size] for value in rows])
        compare(part, range(size), range(first, first + size))
    return distances


def _mix(rows: Sequence[Array], others: Sequence[Array], batch: int) -> tuple[list[Array], list[int]]:
    """Every other place has a row of `rows` in reverse order, the places between have rows of `others`."""
    places = list(range(0, batch, 2))
    mixed = []
    for mine, other in zip(rows, others, strict=True):
        values = other.copy()
        values[places] = mine[::-1][places]
        mixed.append(values)
    return mixed, places


def _iter_parts(batch: int) -> Iterator[tuple[int, int]]:
    """Yield first row and size of each part: the first row and the last rows at once, then all others."""
    last = min(2, batch - 1)
    early = [(0, 1), (batch - last, last)]
    yield from early
    for size in range(1, min(_MAX_PART_ROWS, batch - 1) + 1):
        yield from ((first, size) for first in range(batch - size + 1) if (first, size) not in early)


def _measure(expected: Array, found: Array) -> float:
    if np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f"):
        return 0.0
    if expected.dtype.kind != "f" or expected.shape != found.shape:
        return float("inf")
    one, two = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)) or not np.array_equal(
        one[~finite], two[~finite], equal_nan=True
    ):
        return float("inf")
    scale = max(1.0, float(np.abs(one[finite]).max(initial=0)))
    return float(np.abs(one[finite] - two[finite]).max(initial=0)) / scale
