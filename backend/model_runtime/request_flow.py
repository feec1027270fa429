"""Life of a request in a session: enqueued, joined into runs, answered in order, each exactly once.

A failed run affects only the requests that had rows in it, unless the device is lost for good.
Requests wait for each other in the queues (queues.py), in TensorFlow Serving's batcher, or in the
open run of a PackRunner; those decide for how long.

Tracepoints record when each request arrived, began and ended. The real library's names are not
public, except for the size of the buffer and that nothing is recorded unless
flush_on_waiting_outputs is on. The content of a record, and the way to read it, are ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from simipu import FORKS, WATCHDOG

from model_runtime.errors import StoppedError
from model_runtime.queues import Callback, Done, OutputBuffer, QueueManager, store_rows
from model_runtime.request_joining import STOPPED, Outcome, Rows, compute_after_failure
from model_runtime.session import Session
from model_runtime.shutdown import ServingThread
from popef._tools.arrays import Array


@dataclass(slots=True)
class RequestTracepoint:
    """Record of one request, with times on the clock of time.perf_counter_ns; 0 for events that did
    not happen."""

    rows: int
    enqueued_ns: int
    started_ns: int = 0
    """Time at which its first row was read for a run."""
    finished_ns: int = 0
    """Time at which its last row was written, or it failed."""
    error: str = ""
    """Error message, if the request failed."""

    def start(self) -> None:
        """Record that the first row is read; only the first call counts, because a run may be
        repeated."""
        self.started_ns = self.started_ns or time.perf_counter_ns()


class RequestTracepoints:
    """The last `size` requests that ended (0: all of them), in the order of their ends."""

    def __init__(self, size: int) -> None:
        self._ended: deque[RequestTracepoint] = deque(maxlen=size or None)

    def watch(self, rows: int, done: Done) -> tuple[Callable[[], None], Done]:
        """Record a new request.

        Args:
            rows: number of rows of the request.
            done: function to call at its end.

        Returns:
            The callbacks for its first row and, instead of `done`, for its end.
        """
        point = RequestTracepoint(rows, time.perf_counter_ns())

        def close(error: Exception | None) -> None:
            point.finished_ns = time.perf_counter_ns()
            point.error = "" if error is None else str(error)
            self._ended.append(point)
            done(error)

        return point.start, close

    def read(self) -> list[RequestTracepoint]:
        """Return the recorded requests, the oldest first."""
        return list(self._ended.copy())


@dataclass(slots=True, eq=False)
class _Request:
    inputs: Mapping[str, Array]
    rows: int
    started: Callback | None
    outputs: Mapping[str, OutputBuffer]
    done: Done
    owner: Any
    first_row: int = 0
    memory: Rows | None = None

    def finish(self, outcome: Outcome) -> None:
        """Answer with all rows of all outputs, or with the error."""
        if isinstance(outcome, Exception):
            self.done(outcome)
            return
        for anchor, buffer in self.outputs.items():
            store_rows(buffer, outcome[anchor])
        self.done(None)


class RequestFlow:
    """The requests of one session.

    `timeout_ns` is the time that an incomplete run waits for more rows (0: forever, None: no wait).
    If the device is lost, the requests on it fail. If the session has no `auto_reset`, all waiting
    and all later requests fail too.
    """

    def __init__(self, session: Session, *, timeout_ns: int | None, num_buffers: int = 2) -> None:
        self.session = session
        self._make_queues = partial(session.createQueueManager, num_buffers, timeout_ns=timeout_ns)
        self.queues: QueueManager = self._make_queues()
        self._requests: deque[_Request] = deque()
        self._incomplete_request: tuple[Mapping[str, Array], int, Callback | None] | None = None
        self._thread = ServingThread()
        self._abandoned = False
        FORKS.watch(self)

    def forget_parent(self) -> None:
        """Leave the requests and the session thread to the parent, in a fork."""
        stopped = self.queues.is_disconnected
        self._requests, self._incomplete_request = deque(), None
        self.queues = self._make_queues()
        if stopped:
            self.queues.disconnectAll()
        self._thread.forget_parent()

    @property
    def is_open(self) -> bool:
        """True while requests are accepted and answered.

        This ends when it is stopped, when the started session thread ends, or when the device is
        lost for good. The check is fast and takes no lock.
        """
        return (
            not self.queues.is_disconnected
            and self.session.lost is None
            and not self._thread.has_ended
        )

    @property
    def is_idle(self) -> bool:
        """True while no request waits or is computed, and the session thread waits for one.

        It stays so until the caller enqueues a request, if no other thread does.
        """
        return not self._requests and self.queues.is_idle

    def enqueue_request(
        self, inputs: Mapping[str, Array], rows: int, started: Callback | None = None
    ) -> None:
        """Accept the rows of a request.

        Hold `queues.lock`, and call `set_request_outputs` once before anything else.

        Args:
            inputs: arrays of shape (rows, *row shape), by anchor.
            rows: number of rows.
            started: called when the first row is read; None means no call.

        Raises:
            ModelRuntimeError: with nothing enqueued, for rows that do not fit, or if the device is
                lost.
            StoppedError: if the session was stopped.
        """
        self.session.check_device()
        if self.queues.is_disconnected:
            raise StoppedError("the session was stopped")
        if self._thread.is_lost:
            self._thread.restart(self._serve, self.session)
        assert self._incomplete_request is None
        for anchor, array in inputs.items():
            self.queues.inputQueue(anchor).check(array)
        self._incomplete_request = inputs, rows, started

    def set_request_outputs(
        self, outputs: Mapping[str, OutputBuffer], rows: int, done: Done, owner: Any = None
    ) -> None:
        """Set the buffers for the rows of the request just enqueued, by anchor; None drops an
        output.

        `withdraw` passes `owner` to its predicate. Raises ModelRuntimeError, with the request
        dropped, for a buffer of another length.
        """
        assert self._incomplete_request is not None
        inputs, enqueued, started = self._incomplete_request
        self._incomplete_request = None
        assert rows == enqueued
        for anchor, buffer in outputs.items():
            self.queues.outputQueue(anchor).check(buffer, rows)
        self._enqueue(_Request(inputs, rows, started, outputs, done, owner))

    def withdraw(self, is_unwanted: Callable[[Any], bool]) -> list[Any]:
        """Cancel the requests without any row read whose owner is unwanted.

        `done` is not called for them.

        Args:
            is_unwanted: called with the owner of each such request.

        Returns:
            The owners of the cancelled requests.
        """
        withdrawn = []
        for request in [request for request in self._find_unread() if is_unwanted(request.owner)]:
            with self.queues.lock:
                waiting = self._find_unread()
                if request in waiting:
                    position = waiting.index(request)
                    self.queues.withdraw(len(waiting) - 1 - position)
                    self._requests.remove(request)
                    for later in waiting[position + 1 :]:
                        later.first_row -= request.rows
                    withdrawn.append(request.owner)
        return withdrawn

    def find_running(self) -> list[Any]:
        """Return the owners of the requests that have rows in the current run."""
        with self.queues.lock:
            read = self.queues.rows_read
            return [request.owner for request in self._requests if request.first_row < read]

    def start(self, name: str = "session") -> None:
        """Start the session thread, which ends with `stop`, `abandon` or the interpreter.

        Raises StoppedError if the interpreter is exiting.
        """
        self._thread.start(self._serve, name, self.session)

    def stop(self, seconds: float = 10.0) -> None:
        """End the session thread after its current run; requests without their rows get a
        StoppedError."""
        self.session.stop()
        self._thread.join(seconds)
        self._answer_all()

    def abandon(self) -> None:
        """Cancel the current run and have the session thread stop, answer the waiting requests and
        unload the session.

        The call does not wait for this. A finalizer may call it: it takes no lock, so the garbage
        collector can run it at any point of any thread.
        """
        self._abandoned = True
        if not self._thread.is_lost:
            WATCHDOG.soon(self.session.cancel)

    def _find_unread(self) -> list[_Request]:
        with self.queues.lock:
            return [
                request for request in self._requests if request.first_row >= self.queues.rows_read
            ]

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
        for index, (anchor, buffer) in enumerate(request.outputs.items()):
            queues.outputQueue(anchor).add(
                buffer, request.rows, self._finish if index == last else None
            )

    def _finish(self) -> None:
        """Answer the oldest request, which has all its rows: requests are written in their order of
        arrival."""
        self._requests.popleft().done(None)

    def _run(self) -> None:
        try:
            self.session.runMainPrograms()
        except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
            self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Answer the requests that had rows in the failed run, and keep the others in their places.

        If no further run is possible, answer the others too.
        """
        affected = self._requeue_unaffected()
        if not affected and not self.queues.is_disconnected:
            # The run failed before it read any row, as without a device; the next would fail too.
            self._answer_all(error)
        for outcome in compute_after_failure(self.session, affected, error):
            self._answer_oldest(self.session.lost or outcome)
        if self.session.lost is not None:
            self._answer_all(self.session.lost)

    def _requeue_unaffected(self) -> list[_Request]:
        """Return the requests that had rows in the last run, which are the oldest, and enqueue the
        later ones again."""
        with self.queues.lock:
            # Check under the lock: disconnecting drops the record of which requests had rows in the
            # run.
            if self.queues.is_disconnected:
                return []  # `_serve` answers all
            requests = list(self._requests)
            affected = [
                request for request in requests if request.first_row < self.queues.rows_read
            ]
            self.queues.clear()
            self._requests = deque(affected)
            for request in requests[len(affected) :]:
                self._enqueue(request)
        return affected

    def _answer_oldest(self, outcome: Outcome) -> None:
        with self.queues.lock:
            request = self._requests.popleft() if self._requests else None
        if request is not None:  # else `stop` did not wait for it any longer
            request.finish(outcome)

    def _answer_all(self, error: Exception | None = None) -> None:
        """Answer every waiting request with `error`; None means that it was stopped."""
        with self.queues.lock:
            self.queues.clear()
            requests, self._requests = self._requests, deque()
        for request in requests:
            request.done(error or StoppedError(STOPPED))
