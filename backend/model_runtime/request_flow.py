"""Requests on their way through a session: enqueued, joined into runs, answered in order, each exactly once.

When a run fails, only requests that had rows in it are concerned (joining.py says how); the others never
notice, but where the device is lost for good.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from simipu.forks import FORKS
from simipu.watchdog import WATCHDOG

from model_runtime.errors import StoppedError
from model_runtime.exits import SessionThread, attend, is_over
from model_runtime.joining import STOPPED, Outcome, run_apart
from model_runtime.queues import Array, Callback, Place, QueueManager, store_all
from model_runtime.session import Session

Done = Callable[[Exception | None], None]
"""Called once per request: with None when its outputs are written, else with what went wrong."""


@dataclass(slots=True, eq=False)
class _Request:
    inputs: Mapping[str, Array]
    rows: int
    started: Callback | None
    outputs: Mapping[str, Place]
    done: Done
    owner: Any
    first_row: int = 0

    def finish(self, outcome: Outcome) -> None:
        """Answer with all rows of all outputs, or with what went wrong."""
        if isinstance(outcome, Exception):
            self.done(outcome)
            return
        for anchor, place in self.outputs.items():
            store_all(place, outcome[anchor])
        self.done(None)


class RequestFlow:
    """The requests of one session.

    `timeout_ns` is how long an incomplete run waits for more rows (0: for ever, None: not at all). A lost
    device takes the requests that were on it, and, where the session has no `auto_reset`, all that wait and
    all that come.
    """

    def __init__(self, session: Session, *, timeout_ns: int | None, num_buffers: int = 2) -> None:
        self.session = session
        self._make_queues = partial(session.createQueueManager, num_buffers, timeout_ns=timeout_ns)
        self.queues: QueueManager = self._make_queues()
        self._requests: deque[_Request] = deque()
        self._new: tuple[Mapping[str, Array], int, Callback | None] | None = None
        self._thread: threading.Thread | None = None
        self._lost_thread: str | None = None
        """The name of the thread that a fork has left in the parent, until a request has it started here."""
        self._abandoned = False
        FORKS.watch(self)

    def forget_parent(self) -> None:
        """In a fork: leave the requests and the session thread to the parent."""
        stopped = self.queues.is_disconnected
        self._requests, self._new = deque(), None
        self.queues = self._make_queues()
        if stopped:
            self.queues.disconnectAll()
        if self._thread is not None:
            self._lost_thread, self._thread = self._thread.name, None

    @property
    def is_open(self) -> bool:
        """Whether requests are taken and answered: until it is stopped, as long as the session thread that
        was started lives and the device is not lost for good. Cheap, and takes no lock."""
        thread = self._thread
        return (
            not self.queues.is_disconnected
            and self.session.lost is None
            and (thread is None or thread.is_alive())
        )

    def enqueue_request(
        self, inputs: Mapping[str, Array], rows: int, started: Callback | None = None
    ) -> None:
        """Take a request's rows, by anchor. Hold `queues.lock`, and call `set_request_outputs` once before
        anything else.

        `started` is called when the first row is read. Raises ModelRuntimeError, with nothing enqueued, for
        rows that do not fit, and when the session was stopped or the device is lost.
        """
        self.session.check_device()
        if self.queues.is_disconnected:
            raise StoppedError("the session was stopped")
        if self._lost_thread is not None:
            self._restart(self._lost_thread)
        assert self._new is None
        for anchor, array in inputs.items():
            self.queues.inputQueue(anchor).check(array)
        self._new = inputs, rows, started

    def set_request_outputs(
        self, outputs: Mapping[str, Place], rows: int, done: Done, owner: Any = None
    ) -> None:
        """Say where the rows of the request just enqueued go, by anchor; None drops an output. `owner` is
        what `withdraw` asks about.

        Raises ModelRuntimeError, with the request forgotten, for a place of another length.
        """
        assert self._new is not None
        inputs, enqueued, started = self._new
        self._new = None
        assert rows == enqueued
        for anchor, place in outputs.items():
            self.queues.outputQueue(anchor).check(place, rows)
        self._enqueue(_Request(inputs, rows, started, outputs, done, owner))

    def withdraw(self, is_unwanted: Callable[[Any], bool]) -> list[Any]:
        """Take back the requests of which no row is read and whose owner nobody wants any more: their owners.
        `done` is not called for them."""
        withdrawn = []
        for request in [request for request in self._waiting() if is_unwanted(request.owner)]:
            with self.queues.lock:
                waiting = self._waiting()
                if request in waiting:
                    position = waiting.index(request)
                    self.queues.withdraw(len(waiting) - 1 - position)
                    self._requests.remove(request)
                    for later in waiting[position + 1 :]:
                        later.first_row -= request.rows
                    withdrawn.append(request.owner)
        return withdrawn

    def start(self, name: str = "session") -> None:
        """Start the session thread, which ends with `stop`, `abandon` or the interpreter.

        Raises StoppedError when the interpreter has come to its end.
        """
        if is_over():
            raise StoppedError("the interpreter exits: a session thread would not end in order any more")
        self._thread = SessionThread(self._serve, name, self.session)
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """End the session thread after the run that it is in; requests without their rows get a
        StoppedError."""
        self.session.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        self._answer_all()

    def abandon(self) -> None:
        """Have the session thread stop, with its run ended, answer what waits and unload the session; nobody
        waits for it.

        A finalizer may call this: it takes no lock, at whatever point of whatever thread the garbage
        collector comes by.
        """
        self._abandoned = True
        if self._lost_thread is None:
            WATCHDOG.soon(self.session.cancel)

    def _restart(self, name: str) -> None:
        """Start the thread that a fork has lost; hold the lock."""
        attend(self.session)
        self.start(name)
        self._lost_thread = None

    def _waiting(self) -> list[_Request]:
        with self.queues.lock:
            return [request for request in self._requests if request.first_row >= self.queues.rows_read]

    def _serve(self) -> None:
        try:
            while not self.queues.is_disconnected:
                self._run()
        finally:
            self._answer_all()
        if self._abandoned:
            self.session.unloadFromDevice()

    def _enqueue(self, request: _Request) -> None:
        queues = self.queues
        request.first_row = queues.rows_enqueued
        self._requests.append(request)
        for index, (anchor, array) in enumerate(request.inputs.items()):
            queues.inputQueue(anchor).add(array, None if index else request.started)
        if not request.inputs and request.started is not None:
            request.started()
        last = len(request.outputs) - 1
        for index, (anchor, place) in enumerate(request.outputs.items()):
            queues.outputQueue(anchor).add(place, request.rows, self._finish if index == last else None)

    def _finish(self) -> None:
        """The oldest request has all its rows: requests are written in the order in which they came."""
        self._requests.popleft().done(None)

    def _run(self) -> None:
        try:
            self.session.runMainPrograms()
        except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
            self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Answer the requests that had rows in the failed run; keep the others in their places, or, where
        nothing runs any more, answer them too."""
        hit = self._set_back()
        if not hit and not self.queues.is_disconnected:
            # It failed before it read any row, as without a device: so would the next.
            self._answer_all(error)
        for outcome in run_apart(self.session, hit, error):
            self._answer_oldest(self.session.lost or outcome)
        if self.session.lost is not None:
            self._answer_all(self.session.lost)

    def _set_back(self) -> list[_Request]:
        """The requests that had rows in the last run, which are the oldest; those after them are enqueued
        anew."""
        with self.queues.lock:
            # Under the lock: whoever disconnects them has them forget which requests had rows in the run.
            if self.queues.is_disconnected:
                return []  # `_serve` answers all
            requests = list(self._requests)
            hit = [request for request in requests if request.first_row < self.queues.rows_read]
            self.queues.forget()
            self._requests = deque(hit)
            for request in requests[len(hit) :]:
                self._enqueue(request)
        return hit

    def _answer_oldest(self, outcome: Outcome) -> None:
        with self.queues.lock:
            request = self._requests.popleft() if self._requests else None
        if request is not None:  # else `stop` did not wait for it any longer
            request.finish(outcome)

    def _answer_all(self, error: Exception | None = None) -> None:
        """Answer everything that waits with `error`; None: each that it was stopped."""
        with self.queues.lock:
            self.queues.forget()
            requests, self._requests = self._requests, deque()
        for request in requests:
            request.done(error or StoppedError(STOPPED))
