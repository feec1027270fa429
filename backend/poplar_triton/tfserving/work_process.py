"""Child process for work on large messages: Python does such work without releasing the
interpreter, which would block all other threads of the process."""

from __future__ import annotations

import math
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from popef._tools.channel import (
    LOST,
    MAX_FRAME_BYTES,
    AnsweringChild,
    Channel,
    StalledError,
    answer_requests,
    encode_object,
)
from poplar_triton.tfserving.models import Call, Code, ServingError, as_serving_error

_CHILD = "from poplar_triton.tfserving.work_process import serve; serve({})"
"""Code of the child process, with the descriptor of its end of the channel."""


class WorkProcess:
    """Does one piece of work at a time, for threads that share it.

    `name` names the child process in messages; it starts with the first work. It is ended, and
    restarted later, if no client waits for its result any more or if it stalls.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._working = threading.Lock()
        self._ending = threading.Lock()
        self._child: AnsweringChild | None = None
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
        is_bytes = isinstance(what, (bytes, bytearray))
        body = what if is_bytes else encode_object(what)
        request = [encode_object((work, how, is_bytes))], [body]
        child = self._begin()
        with self._ending:
            self._asked_by = call
        call.when_given_up(lambda: self._end(call))
        try:
            answer = child.ask(*request, limit_seconds=math.inf, max_bytes=MAX_FRAME_BYTES)
            return pickle.loads(answer)  # noqa: S301  of the project's own code
        except LOST as error:
            status = self._bury()
            check_wanted(call)
            why = str(error) if isinstance(error, StalledError) else "ended"
            raise ServingError(
                Code.INTERNAL,
                f"the {self._name} {why}, status {status}; try again, or with fewer rows in one "
                "request",
            ) from None
        except BaseException:  # the rest of this answer must not be read as the next one
            self._bury()
            raise
        finally:
            with self._ending:
                self._asked_by = None

    def _begin(self) -> AnsweringChild:
        """Return the child process, and start a new one if none is alive."""
        if self._is_closed:
            raise ServingError(Code.UNAVAILABLE, "the server is stopping")
        if self._is_killed or (self._child is not None and self._child.process.has_ended()):
            self._bury()
        if self._child is None:
            self._child = AnsweringChild(_CHILD)
        return self._child

    def _end(self, call: Call | None) -> None:
        """Kill the process if it works for `call`; None means for any call."""
        with self._ending:
            if self._child is not None and call in (None, self._asked_by):
                self._is_killed = True  # it may look alive for a moment
                self._child.process.kill()

    def _bury(self) -> int | None:
        """End the process, and return its exit status."""
        with self._ending:
            child, self._child, self._is_killed = self._child, None, False
        return None if child is None else child.end()


def check_wanted(call: Call) -> None:
    """Raise ServingError for a call that was cancelled."""
    if not call.is_wanted():
        raise ServingError(Code.CANCELLED, "request cancelled")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """ServingError in a form that is sent between processes."""

    code: Code
    text: str


def serve(descriptor: int) -> None:
    """Do the work that arrives until the parent ends; this is the child's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent handles Ctrl-C
    answer_requests(descriptor, _answer)


def _answer(channel: Channel) -> list[bytes]:
    work, how, is_bytes = channel.receive_object()
    what = bytes(channel.receive(MAX_FRAME_BYTES)) if is_bytes else channel.receive_object()
    return [encode_object(_try(work, what, *how))]


def _try(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work`, or its error."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001  whatever it is, the request gets its answer
        serving_error = as_serving_error(error)
        return _Refusal(serving_error.code, str(serving_error))
