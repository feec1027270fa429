"""Frames between the operators and the child process that runs a model. operators/frames.h has a
picture of them, and the code of the other side."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from socket import socket
from typing import Any

import numpy as np
from model_runtime import DataDesc

from popef._tools.arrays import Array
from poplar_serving.description import ModelDescription, type_number
from poplar_serving.errors import FrameError

_HEADER = struct.Struct("<IIQQ")
_START = struct.Struct("<q")
_DESCRIPTION = struct.Struct("<QII")
_TENSOR = struct.Struct("<III")
MAX_PATH_BYTES = 4096
"""Maximum length of a path in Linux."""
MAX_TEXT_BYTES = 1 << 16
"""Maximum length of a fault's text."""


class Kind(IntEnum):
    """Kind of a frame."""

    START = 1
    CALL = 2
    READY = 3
    RESULT = 4
    FAULT = 5


class Code(IntEnum):
    """Status codes in gRPC's numbers, which are TensorFlow's, too. They say whose fault an error
    is."""

    NONE = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    INTERNAL = 13
    UNAVAILABLE = 14


def read_into(connection: socket, place: memoryview) -> None:
    """Fill `place`. Raises EOFError if the other side ends before."""
    while place:
        received = connection.recv_into(place)
        if not received:
            raise EOFError
        place = place[received:]


def read_header(connection: socket, expected: Kind) -> tuple[int, int]:
    """Return the call's id and the body size in bytes of the next frame, which must be of kind
    `expected`.

    Raises FrameError for another kind, and EOFError if the other side ends.
    """
    header = bytearray(_HEADER.size)
    read_into(connection, memoryview(header))
    kind, _, call, size = _HEADER.unpack(header)
    if kind != expected:
        raise FrameError(
            f"expected a frame of kind {expected.value} ({expected.name}), found {kind}"
        )
    return call, size


def read_start(connection: socket) -> tuple[str, int]:
    """Return the path of the PopEF file and the timeout in microseconds. Raises like
    `read_header`."""
    _, size = read_header(connection, Kind.START)
    if not _START.size < size <= _START.size + MAX_PATH_BYTES:
        raise FrameError(
            f"expected a path of 1 to {MAX_PATH_BYTES} bytes, found a body of {size} bytes"
        )
    body = bytearray(size)
    read_into(connection, memoryview(body))
    (timeout_us,) = _START.unpack_from(body)
    if timeout_us < 0:
        raise FrameError(f"expected a timeout of at least 0 microseconds, found {timeout_us}")
    return body[_START.size :].decode("utf-8", "surrogateescape"), timeout_us


def read_call(connection: socket, inputs: Sequence[DataDesc]) -> tuple[int, dict[str, Array]]:
    """Return the id of the next call and its inputs by name. Raises like `read_header`."""
    call, size = read_header(connection, Kind.CALL)
    expected = sum(tensor.size_in_bytes for tensor in inputs)
    if size != expected:
        raise FrameError(f"call {call}: expected {expected} bytes of inputs, found {size}")
    arrays = {tensor.name: np.empty(tensor.shape, tensor.numpy_data_type()) for tensor in inputs}
    for array in arrays.values():
        read_into(connection, _bytes_of(array))
    return call, arrays


def encode_start(path: str, timeout_us: int) -> list[memoryview]:
    """Return the frame that starts a child process."""
    return _encode(Kind.START, [_START.pack(timeout_us) + path.encode("utf-8", "surrogateescape")])


def encode_call(call: int, inputs: Sequence[Array]) -> list[memoryview]:
    """Return the frame of a call."""
    return _encode(Kind.CALL, [_bytes_of(array) for array in inputs], call)


def encode_ready(description: ModelDescription, run_limit_seconds: float) -> list[memoryview]:
    """Return the frame for a loaded model: its inputs and outputs, and the time limit of a run."""
    milliseconds = min(int(run_limit_seconds * 1000), 2**63)
    body = [_DESCRIPTION.pack(milliseconds, len(description.inputs), len(description.outputs))]
    for kind, tensors in (("input", description.inputs), ("output", description.outputs)):
        for tensor in tensors:
            name = tensor.name.encode()
            body.append(_TENSOR.pack(type_number(kind, tensor), len(name), len(tensor.shape)))
            body.append(name + struct.pack(f"<{len(tensor.shape)}q", *tensor.shape))
    return _encode(Kind.READY, [b"".join(body)])


def encode_result(call: int, outputs: Sequence[Array]) -> list[memoryview]:
    """Return the frame that answers a call. The arrays must not change until it is sent."""
    return _encode(Kind.RESULT, [_bytes_of(np.ascontiguousarray(array)) for array in outputs], call)


def encode_fault(call: int, code: Code, text: str) -> list[memoryview]:
    """Return the frame with the error of a call, or (call 0) the reason why no model is loaded."""
    return _encode(
        Kind.FAULT, [text.encode("utf-8", "backslashreplace")[:MAX_TEXT_BYTES]], call, code
    )


def send(connection: socket, frame: Sequence[memoryview]) -> None:
    """Send a frame. Raises OSError if the other side is gone."""
    for piece in frame:
        connection.sendall(piece)


def _encode(
    kind: Kind, body: Sequence[bytes | memoryview], call: int = 0, code: Code = Code.NONE
) -> list[memoryview]:
    pieces = [memoryview(piece) for piece in body]
    return [
        memoryview(_HEADER.pack(kind, code, call, sum(piece.nbytes for piece in pieces))),
        *pieces,
    ]


def _bytes_of(array: Array) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)
