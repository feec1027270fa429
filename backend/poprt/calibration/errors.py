"""Error measures between values and their approximations, each as one number; lower is better, and
0 is best.

Values may come with counts: how often each occurs. The names and measures are the real tool's
(PopRT User Guide, features/fp8): its `snr` is noise over signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

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
