"""The chip's 8-bit floating point (Poplar's QUARTER): two formats, each a literal, and the
conversion between codes and values.

     7   6      3 2   0          7   6       2 1 0
    +---+--------+-----+        +---+---------+---+
    | s |  exp   | man |  F143  | s |   exp   |man|  F152
    +---+--------+-----+        +---+---------+---+

Exponent 0 holds the subnormals. There is one NaN, 0x80, where other formats have a negative zero,
and no infinity. A tensor has a scale: the value of a code is the decoded value times 2 to that
power (graphcore/poplibs, lib/popops/Cast.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from popef._tools.arrays import Array

NAN_CODE = 0x80
_SIGN, _LARGEST_CODE = 0x80, 0x7F


@dataclass(frozen=True, slots=True)
class QuarterFormat:
    """One of the two formats; `data_type` is ONNX's name for the same bits."""

    name: str
    data_type: int
    mantissa_bits: int
    bias: int

    @property
    def largest(self) -> float:
        """The largest value at scale 0: 240 of F143, 57,344 of F152."""
        return float(_magnitudes(self)[-1])

    @property
    def smallest_normal(self) -> float:
        """The smallest value with a full mantissa at scale 0."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest value above zero at scale 0, which is the step between subnormals."""
        return self.smallest_normal * 2.0**-self.mantissa_bits


F143 = QuarterFormat("F143", TensorProto.FLOAT8E4M3FNUZ, mantissa_bits=3, bias=8)
F152 = QuarterFormat("F152", TensorProto.FLOAT8E5M2FNUZ, mantissa_bits=2, bias=16)
FORMATS = {quarter.name: quarter for quarter in (F143, F152)}
QUARTERS = {quarter.data_type: quarter for quarter in (F143, F152)}
"""Formats by ONNX's element type."""


@cache
def _magnitudes(quarter: QuarterFormat) -> npt.NDArray[np.float64]:
    """Return the values of codes 0 to 127, in ascending order."""
    # Normal values have a hidden bit above the mantissa; exponent 0 has none, and the same unit as
    # exponent 1:  value = (hidden + mantissa) * 2**(max(exponent, 1) - bias - mantissa_bits)
    codes = np.arange(NAN_CODE)
    exponents = codes >> quarter.mantissa_bits
    mantissas = codes & ((1 << quarter.mantissa_bits) - 1)
    subnormal = exponents == 0
    significands = mantissas + np.where(subnormal, 0, 1 << quarter.mantissa_bits)
    powers = np.maximum(exponents, 1) - quarter.bias - quarter.mantissa_bits
    return np.ldexp(significands.astype(np.float64), powers)


def decode(
    codes: npt.NDArray[np.uint8], quarter: QuarterFormat, scale: int = 0
) -> npt.NDArray[np.float32]:
    """Return the values of codes, in their shape; exact for every scale from -100 to 100."""
    values = np.concatenate([_magnitudes(quarter), -_magnitudes(quarter)])
    values[NAN_CODE] = np.nan
    table: npt.NDArray[np.float32] = np.ldexp(values, scale).astype(np.float32)
    return table[codes]


def encode(
    values: Array, quarter: QuarterFormat, scale: int = 0, *, nan_on_overflow: bool = False
) -> npt.NDArray[np.uint8]:
    """Return the codes nearest to `values`, in their shape, ties to the even code.

    A value beyond the largest one, infinity included, becomes the largest value, or NaN with
    `nan_on_overflow`. A negative value that rounds to zero becomes zero, because there is no
    negative zero.
    """
    with np.errstate(invalid="ignore"):
        scaled = np.ldexp(values.astype(np.float64), -scale)
    # code        0    1    2   ...   127   overflow
    # value       +    +    +          +    +              the last is one step beyond the largest
    # midpoint      m0   m1   ...        m127
    #
    # searchsorted returns code i for m(i-1) < size <= m(i): of a tie, the lower code. If that is
    # odd the tie belongs to the next one.
    magnitudes = _magnitudes(quarter)
    beyond = 2 * magnitudes[-1] - magnitudes[-2]
    midpoints = (magnitudes + np.append(magnitudes[1:], beyond)) / 2
    sizes = np.abs(scaled)
    codes = np.searchsorted(midpoints, sizes)
    ties = sizes == midpoints[np.minimum(codes, _LARGEST_CODE)]
    codes += ties & (codes % 2 == 1)
    overflows = codes > _LARGEST_CODE
    codes = np.where(overflows, _LARGEST_CODE, codes)
    codes |= np.where((scaled < 0) & (codes > 0), _SIGN, 0)
    lost = np.isnan(scaled) | (overflows & nan_on_overflow)
    return np.where(lost, NAN_CODE, codes).astype(np.uint8)
