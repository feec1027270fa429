"""Child process that runs a model for the operators: `model_runtime` at the other end of a socket.

It does not import TensorFlow. It ends when its connection closes, so it never outlives the server.
operators/frames.h has a picture of the frames between them, and the code of the other side.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from queue import SimpleQueue
from socket import socket
from typing import Any

import numpy as np
from model_runtime import (
    DataDesc,
    ModelRunner,
    ModelRunnerConfig,
    ModelRuntimeError,
    host_sync_timeout_seconds,
)
from simipu import (
    DeviceLostError,
    LoadError,
    LoadMemoryError,
    LoadTimeoutError,
    RunError,
    RunMemoryError,
    RunTimeoutError,
)

from popef import PopefError
from popef._tools.arrays import Array
from popef._tools.child import follow_parent, prepare
from popef._tools.console import LineFormatter
from popef._tools.text import escape
from poplar_serving.description import ModelDescription, describe_session, type_number
from poplar_serving.errors import ExportError, FrameError

_HEADER = struct.Struct("<IIQQ")
_START = struct.Struct("<q")
_DESCRIPTION = struct.Struct("<QII")
_TENSOR = struct.Struct("<III")
MAX_PATH_BYTES = 4096
"""Maximum length of a path in Linux."""
MAX_TEXT_BYTES = 1 << 16
"""Maximum length of a fault's text."""


class FrameKind(IntEnum):
    """Kind of a frame."""

    START = 1
    CALL = 2
    READY = 3
    RESULT = 4
    FAULT = 5


class StatusCode(IntEnum):
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


def read_header(connection: socket, expected: FrameKind) -> tuple[int, int]:
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
    _, size = read_header(connection, FrameKind.START)
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
    call, size = read_header(connection, FrameKind.CALL)
    expected = sum(tensor.size_in_bytes for tensor in inputs)
    if size != expected:
        raise FrameError(f"call {call}: expected {expected} bytes of inputs, found {size}")
    arrays = {tensor.name: np.empty(tensor.shape, tensor.numpy_data_type()) for tensor in inputs}
    for array in arrays.values():
        read_into(connection, _bytes_of(array))
    return call, arrays


def encode_start(path: str, timeout_us: int) -> list[memoryview]:
    """Return the frame that starts a child process."""
    return _encode(
        FrameKind.START, [_START.pack(timeout_us) + path.encode("utf-8", "surrogateescape")]
    )


def encode_call(call: int, inputs: Sequence[Array]) -> list[memoryview]:
    """Return the frame of a call."""
    return _encode(FrameKind.CALL, [_bytes_of(array) for array in inputs], call)


def encode_ready(description: ModelDescription, run_limit_seconds: float) -> list[memoryview]:
    """Return the frame for a loaded model: its inputs and outputs, and the time limit of a run."""
    milliseconds = min(int(run_limit_seconds * 1000), 2**63)
    body = [_DESCRIPTION.pack(milliseconds, len(description.inputs), len(description.outputs))]
    for kind, tensors in (("input", description.inputs), ("output", description.outputs)):
        for tensor in tensors:
            name = tensor.name.encode()
            body.append(_TENSOR.pack(type_number(kind, tensor), len(name), len(tensor.shape)))
            body.append(name + struct.pack(f"<{len(tensor.shape)}q", *tensor.shape))
    return _encode(FrameKind.READY, [b"".join(body)])


def encode_result(call: int, outputs: Sequence[Array]) -> list[memoryview]:
    """Return the frame that answers a call. The arrays must not change until it is sent."""
    return _encode(
        FrameKind.RESULT, [_bytes_of(np.ascontiguousarray(array)) for array in outputs], call
    )


def encode_fault(call: int, code: StatusCode, text: str) -> list[memoryview]:
    """Return the frame with the error of a call, or (call 0) the reason why no model is loaded."""
    return _encode(
        FrameKind.FAULT, [text.encode("utf-8", "backslashreplace")[:MAX_TEXT_BYTES]], call, code
    )


def send(connection: socket, frame: Sequence[memoryview]) -> None:
    """Send a frame. Raises OSError if the other side is gone."""
    for piece in frame:
        connection.sendall(piece)


def _encode(
    kind: FrameKind,
    body: Sequence[bytes | memoryview],
    call: int = 0,
    code: StatusCode = StatusCode.NONE,
) -> list[memoryview]:
    pieces = [memoryview(piece) for piece in body]
    return [
        memoryview(_HEADER.pack(kind, code, call, sum(piece.nbytes for piece in pieces))),
        *pieces,
    ]


def _bytes_of(array: Array) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


