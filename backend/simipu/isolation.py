"""A graph in a child process: whatever kills it there, the process that serves lives on.

Parent and child talk over a pipe: the child is given a graph and its weights once, then arrays go out and
come back. The child reads the graph, not the parent, and ends when the pipe does, so it never outlives its
parent. The parent does not unpickle what the child says (`answers`).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from popef.console import LineFormatter
from simipu.answers import (
    AnswerError,
    decode_arrays,
    decode_loaded,
    encode_arrays,
    encode_error,
    encode_loaded,
)
from simipu.computed import (
    Array,
    ComputedGraph,
    GraphOptions,
    Lowered,
    NoKernelError,
    Weights,
    lower_program,
    make_graph,
    use_kernels,
)
from simipu.errors import (
    CANCELLED,
    DeviceLostError,
    LoadError,
    LoadMemoryError,
    LoadTimeoutError,
    RunCancelledError,
    RunError,
    RunMemoryError,
    RunTimeoutError,
    describe_limit,
    describe_memory,
)
from simipu.executable import Program
from simipu.forks import FORKS
from simipu.fused import FusedGraph
from simipu.memory import limit_memory, return_memory
from simipu.numerics import KernelUse, Numerics
from simipu.progress import LOOK_SECONDS, ProgressWatch
from simipu.reference import ReferenceGraph
from simipu.watchdog import WATCHDOG

_LOST = (EOFError, ConnectionError, AnswerError)
_Answer = TypeVar("_Answer")
_GRACE_SECONDS = 10.0
"""For a child to say itself that a load took too long."""
_SEND_SECONDS = 5.0
"""A child that takes nothing of a question for so long is stalled: it has nothing else to do."""
_RECEIVE_SECONDS = 5.0
"""Between two pieces of an answer."""
_CHILD = "from simipu.isolation import serve; serve({})"
"""What the child runs, with the descriptor of its end of the pipe."""
_OWN_BYTES, _WEIGHT_COPIES = 1 << 30, 6
"""What a child takes beside its graph's values: libraries and stacks, and its weights as they come, widened
and packed."""

_log = logging.getLogger("simipu")


class _StalledError(ConnectionError):
    """The child lives and makes no progress."""


def open_graph(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    *,
    isolated: bool = False,
) -> ComputedGraph:
    """The graph of a MAIN program with the device's weights, in this process, or in one of its own if
    `isolated`: a fused program's branches have one each.

    Raises LoadError when nothing here can compute it, LoadTimeoutError and LoadMemoryError for more than
    `options` allow.
    """
    if program.branches:
        graphs: list[ComputedGraph] = []
        try:
            for branch in program.branches:
                graphs.append(open_graph(branch, weights, options, numerics, isolated=isolated))
        except BaseException:
            for graph in graphs:
                graph.close()
            raise
        return FusedGraph(program, graphs)
    label = f"{program.index} ({program.name})"
    if isolated:
        return IsolatedGraph(label, program, weights, options, numerics)
    graph = open_lowered(
        lambda kernels: lower_program(program, weights, options, numerics, kernels), options, label
    )
    return_memory()
    return graph


def open_lowered(
    make: Callable[[KernelUse], Lowered], options: GraphOptions, label: str, kernels: KernelUse | None = None
) -> ComputedGraph:
    """The same for a graph that is lowered by `make`, with `kernels` if they can be used (None: as graphs
    that are served); `label` names the program in messages."""
    try:
        return make_graph(make(use_kernels() if kernels is None else kernels), options, label)
    except NoKernelError as error:
        _log.warning("program %s runs on the slow onnx reference: %s", label, error)
        return IsolatedGraph(label, make(KernelUse.NONE), {}, options, None)


class IsolatedGraph:
    """A graph that a child process computes. A child that died or took too long in a run is replaced at once,
    and given the graph again before the next run; one that died between runs is replaced before the next."""

    def __init__(
        self,
        label: str,
        source: Program | Lowered,
        weights: Weights,
        options: GraphOptions,
        numerics: Numerics | None,
    ) -> None:
        self._label = label
        self._source = (source, weights, options, numerics, label)
        self._options = options
        self._loaded = False
        self._cancelled = False
        FORKS.watch(self)
        self._start()
        try:
            self._load()
        except RunTimeoutError as error:
            self.close()
            raise LoadTimeoutError(
                f"program {label}: it was not ready within {options.ready_seconds:g} s, and its process was "
                "ended"
            ) from error
        except DeviceLostError as error:
            self.close()
            raise LoadError(f"program {label}: the process that loaded it died: {error}") from error
        except BaseException:
            self.close()
            raise

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute in the child. Raises DeviceLostError when it died, RunTimeoutError when it had to be
        killed."""
        self._check_cancelled()
        if self._process.poll() is not None:
            # It died between two runs: no row is lost.
            self._replace()
        if not self._loaded:
            self._load()
        return self._ask(
            ("run", names, feeds),
            self._options.limit_seconds,
            lambda answer: decode_arrays(answer, len(names)),
        )

    def cancel(self) -> None:
        """End the child, and with it the run; none takes its place."""
        self._cancelled = True
        self._process.kill()

    def close(self) -> None:
        """End the child. A graph that is dropped without does it too, some time later."""
        self._finalizer.detach()
        self._connection.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def forget_parent(self) -> None:
        """In a fork: the child is the parent's, and ends with the parent's end of the pipe, not with this
        copy of it. The next run has another child."""
        self._finalizer.detach()
        self._connection.close()
        self._loaded = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def _start(self) -> None:
        WATCHDOG.start()
        self._connection, theirs = Pipe()
        _limit_waits(self._connection, _SEND_SECONDS, _RECEIVE_SECONDS)
        isolated = ["-I"] if sys.flags.isolated else []
        self._process = subprocess.Popen(
            [
                sys.executable,
                *isolated,
                "-c",
                _CHILD.format(theirs.fileno()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._finalizer = weakref.finalize(self, _abandon, self._connection, self._process, os.getpid())
        # At exit the child ends with the pipe; a thread that is frozen in a run must not find it closed
        # before.
        self._finalizer.atexit = False

    def _load(self) -> None:
        self._ask(("load", *self._source), self._options.ready_seconds + _GRACE_SECONDS, decode_loaded)
        self._loaded = True

    def _ask(
        self, question: tuple[Any, ...], limit_seconds: float, decode: Callable[[bytes], _Answer]
    ) -> _Answer:
        try:
            self._send(question)
            if not self._wait(limit_seconds):
                self._check_cancelled()
                self._replace()
                raise RunTimeoutError(f"program {self._label}: {describe_limit(limit_seconds)}")
            return decode(self._receive())
        except _LOST as error:
            self._check_cancelled()
            status = self._replace()
            how = f"died ({_describe(status)})"
            if isinstance(error, _StalledError):
                how = str(error)
            elif isinstance(error, AnswerError):
                how = f"answered in another way than asked ({error}) and was ended"
            raise DeviceLostError(
                f"program {self._label}: the engine's process {how}; a new one takes its place"
            ) from None

    def _receive(self) -> bytes:
        """Raises _StalledError where the answer does not end, ConnectionError where it is too long."""
        try:
            return self._connection.recv_bytes(self._options.memory_bytes + _OWN_BYTES)
        except BlockingIOError:
            raise _StalledError(f"sent half an answer for {_RECEIVE_SECONDS:g} s and was ended") from None
        except (OSError, MemoryError) as error:  # an end in the middle, or more than it may be
            raise ConnectionError(str(error)) from error

    def _send(self, question: tuple[Any, ...]) -> None:
        try:
            self._connection.send(question)
        except BlockingIOError:
            raise _StalledError(f"took nothing for {_SEND_SECONDS:g} s and was ended") from None

    def _wait(self, limit_seconds: float) -> bool:
        """Whether the child answers or ends within so long. Raises _StalledError where it stalls."""
        end = time.monotonic() + limit_seconds
        watch = ProgressWatch()
        while not self._connection.poll(max(0.0, min(LOOK_SECONDS, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
            for why in watch.find_stalled([self._process.pid]).values():
                raise _StalledError(f"made no progress ({why}) and was ended")
        return True

    def _replace(self) -> int:
        """Start another child; how the old one ended."""
        self._loaded = False
        self._finalizer.detach()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        self._process.kill()
        status = self._process.wait()
        self._start()
        return status

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise RunCancelledError(CANCELLED)


def _limit_waits(connection: Connection[Any, Any], send_seconds: float, receive_seconds: float) -> None:
    """Have a send raise BlockingIOError where the other side takes nothing for so long, and a receive where
    nothing comes."""
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.settimeout(None)  # whatever the process's default is: both are the same open file
        for option, seconds in ((socket.SO_SNDTIMEO, send_seconds), (socket.SO_RCVTIMEO, receive_seconds)):
            whole = int(seconds)
            timeval = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
            pipe.setsockopt(socket.SOL_SOCKET, option, timeval)


def _abandon(connection: Connection[Any, Any], process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """A finalizer: waits for nothing. Somebody else buries the child; in a fork of its parent it is somebody
    else's child."""
    if os.getpid() == owner_pid:
        connection.close()
        process.kill()
        WATCHDOG.soon(process.wait)


def _describe(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def serve(descriptor: int) -> None:
    """The child: answer what comes over the pipe until it ends."""
    # Ctrl-C and shutdown are the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("simipu"))
    logging.basicConfig(handlers=[handler])
    connection: Connection[Any, Any] = Connection(descriptor)
    threading.Thread(target=follow_parent, args=[descriptor], daemon=True).start()
    graph: ComputedGraph | None = None
    memory_bytes = 0
    with suppress(*_LOST):
        while True:
            question = connection.recv()
            try:
                if question[0] == "load":
                    memory_bytes = question[3].memory_bytes
                    graph = _open_here(*question[1:])
                    answer = encode_loaded()
                else:
                    assert graph is not None
                    answer = encode_arrays(graph.run(*question[1:]))
            except (LoadError, RunError, DeviceLostError) as error:
                answer = encode_error(error)
            except MemoryError:
                told = describe_memory(memory_bytes)
                answer = encode_error(
                    LoadMemoryError(told) if question[0] == "load" else RunMemoryError(told)
                )
            connection.send_bytes(answer)


def _open_here(
    source: Program | Lowered, weights: Weights, options: GraphOptions, numerics: Numerics | None, label: str
) -> ComputedGraph:
    lowered_weights = source.weights if isinstance(source, Lowered) else weights
    held = sum(value.nbytes for value in lowered_weights.values())
    limit_memory(options.memory_bytes + held * _WEIGHT_COPIES + _OWN_BYTES)
    if isinstance(source, Lowered):  # the parent knows, and has said, that ONNX Runtime cannot
        return ReferenceGraph(source)
    try:
        return make_graph(lower_program(source, weights, options, numerics, use_kernels()), options, label)
    except NoKernelError as error:
        _log.warning("program %s runs on the slow onnx reference: %s", label, error)
        return ReferenceGraph(lower_program(source, weights, options, numerics, KernelUse.NONE))


def follow_parent(descriptor: int) -> None:
    """End the child when its parent does, even in the middle of a run."""
    pipe = select.poll()
    pipe.register(descriptor, select.POLLRDHUP)
    pipe.poll()
    os._exit(0)
