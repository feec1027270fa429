"""A graph in a child process: whatever kills it there, the process that serves lives on.

Parent and child talk over a pipe: the child is given a graph and its weights once, then arrays go out and come back. The
child ends when the pipe does, so it never outlives its parent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from simipu.errors import DeviceLostError, LoadError, RunCancelledError, RunError, RunTimeoutError, SimIpuError
from simipu.executable import Program
from simipu.graph import CANCELLED, Array, GraphOptions, Weights, describe_limit, lower_program, make_graph
from simipu.numerics import Numerics
from simipu.watchdog import WATCHDOG

_LOST = (EOFError, ConnectionError)
_LOAD_SECONDS = 600.0


class IsolatedGraph:
    """A graph that a child process computes. A child that died or took too long in a run is replaced at once, and given the
    graph again before the next run; one that died between runs is replaced before the next."""

    def __init__(self, program: Program, weights: Weights, options: GraphOptions, numerics: Numerics | None) -> None:
        self._label = f"{program.index} ({program.name})"
        self._model, self._values = lower_program(program, weights, numerics)
        self._options = options
        self._loaded = False
        self._cancelled = False
        self._start()
        self._load()

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute in the child. Raises DeviceLostError when it died, RunTimeoutError when it had to be killed."""
        self._check_cancelled()
        if self._process.poll() is not None:
            # It died between two runs: no row is lost.
            self._replace()
        if not self._loaded:
            self._load()
        results: list[Array] = self._ask(("run", names, feeds), self._options.limit_seconds)
        return results

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

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def _start(self) -> None:
        WATCHDOG.start()
        self._connection, theirs = Pipe()
        isolated = ["-I"] if sys.flags.isolated else []
        self._process = subprocess.Popen(
            [sys.executable, *isolated, "-c", f"from simipu.isolation import serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._finalizer = weakref.finalize(self, _abandon, self._connection, self._process, os.getpid())
        # At exit the child ends with the pipe; a thread that is frozen in a run must not find it closed before.
        self._finalizer.atexit = False

    def _load(self) -> None:
        self._ask(("load", self._model, self._values, self._options, self._label), _LOAD_SECONDS)
        self._loaded = True

    def _ask(self, question: tuple[Any, ...], limit_seconds: float) -> Any:
        try:
            self._connection.send(question)
            if not self._connection.poll(limit_seconds):
                self._check_cancelled()
                self._replace()
                raise RunTimeoutError(f"program {self._label}: {describe_limit(limit_seconds)}")
            answer = self._connection.recv()
        except _LOST:
            self._check_cancelled()
            status = self._replace()
            raise DeviceLostError(
                f"program {self._label}: the engine's process died ({_describe(status)}); a new one takes its place"
            ) from None
        if isinstance(answer, SimIpuError):
            raise answer
        return answer

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


def _abandon(connection: Connection[Any, Any], process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """A finalizer: waits for nothing. Somebody else buries the child; in a fork of its parent it is somebody else's child."""
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
    connection: Connection[Any, Any] = Connection(descriptor)
    threading.Thread(target=_follow_parent, args=[descriptor], daemon=True).start()
    graph = None
    with suppress(*_LOST):
        while True:
            question = connection.recv()
            try:
                if question[0] == "load":
                    graph = make_graph(*question[1:])
                    connection.send(None)
                else:
                    assert graph is not None
                    connection.send(graph.run(*question[1:]))
            except (LoadError, RunError, DeviceLostError) as error:
                connection.send(error)


def _follow_parent(descriptor: int) -> None:
    """End the child when its parent does, even in the middle of a run."""
    pipe = select.poll()
    pipe.register(descriptor, select.POLLRDHUP)
    pipe.poll()
    os._exit(0)
