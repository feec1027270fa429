"""Floating-point numbers in TensorFlow Serving's JSON format (WriteDecimal of json_tensor.cc).

The format is `%g`, with its six digits, if that reads back as the same number, otherwise all
digits. Whole numbers end in `.0`. One format string, made for all numbers of an array, prints them:
some 250 ns each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ALL_DIGITS = {2: 5, 4: 9, 8: 17}
"""Number of decimal digits that distinguish all numbers, by their size in bytes: max_digits10."""
_SHORT_DIGITS = 6
_EXACT_POWERS = 22
"""Largest exact power: 10**22 is the largest power of ten that is a double."""


def print_floats(numbers: npt.NDArray[np.floating[Any]]) -> list[str]:
    """Format the numbers of a flat array of float16, float32 or float64 as JSON, with NaN, Infinity
    and -Infinity."""
    digits = _ALL_DIGITS[numbers.dtype.itemsize]
    values = numbers.astype(np.float64)
    short = (
        _find_short(values, numbers.dtype) if digits > _SHORT_DIGITS else np.ones(len(values), bool)
    )
    # From this number on %g writes an exponent.
    largest = np.where(short, 10.0**_SHORT_DIGITS, 10.0**digits)
    formats = np.select(
        [
            np.isnan(values),
            values == np.inf,
            values == -np.inf,
            (values == np.rint(values)) & (np.abs(values) < largest),
            short,
        ],
        ["NaN%.0s", "Infinity%.0s", "-Infinity%.0s", "%.1f", "%g"],
        default=f"%.{digits}g",
    )
    if not len(values):
        return []
    return ("\n".join(formats.tolist()) % tuple(values.tolist())).split("\n")


def _find_short(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers six decimal digits read back as.

    If m and 10**k are doubles, the decimal m * 10**-k reads as m / 10**k rounded once, and m *
    10**k likewise. So the result of reading is known without printing. If 10**k is not a double,
    the number is printed and read.
    """
    with np.errstate(all="ignore"):
        exponents = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = _SHORT_DIGITS - 1 - exponents
        power = 10.0 ** np.abs(scale)
        read = np.where(
            scale >= 0, np.rint(values * power) / power, np.rint(values / power) * power
        )
        short: npt.NDArray[np.bool_] = np.equal(read.astype(dtype), values)
    for index in np.flatnonzero(np.isfinite(values) & (np.abs(scale) > _EXACT_POWERS)).tolist():
        short[index] = dtype.type(f"{values[index]:g}") == values[index]
    return short
