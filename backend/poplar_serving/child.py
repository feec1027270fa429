"""Child process that runs a model for the operators: `model_runtime` at the other end of a socket.

It does not import TensorFlow. It ends when its connection closes, so it never outlives the server.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from socket import socket

from model_runtime import (
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
from poplar_serving.description import ModelDescription, describe_session
from poplar_serving.errors import ExportError, FrameError
from poplar_serving.frames import (
    Code,
    encode_fault,
    encode_ready,
    encode_result,
    read_call,
    read_start,
    send,
)

_MAX_WAITING_BYTES = 256 << 20
"""Maximum size of inputs that are read and not yet computed. Further inputs wait in the server."""
_CODES: Sequence[tuple[type[BaseException], Code]] = (
    (FileNotFoundError, Code.NOT_FOUND),
    (OSError, Code.FAILED_PRECONDITION),
    (LoadTimeoutError, Code.DEADLINE_EXCEEDED),
    (LoadMemoryError, Code.RESOURCE_EXHAUSTED),
    (RunMemoryError, Code.RESOURCE_EXHAUSTED),
    (MemoryError, Code.RESOURCE_EXHAUSTED),
    (RunTimeoutError, Code.DEADLINE_EXCEEDED),
    (DeviceLostError, Code.UNAVAILABLE),
    (LoadError, Code.INVALID_ARGUMENT),
    (RunError, Code.INVALID_ARGUMENT),
    (ModelRuntimeError, Code.INVALID_ARGUMENT),
    (PopefError, Code.INVALID_ARGUMENT),
    (ExportError, Code.INVALID_ARGUMENT),
)
"""Status codes of exceptions; a subclass stands before its base class."""
_EXPECTED = tuple(kind for kind, _ in _CODES)

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


def find_code(error: BaseException) -> Code:
    """Return the status code of an error, which says whose fault it is."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)


def describe_error(error: BaseException) -> str:
    """Return the text of an error, in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return escape(
            f"{os.fsdecode(error.filename)}: expected a PopEF file, found: {error.strerror}"
        )
    return escape(str(error) or type(error).__name__)


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
