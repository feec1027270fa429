"""Child process for work on large messages: Python does such work without releasing the
interpreter, which would block all other threads of the process."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from popef._tools.progress import LOOK_SECONDS, ProgressWatch
from poplar_triton.tfserving.errors import Code, ServingError, as_serving_error
from poplar_triton.tfserving.models import Call

_STOP_SECONDS = 5.0


class WorkProcess:
    """Does one piece of work at a time, for threads that share it.

    `name` is the name of the child process, which starts with the first work. It is ended, and
    restarted later, if no client waits for its result any more or if it stalls.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._context = multiprocessing.get_context("spawn")
        self._working = threading.Lock()
        self._ending = threading.Lock()
        self._child: _Child | None = None
        self._asked_by: Call | None = None
        self._is_killed = self._is_closed = False

    def run(self, call: Call, work: Callable[..., Any], what: Any, *how: Any) -> Any:
        """Return the result of `work(what, *how)`, a function of a module, in the child process.
        Raises ServingError for its errors, and for a call that is given up meanwhile."""
        with call.waiting(), self._working:
            check_wanted(call)
            answer = self._ask(call, work, what, how)
        if isinstance(answer, _Refusal):
            raise ServingError(answer.code, answer.text)
        return answer

    def close(self) -> None:
        """End the process. Its work is lost, and waiting requests are refused."""
        self._is_closed = True
        self._end(None)
        with self._working:
            self._bury()

    def _ask(self, call: Call, work: Callable[..., Any], what: Any, how: tuple[Any, ...]) -> Any:
        child = self._begin()
        with self._ending:
            self._asked_by = call
        call.when_given_up(lambda: self._end(call))
        stalls: list[str] = []
        is_bytes = isinstance(what, (bytes, bytearray))
        try:
            with _end_if_stalled(child.process, stalls):
                child.connection.send((work, how, is_bytes))
                if is_bytes:
                    child.connection.send_bytes(what)
                else:
                    child.connection.send(what)
                return child.connection.recv()
        except (EOFError, OSError):
            self._bury()
            check_wanted(call)
            why = f"made no progress ({stalls[0]}) and was ended" if stalls else "ended"
            raise ServingError(
                Code.INTERNAL,
                f"the {self._name} {why}, status {child.process.exitcode}; ask again, or for fewer rows in "
                "one request",
            ) from None
        except BaseException:  # the rest of this answer must not be read as the next one
            self._bury()
            raise
        finally:
            with self._ending:
                self._asked_by = None

    def _begin(self) -> _Child:
        """Return the child process, and start a new one if none is alive."""
        if self._is_closed:
            raise ServingError(Code.UNAVAILABLE, "the server stops")
        if self._is_killed or (self._child is not None and not self._child.process.is_alive()):
            self._bury()
        if self._child is None:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), name=self._name, daemon=True)
            process.start()
            theirs.close()
            self._child = _Child(process, ours)
        return self._child

    def _end(self, call: Call | None) -> None:
        """Kill the process if it works for `call`; None means for any call."""
        with self._ending:
            if self._child is not None and call in (None, self._asked_by):
                self._is_killed = True  # it may look alive for a moment
                self._child.process.kill()

    def _bury(self) -> None:
        with self._ending:
            child, self._child, self._is_killed = self._child, None, False
        if child is not None:
            child.connection.close()
            child.process.join(_STOP_SECONDS)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()


def check_wanted(call: Call) -> None:
    """Raise ServingError for a call that was cancelled."""
    if not call.is_wanted():
        raise ServingError(Code.CANCELLED, "nobody waits for the answer")


@dataclass(frozen=True, slots=True)
class _Child:
    process: SpawnProcess
    connection: Connection[Any, Any]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """ServingError in a form that is sent between processes."""

    code: Code
    text: str


@contextmanager
def _end_if_stalled(process: SpawnProcess, stalls: list[str]) -> Iterator[None]:
    """Kill a process that makes no progress while the block waits for it; `stalls` gets the
    reason."""
    is_done = threading.Event()
    watch = ProgressWatch()

    def look() -> None:
        while not (stalls or is_done.wait(LOOK_SECONDS)):
            assert process.pid is not None
            stalls.extend(watch.find_stalled([process.pid]).values())
        if stalls:
            process.kill()

    threading.Thread(target=look, name=process.name, daemon=True).start()
    try:
        yield
    finally:
        is_done.set()


def _serve(connection: Connection[Any, Any]) -> None:
    """Run the child process: do the work that arrives until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent handles Ctrl-C
    with suppress(EOFError, OSError):
        while True:
            work, how, is_bytes = connection.recv()
            what = connection.recv_bytes() if is_bytes else connection.recv()
            connection.send(_try(work, what, *how))


def _try(work: Callable[..., Any], *given: Any) -> Any:
    """Return the result of `work`, or its error."""
    try:
        return work(*given)
    except Exception as error:  # noqa: BLE001  whatever it is, the request gets its answer
        found = as_serving_error(error)
        return _Refusal(found.code, str(found))
