"""How far values are from those that they stand for, in one number; the lower the better, and 0 is best.

Values may come with counts: how often each occurs. The names and what they measure are the real tool's
(PopRT User Guide, features/fp8): `snr` there is noise over signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _total(values: Array, counts: Array | None) -> float:
    return float(values.sum() if counts is None else values @ counts)


def _number(original: Array, counts: Array | None) -> float:
    return float(original.size if counts is None else counts.sum())


def mse(original: Array, other: Array, counts: Array | None = None) -> float:
    """The mean of the squared differences; 0 of no values."""
    return _total((other - original) ** 2, counts) / max(1.0, _number(original, counts))


def mae(original: Array, other: Array, counts: Array | None = None) -> float:
    """The mean of the differences' sizes; 0 of no values."""
    return _total(np.abs(other - original), counts) / max(1.0, _number(original, counts))


def snr(original: Array, other: Array, counts: Array | None = None) -> float:
    """The sum of the squared differences over that of the squared original values: infinite where these are
    all 0 and the others are not."""
    noise, signal = _total((other - original) ** 2, counts), _total(original**2, counts)
    if signal:
        return noise / signal
    return float("inf") if noise else 0.0


def cos_dist(original: Array, other: Array, counts: Array | None = None) -> float:
    """1 less the cosine of the angle between the two as vectors: 0 to 2; 0 of two zeros, 1 of one."""
    lengths = math.sqrt(_total(original**2, counts) * _total(other**2, counts))
    if not lengths:
        return 0.0 if original.any() == other.any() else 1.0
    return max(0.0, float(1.0 - _total(original * other, counts) / lengths))


ERRORS: Mapping[str, Callable[..., float]] = {"mse": mse, "mae": mae, "snr": snr, "cos_dist": cos_dist}
"""By the real tool's names; kld needs more than two arrays, see `poprt.quantizer.search`."""
