"""Many of protobuf's packed numbers of variable length at once: seven bits per byte, the lowest
first, the eighth set on all bytes but the last."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from popef._tools.arrays import Array

_MORE = 0x80
_BELOW = _MORE - 1
_PART = np.uint8(_BELOW)
_BITS = 7
_MAX_BYTES = 10
"""Maximum length of a number of 64 bits."""
_AT_ONCE = 1 << 16
"""Number of values converted at a time; the intermediate data of each takes many times its size."""
_FEW_NUMBERS, _FEW_BYTES = 64, 256
"""Sizes up to which numpy takes longer to start than converting the numbers one by one."""
_64_BITS = 2**64 - 1
_NOT_WHOLE, _TOO_LONG = "the last number is incomplete", "a number is longer than ten bytes"


def read_varints(packed: bytes) -> npt.NDArray[np.uint64]:
    """Return the numbers; negative ones are their two's complement in 64 bits. Raises ValueError if
    the bytes are not whole numbers of at most ten bytes each."""
    octets = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # all bytes below 128: each is a number
        return octets.astype(np.uint64)
    if len(packed) <= _FEW_BYTES:
        return _read_few(packed)
    last = np.flatnonzero(octets < _MORE)
    if not last.size or last[-1] != octets.size - 1:
        raise ValueError(_NOT_WHOLE)
    numbers = np.empty(last.size, np.uint64)
    start = 0
    for place in range(0, last.size, _AT_ONCE):
        ends = last[place : place + _AT_ONCE] + 1
        numbers[place : place + _AT_ONCE] = _read_some(octets[start : ends[-1]], ends - start)
        start = ends[-1]
    return numbers


def _read_few(packed: bytes) -> npt.NDArray[np.uint64]:
    numbers, number, shift = [], 0, 0
    for octet in packed:
        if shift == _BITS * _MAX_BYTES:
            raise ValueError(_TOO_LONG)
        number |= (octet & _BELOW) << shift
        shift += _BITS
        if octet < _MORE:
            numbers.append(number & _64_BITS)
            number = shift = 0
    if shift:
        raise ValueError(_NOT_WHOLE)
    return np.array(numbers, np.uint64)


def _read_some(octets: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """Return the numbers that end at `ends`."""
    first = np.concatenate(([0], ends[:-1]))
    lengths = ends - first
    longest = int(lengths.max())
    if longest > _MAX_BYTES:
        raise ValueError(_TOO_LONG)
    numbers: npt.NDArray[np.uint64] = (octets[first] & _PART).astype(np.uint64)
    for place in range(1, longest):
        has = lengths > place
        part = octets[np.where(has, first + place, first)] & _PART
        numbers |= np.where(has, part, 0).astype(np.uint64) << np.uint64(_BITS * place)
    return numbers


def write_varints(values: Array) -> bytes:
    """Return whole numbers, packed; negative ones take ten bytes."""
    if values.size <= _FEW_NUMBERS:
        return _write_few(values.ravel().tolist())
    if values.min() >= 0 and values.max() < _MORE:
        return values.astype(np.uint8).tobytes()
    flat = values.ravel()
    numbers = (
        flat.astype(np.int64).view(np.uint64)
        if values.dtype.kind == "i"
        else flat.astype(np.uint64)
    )
    longest = -(-int(numbers.max()).bit_length() // _BITS)
    octets = np.empty((numbers.size, longest), np.uint8)
    counts = np.empty((numbers.size, longest), np.bool_)
    for place in range(longest):
        rest = numbers >> np.uint64(_BITS * place)
        counts[:, place] = rest > 0
        octets[:, place] = rest.astype(np.uint8) | _MORE
    counts[:, 0] = True  # a zero takes a byte
    ends = counts.sum(axis=1) - 1
    octets[np.arange(numbers.size), ends] &= _PART
    return octets[counts].tobytes()


def _write_few(numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for number in numbers:
        rest = number & _64_BITS
        while rest >= _MORE:
            packed.append(rest & _BELOW | _MORE)
            rest >>= _BITS
        packed.append(rest)
    return bytes(packed)
