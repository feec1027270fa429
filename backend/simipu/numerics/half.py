"""Converts floats to halves in blocks that fit into the cache. Numpy's own cast takes a hundred
times longer for each result below 2**-14, of which a model's weights have many.

    float  s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm      half  s eeeee mmmmmmmmmm
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from popef._tools.arrays import Array
from simipu.numerics.rounding import HALF_MAX

HALVES = 1 << 16
"""Number of codes of a half."""
_BLOCK = 1 << 15
"""Number of elements processed at a time: five arrays of them fit into a core's second cache."""
_SIGN, _REST = np.uint32(0x8000_0000), np.uint32(0x7FFF_FFFF)
_INFINITY = 0x7F80_0000
_LARGEST = np.uint32(0x477F_E000)
"""Bits of 65,504, the largest half."""
_MIN_NORMAL = 0x3880_0000
"""Bits of 2**-14."""
_REBIASED = np.uint32((((15 - 127) << 23) & 0xFFFF_FFFF) + 0xFFF)
"""Change of the exponent's bias from 127 to 15, plus almost half of the last bit that is kept."""
_ALIGNED = np.float32(0.5)
"""Number whose last bit is 2**-24, like that of halves below 2**-14: adding it to a value rounds
the value there."""


def narrow_to_half(values: Array) -> npt.NDArray[np.float16]:
    """Return the nearest halves, ties to even; finite values beyond their range become the largest
    half."""
    if values.dtype != np.float32:
        return _narrow_plainly(values)
    flat = np.ascontiguousarray(values).reshape(-1)
    made = np.empty(flat.size, np.uint16)
    for start in range(0, flat.size, _BLOCK):
        made[start : start + _BLOCK] = _narrow_block(flat[start : start + _BLOCK])
    return made.view(np.float16).reshape(values.shape)


def _narrow_block(block: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = block.view(np.uint32)
    rest = bits & _REST
    if rest.max() >= _INFINITY:
        return _narrow_plainly(block).view(np.uint16)
    np.minimum(rest, _LARGEST, out=rest)
    small = np.flatnonzero(rest < _MIN_NORMAL)
    # 13 bits are dropped. Adding 0xFFF, half of the last kept bit less one, and that bit itself
    # carries into it if the dropped bits are more than a half, or a half and the bit is odd: to
    # nearest, ties to even. A carry out of the mantissa increments the exponent, as it must.
    made = ((rest + ((rest >> 13) & 1) + _REBIASED) >> 13).astype(np.uint16)
    if small.size:
        # The float addition rounds to the last bit of 0.5, and the difference of the bits counts
        # these units: the code of a subnormal half.
        aligned = rest[small].view(np.float32) + _ALIGNED
        made[small] = aligned.view(np.uint32) - _ALIGNED.view(np.uint32)
    made |= ((bits & _SIGN) >> 16).astype(np.uint16)
    return made


def _narrow_plainly(values: Array) -> npt.NDArray[np.float16]:
    """Convert any values with numpy's cast; infinities and NaN stay."""
    bounded = np.where(np.isinf(values), values, np.clip(values, -HALF_MAX, HALF_MAX))
    return bounded.astype(np.float16)