_MAX_WAITING_BYTES = 256 << 20
"""Maximum size of inputs that are read and not yet computed. Further inputs wait in the server."""
_CODES: Sequence[tuple[StatusCode, tuple[type[BaseException], ...]]] = (
    (StatusCode.NOT_FOUND, (FileNotFoundError,)),
    (StatusCode.FAILED_PRECONDITION, (OSError,)),
    (StatusCode.DEADLINE_EXCEEDED, (LoadTimeoutError, RunTimeoutError)),
    (StatusCode.RESOURCE_EXHAUSTED, (LoadMemoryError, RunMemoryError, MemoryError)),
    (StatusCode.UNAVAILABLE, (DeviceLostError,)),
    (
        StatusCode.INVALID_ARGUMENT,
        (LoadError, RunError, ModelRuntimeError, PopefError, ExportError),
    ),
)
"""Exceptions by status code; a subclass stands before its base class."""
_EXPECTED = tuple(kind for _, kinds in _CODES for kind in kinds)

_log = logging.getLogger("poplar_serving")


def main(descriptor: int) -> None:
    """Run the child process on the socket at `descriptor`, as the operators start it. All other
    descriptors of the server are closed."""
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    prepare(LineFormatter("poplar_serving"))
    follow_parent(descriptor)
    # Keep it open to the end: once the other side sees it closed, it may end this process before
    # the reason is logged.
    connection = socket(fileno=descriptor)
    status = 0
    try:
        serve(connection)
    except FrameError as error:
        _log.error("the connection to the operators: %s", error)
        status = 1
    except (EOFError, OSError):
        pass
    # The other side is gone or sends invalid frames, so no client waits for a run.
    os._exit(status)


def serve(connection: socket) -> None:
    """Load the model that the first frame names, and answer calls until the other side ends.

    Raises EOFError or OSError at that end, and FrameError for an invalid frame. Returns after
    sending the reason if the model cannot be loaded.
    """
    path, timeout_us = read_start(connection)
    # 0 would mean no timeout here, but with 0 the real operators do not wait.
    config = ModelRunnerConfig(timeout_ns=max(1, timeout_us * 1000), auto_reset=True)
    try:
        runner = ModelRunner(path, config)
        described = describe_session(runner.session)
    except _EXPECTED as error:
        send(connection, encode_fault(0, find_code(error), describe_error(error)))
        return
    with runner:
        send(connection, encode_ready(described, host_sync_timeout_seconds()))
        Calls(connection, runner, described).answer()


def find_code(error: BaseException) -> StatusCode:
    """Return the status code of an error, which says whose fault it is."""
    if _is_float_exception(error):
        return StatusCode.INTERNAL
    return next((code for code, kinds in _CODES if isinstance(error, kinds)), StatusCode.INTERNAL)


def describe_error(error: BaseException) -> str:
    """Return the text of an error, in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return escape(
            f"{os.fsdecode(error.filename)}: expected a PopEF file, found: {error.strerror}"
        )
    if _is_float_exception(error):
        # The text of the real embedded runtime.
        return escape(
            "[Poplar][Execute engine] application_runtime_error: [Recovery action: IPU_RESET] "
            f"Tiles in excepted state ({error}). IPU will be reset the next time a program is "
            "executed."
        )
    return escape(str(error) or type(error).__name__)


def _is_float_exception(error: BaseException) -> bool:
    """Return whether a run ended itself at an invalid value (debug.floatPointOpException)."""
    return isinstance(error, RunError) and "floating-point exception" in str(error)


class Calls:
    """Calls of one connection. This thread reads them, the runner's thread computes them, and a
    thread of their own answers them."""

    def __init__(
        self, connection: socket, runner: ModelRunner, described: ModelDescription
    ) -> None:
        self._connection = connection
        self._runner = runner
        self._described = described
        self._input_bytes = sum(tensor.size_in_bytes for tensor in described.inputs)
        self._answers: SimpleQueue[list[memoryview] | None] = SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0

    def answer(self) -> None:
        """Answer calls until the other side ends. Raises like `serve`."""
        sender = threading.Thread(target=self._send_answers, daemon=True)
        sender.start()
        try:
            while True:
                self._wait_for_room()
                call, inputs = read_call(self._connection, self._described.inputs)
                self._compute(call, inputs)
        finally:
            self._answers.put(None)
            sender.join()

    def _wait_for_room(self) -> None:
        most = max(1, _MAX_WAITING_BYTES // max(1, self._input_bytes))
        with self._room:
            self._room.wait_for(lambda: self._waiting < most)
            self._waiting += 1

    def _compute(self, call: int, inputs: Mapping[str, Array]) -> None:
        def done(outputs: Mapping[str, Array] | None, error: BaseException | None) -> None:
            with self._room:
                self._waiting -= 1
                self._room.notify()
            if outputs is not None:
                arrays = [outputs[tensor.name] for tensor in self._described.outputs]
                self._answers.put(encode_result(call, arrays))
            else:
                assert error is not None
                self._answers.put(encode_fault(call, find_code(error), describe_error(error)))

        try:
            future = self._runner.executeAsync(inputs)
        except _EXPECTED as error:
            done(None, error)
        else:
            future.then(done)

    def _send_answers(self) -> None:
        while (frame := self._answers.get()) is not None:
            try:
                send(self._connection, frame)
            except OSError:
                return  # the thread that reads calls gets the same error
