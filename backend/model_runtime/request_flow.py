"""Life of a request in a session: enqueued, joined into runs, answered in order, each exactly once.

The rules of requests that share runs are here only: which requests share one, how their rows are
joined and the outputs split, and the outcome of each request after a failure. A failed run affects
only the requests that had rows in it, unless the device is lost for good. Requests wait for each
other in the queues (queues.py), in TensorFlow Serving's batcher, or in the open run of a
PackRunner; those decide for how long.

Tracepoints record when each request arrived, began and ended. The real library's names are not
public, except for the size of the buffer and that nothing is recorded unless
flush_on_waiting_outputs is on. The content of a record, and the way to read it, are ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from simipu import FORKS, WATCHDOG, RunCancelledError, RunError

from model_runtime.errors import StoppedError
from model_runtime.queues import Callback, Done, OutputBuffer, QueueManager, store_rows
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


Rows = Mapping[str, Array]
"""Rows by anchor."""
Outcome = dict[str, Array] | Exception
"""Outputs of a request by anchor, or its error."""
STOPPED = "the session was stopped before the request was computed"
Waiting = TypeVar("Waiting")


class Request(Protocol):
    """Part of a request that this module uses."""

    @property
    def inputs(self) -> Rows:
        """Inputs by anchor, rows first."""


def take_next_run(
    waiting: deque[Waiting], max_rows: int, count_rows: Callable[[Waiting], int], rows: int = 0
) -> list[Waiting]:
    """Take the oldest requests from `waiting` until their rows fill a run.

    Args:
        waiting: the waiting requests, the oldest first.
        max_rows: number of rows of a run. No request is split, so the last may exceed it.
        count_rows: function that returns the rows of a request.
        rows: number of rows that are in the run already.

    Returns:
        The requests.
    """
    run = []
    while waiting and rows < max_rows:
        run.append(waiting.popleft())
        rows += count_rows(run[-1])
    return run


def compute_joined(
    session: Session,
    requests: Sequence[Request],
    ready_ns: int | None = None,
    out: Rows | None = None,
) -> Iterable[Outcome]:
    """Run requests with their rows joined into as few runs as possible.

    Args:
        session: the session that runs them.
        requests: the requests, at least one.
        ready_ns: see Session.run.
        out: see Session.run; for a single request only.

    Returns:
        The outcome of each request. Every error is the outcome of a request.
    """
    if session.runs_alone or not requests[0].inputs:
        return [_compute_one(session, request, ready_ns) for request in requests]
    try:
        if len(requests) == 1:
            return (session.run(requests[0].inputs, ready_ns, out),)
        outputs = session.run(_join_rows(requests), ready_ns)
    except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
        return compute_after_failure(session, requests, error)
    return _split_rows(outputs, requests)


def is_retried_alone(error: BaseException | None, num_requests: int) -> bool:
    """Return whether each request of a failed run is run again, alone, so that only invalid
    requests fail.

    This is so if the run rejected values, which may be those of one of several requests.
    """
    return isinstance(error, RunError) and num_requests > 1


def compute_after_failure(
    session: Session, requests: Sequence[Request], error: Exception
) -> Iterator[Outcome]:
    """Yield the outcome of each request that had rows in the run that failed with `error`.

    A request that is retried alone is run from its first row. After the session is stopped nothing
    is run again.
    """
    again = is_retried_alone(error, len(requests))
    # The time of the failed run is not held against the CPU: a chip would have taken it too.
    ready_ns = time.perf_counter_ns()
    for request in requests:
        yield _compute_again(session, request, ready_ns) if again else error


def _compute_again(session: Session, request: Request, ready_ns: int) -> Outcome:
    outcome = (
        StoppedError(STOPPED) if session.is_stopped else _compute_one(session, request, ready_ns)
    )
    return StoppedError(STOPPED) if isinstance(outcome, RunCancelledError) else outcome


def _compute_one(session: Session, request: Request, ready_ns: int | None) -> Outcome:
    try:
        return session.run(request.inputs, ready_ns)
    except Exception as error:  # noqa: BLE001  as above
        return error


def _join_rows(requests: Sequence[Request]) -> Rows:
    """Join the rows of several requests, one after the other."""
    return {
        anchor: np.concatenate([request.inputs[anchor] for request in requests])
        for anchor in requests[0].inputs
    }


def _split_rows(outputs: Rows, requests: Sequence[Request]) -> Iterator[Outcome]:
    """Yield the rows of each request, without a copy."""
    start = 0
    for request in requests:
        end = start + len(next(iter(request.inputs.values())))
        yield {anchor: array[start:end] for anchor, array in outputs.items()}
        start = end


@dataclass(slots=True, eq=False)
class _Request:
    inputs: Mapping[str, Array]
    rows: int
    started: Callback | None
    outputs: Mapping[str, OutputBuffer]
    done: Done
    owner: Any
    first_row: int = 0

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
