"""The JSON of requests, that of large bodies read in a process of its own: Python reads a body in one go, in
which no other thread is at work, and a hostile one of 64 MiB takes it seconds.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

from commands.tfserving.errors import Code, ServingError, as_serving_error
from commands.tfserving.json_tensors import Format, parse_predict
from commands.tfserving.models import Array, Call, Signature

LARGE_BYTES = 1 << 18
"""So many hold the others up for some 30 ms at most, at 250 ns for a value of two bytes."""
_STOP_SECONDS = 5.0

Parsed: TypeAlias = "tuple[Format, str, dict[str, Array]]"
"""See parse_predict."""


class JsonReader:
    """Reads bodies, one at a time of the small ones and one of the large ones: what they become is many times
    their size. Threads may share it. The process begins with the first large body, and is ended, to be begun
    again, where nobody waits any more for what it reads."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._reading_small = threading.Lock()
        self._reading_large = threading.Lock()
        self._ending = threading.Lock()
        self._child: _Child | None = None
        self._asked_by: Call | None = None
        self._is_killed = self._is_closed = False

    def read(self, body: bytearray, signature: Signature, call: Call) -> Parsed:
        """See parse_predict. ServingError for a call that is given up meanwhile, too."""
        if len(body) > LARGE_BYTES:
            with call.waiting(), self._reading_large:
                _check_wanted(call)
                return self._read_there(body, signature, call)
        with self._reading_small:
            _check_wanted(call)
            return parse_predict(body, signature)

    def close(self) -> None:
        """End the process; what it reads is lost, and what waits for it is refused."""
        self._is_closed = True
        self._end(None)
        with self._reading_large:
            self._bury()

    def _read_there(self, body: bytearray, signature: Signature, call: Call) -> Parsed:
        child = self._begin()
        with self._ending:
            self._asked_by = call
        call.when_given_up(lambda: self._end(call))
        try:
            child.connection.send(signature)
            child.connection.send_bytes(body)
            answer: Parsed | _Refusal = child.connection.recv()
        except (EOFError, OSError):
            self._bury()
            _check_wanted(call)
            raise ServingError(
                Code.INTERNAL,
                f"the process that reads large bodies ended, status {child.process.exitcode}; ask again, or "
                "for fewer rows in one request",
            ) from None
        except BaseException:  # what is left of this answer must not be taken for the next one's
            self._bury()
            raise
        finally:
            with self._ending:
                self._asked_by = None
        if isinstance(answer, _Refusal):
            raise ServingError(answer.code, answer.text)
        return answer

    def _begin(self) -> _Child:
        """The process, a new one if there is none that lives."""
        if self._is_closed:
            raise ServingError(Code.UNAVAILABLE, "the server stops")
        if self._is_killed or (self._child is not None and not self._child.process.is_alive()):
            self._bury()
        if self._child is None:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), name="JSON reader", daemon=True)
            process.start()
            theirs.close()
            self._child = _Child(process, ours)
        return self._child

    def _end(self, call: Call | None) -> None:
        """Kill the process, if it reads for `call`; None: whatever it does."""
        with self._ending:
            if self._child is not None and call in (None, self._asked_by):
                self._is_killed = True  # though it may seem alive for a moment
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


@dataclass(frozen=True, slots=True)
class _Child:
    process: SpawnProcess
    connection: Connection[Any, Any]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A ServingError on its way."""

    code: Code
    text: str


def _check_wanted(call: Call) -> None:
    if not call.is_wanted():
        raise ServingError(Code.CANCELLED, "nobody waits for the answer")


def _serve(connection: Connection[Any, Any]) -> None:
    """The process: read what comes until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's business
    with suppress(EOFError, OSError):
        while True:
            signature = connection.recv()
            connection.send(_read(connection.recv_bytes(), signature))


def _read(body: bytes, signature: Signature) -> Parsed | _Refusal:
    try:
        return parse_predict(body, signature)
    except Exception as error:  # noqa: BLE001  whatever it is, the request gets its answer
        found = as_serving_error(error)
        return _Refusal(found.code, str(found))
