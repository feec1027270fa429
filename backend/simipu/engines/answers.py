"""Binary format of an isolated child process's answers: program loaded, the arrays of a run, or an
error.

The parent does not trust the child, which computes graphs from unknown sources. The parent executes
nothing in an answer and looks nothing up by name, unlike with a pickle. Types and errors are
indices into fixed tables, and every size is checked against the number of bytes received.

    loaded   kind, names of what computes the program in ASCII
    error    kind, number of the class (1 byte), text in UTF-8
    arrays   kind, for each array: number of the type, rank (1 byte each), dimensions (8 bytes
             each), elements
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from popef._tools.arrays import Array
from simipu import errors

MAX_TEXT_BYTES = 1 << 16
"""Maximum number of bytes of an error's text."""
MAX_AXES = 32
"""Maximum number of axes of an array, the same as of a stream."""
_NAMES = re.compile(rb"[a-z0-9,]{0,64}")
"""What may compute a program: names of accelerators and kernels."""
_ERROR_BYTES = 2
"""Number of bytes of an error's kind and class."""
_TYPES = tuple(
    np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 "
    "float64".split()
)
_ERRORS: tuple[type[errors.SimIpuError], ...] = (
    errors.LoadError,
    errors.ForeignExecutableError,
    errors.LoadTimeoutError,
    errors.LoadMemoryError,
    errors.RunError,
    errors.RunMemoryError,
    errors.DeviceLostError,
    errors.RunTimeoutError,
    errors.AcceleratorError,
)


class _Kind(IntEnum):
    LOADED = 1
    ERROR = 2
    ARRAYS = 3


class AnswerError(Exception):
    """The bytes are not a valid answer to the request."""


def encode_loaded(kernels: str) -> bytes:
    """Return the answer of a child that has loaded its program, which `kernels` compute."""
    return bytes([_Kind.LOADED]) + kernels.encode("ascii")


def encode_error(error: errors.SimIpuError) -> bytes:
    """Return the answer that makes the parent raise `error`. An error whose class is not in the
    table is raised as RunError."""
    kind = type(error) if type(error) in _ERRORS else errors.RunError
    text = str(error).encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    return bytes([_Kind.ERROR, _ERRORS.index(kind)]) + text


def encode_arrays(arrays: Sequence[Array]) -> bytes:
    """Return the answer to a run. Raises RunError for an array whose type no stream supports."""
    parts: list[bytes | memoryview] = [bytes([_Kind.ARRAYS])]
    for array in map(np.asarray, arrays):
        if array.dtype not in _TYPES or array.ndim > MAX_AXES:
            raise errors.RunError(
                f"the graph returns an array of type {array.dtype}, which no stream supports"
            )
        parts.append(
            struct.pack(f"<BB{array.ndim}q", _TYPES.index(array.dtype), array.ndim, *array.shape)
        )
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return b"".join(parts)


def decode_loaded(answer: bytes | bytearray) -> str:
    """Return what computes the loaded program. Raises the child's error, or AnswerError for
    anything else."""
    _raise_error(answer)
    names = bytes(answer[1:])
    if answer[:1] != bytes([_Kind.LOADED]) or not _NAMES.fullmatch(names):
        raise AnswerError("expected the answer that the program is loaded")
    return names.decode("ascii")


def decode_arrays(answer: bytes | bytearray, count: int) -> list[Array]:
    """Return the `count` arrays of a run. Raises the child's error, or AnswerError for anything
    else."""
    _raise_error(answer)
    if answer[:1] != bytes([_Kind.ARRAYS]):
        raise AnswerError("expected arrays")
    at, arrays = 1, list[Array]()
    for _ in range(count):
        array, at = _decode_array(answer, at)
        arrays.append(array)
    if at != len(answer):
        raise AnswerError(f"expected {count} arrays, found {len(answer) - at} bytes more")
    return arrays


def _decode_array(answer: bytes | bytearray, at: int) -> tuple[Array, int]:
    try:
        number, rank = struct.unpack_from("<BB", answer, at)
        if number >= len(_TYPES) or rank > MAX_AXES:
            raise AnswerError(f"expected an array, found type {number} of {rank} axes")
        shape = struct.unpack_from(f"<{rank}q", answer, at + 2)
    except struct.error as error:
        raise AnswerError(f"expected an array: {error}") from None
    dtype, start = _TYPES[number], at + 2 + 8 * rank
    elements = math.prod(shape)
    end = start + elements * dtype.itemsize
    # numpy also limits the product of the sizes that are not 0.
    if min(shape, default=0) < 0 or math.prod(filter(None, shape)) >= 1 << 59 or end > len(answer):
        raise AnswerError(
            f"expected an array of shape {list(shape)}, found {len(answer) - start} bytes"
        )
    return np.frombuffer(answer, dtype, elements, start).reshape(shape).copy(), end


def _raise_error(answer: bytes | bytearray) -> None:
    if answer[:1] != bytes([_Kind.ERROR]):
        return
    number, text = answer[1:_ERROR_BYTES], answer[_ERROR_BYTES:]
    if not number or number[0] >= len(_ERRORS) or len(text) > MAX_TEXT_BYTES:
        raise AnswerError(f"expected an error of a known class, found {len(answer)} bytes")
    raise _ERRORS[number[0]](text.decode("utf-8", "replace"))
