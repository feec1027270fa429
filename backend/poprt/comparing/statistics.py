"""Statistics of values: error measures, moments, a histogram, and the count of each half.

An error measure compares values with their approximations and gives one number; lower is better,
and 0 is best. Values may come with counts: how often each occurs. The names and measures are the
real tool's (PopRT User Guide, features/fp8): its `snr` is noise over signal.

The counts describe any number of halves completely if their order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from simipu.numerics import HALVES, narrow_to_half

from popef._tools.arrays import Array


def _total(values: Array, counts: Array | None) -> float:
    return float(values.sum() if counts is None else values @ counts)


def _number(original: Array, counts: Array | None) -> float:
    return float(original.size if counts is None else counts.sum())


def mse(original: Array, other: Array, counts: Array | None = None) -> float:
    """Return the mean of the squared differences; 0 for no values."""
    return _total((other - original) ** 2, counts) / max(1.0, _number(original, counts))


def mae(original: Array, other: Array, counts: Array | None = None) -> float:
    """Return the mean of the absolute differences; 0 for no values."""
    return _total(np.abs(other - original), counts) / max(1.0, _number(original, counts))


def snr(original: Array, other: Array, counts: Array | None = None) -> float:
    """Return the sum of the squared differences divided by the sum of the squared original values.

    It is infinite if the original values are all 0 and the others are not.
    """
    noise, signal = _total((other - original) ** 2, counts), _total(original**2, counts)
    if signal:
        return noise / signal
    return float("inf") if noise else 0.0


def cos_dist(original: Array, other: Array, counts: Array | None = None) -> float:
    """Return 1 minus the cosine of the angle between the two as vectors: 0 to 2.

    The result is 0 for two zero vectors, 1 for one.
    """
    lengths = math.sqrt(_total(original**2, counts) * _total(other**2, counts))
    if not lengths:
        return 0.0 if original.any() == other.any() else 1.0
    return max(0.0, float(1.0 - _total(original * other, counts) / lengths))


ERRORS: Mapping[str, Callable[..., float]] = {
    "mse": mse,
    "mae": mae,
    "snr": snr,
    "cos_dist": cos_dist,
}
"""Error measures by the real tool's names; kld needs more than two arrays, see
`poprt.quantizer.search`."""


BINS = 32
"""Number of bins of a histogram in precision_compare.log, as in the real tool's."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean, standard deviation, extremes, skewness, kurtosis (0 for a normal distribution) and a
    histogram.

    The histogram has 32 equal bins from the smallest value to the largest. If all values are equal,
    skewness and kurtosis are 0.
    """

    mean: float
    std: float
    least: float
    most: float
    skewness: float
    kurtosis: float
    histogram: tuple[int, ...]

    @staticmethod
    def of(values: Array, counts: Array | None = None) -> Moments:
        """Return the moments of finite values, each as often as its count says.

        All moments of no values are 0.
        """
        flat = np.asarray(values, np.float64).ravel()
        if not flat.size:
            return Moments(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (0,) * BINS)
        # Central moments m_k = mean of (x - mean)**k: std = sqrt(m_2), skewness = m_3 / m_2**1.5,
        # and kurtosis = m_4 / m_2**2, less the 3 of a normal distribution.
        weights = np.ones(flat.size) if counts is None else np.asarray(counts, np.float64)
        total = weights.sum()
        mean = float(flat @ weights / total)
        apart = flat - mean
        second, third, fourth = (float(apart**power @ weights / total) for power in (2, 3, 4))
        # The rounding error of the variance of equal values counts as 0.
        varies = flat.min() < flat.max() and second > 0
        histogram, _ = (
            np.histogram(flat, BINS, weights=weights) if varies else (np.zeros(BINS), None)
        )
        if not varies:
            histogram[BINS // 2] = total
        return Moments(
            mean,
            second**0.5,
            float(flat.min()),
            float(flat.max()),
            third / second**1.5 if varies else 0.0,
            fourth / second**2 - 3 if varies else 0.0,
            tuple(int(bin_count) for bin_count in np.rint(histogram)),
        )

    def describe(self) -> str:
        """Return the moments in one line, without the histogram."""
        return (
            f"mean {self.mean:.6g}, std {self.std:.6g}, min {self.least:.6g}, max {self.most:.6g}, "
            f"skewness {self.skewness:.6g}, kurtosis {self.kurtosis:.6g}"
        )


@dataclass(slots=True)
class HalfCounts:
    """Number of occurrences of each half in arrays that are added one after the other and not kept.

    It takes 512 KiB, however many arrays are added.
    """

    _counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(HALVES, np.int64))

    def add(self, values: Array) -> None:
        """Count halves, or floats rounded to half; too large values count as the largest half."""
        halves = values if values.dtype == np.float16 else narrow_to_half(values)
        self._counts += np.bincount(
            np.ascontiguousarray(halves).view(np.uint16).ravel(), minlength=HALVES
        )

    @property
    def lost(self) -> int:
        """Return how many values were NaN or infinite."""
        return int(self._counts[~np.isfinite(_all_halves())].sum())

    def distribution(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the finite values that occur, in ascending order, and how often each occurs."""
        values = _all_halves().astype(np.float64)
        codes = np.flatnonzero((self._counts > 0) & np.isfinite(values))
        order = codes[np.argsort(values[codes], kind="stable")]
        return values[order], self._counts[order].astype(np.float64)


def _all_halves() -> npt.NDArray[np.float16]:
    return np.arange(HALVES, dtype=np.uint16).view(np.float16)


def iter_comparison(original: Array, other: Array) -> Iterator[str]:
    """Yield the lines that compare values with their originals.

    The lines are moments and histogram of both and of the difference, then the errors of
    `calibration.errors`. Pairs in which a value is not finite are left out and counted.
    """
    first, second = (np.asarray(array, np.float64).ravel() for array in (original, other))
    is_finite = np.isfinite(first) & np.isfinite(second)
    if not is_finite.all():
        yield f"  left out: {int((~is_finite).sum())} values that are not finite"
        first, second = first[is_finite], second[is_finite]
    for name, values in (
        ("original", first),
        ("quantised", second),
        ("error", second - first),
    ):
        moments = Moments.of(values)
        yield f"  {name}: {moments.describe()}"
        yield f"  {name} histogram: {' '.join(map(str, moments.histogram))}"
    yield f"  {', '.join(f'{name} {error(first, second):.6g}' for name, error in ERRORS.items())}"
