"""ModelInstanceState: one instance of a model, with its session, its queues and the path of
requests through them. Which requests are computed is decided in `admission`."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from model_runtime import (
    JoinChoice,
    ModelRuntimeError,
    OutputSlot,
    QueueManager,
    RequestFlow,
    RunCost,
    Session,
    StoppedError,
    compute_joined,
)
from simipu.errors import LoadError, RunUnwantedError, SimIpuError

import popef
from popef._tools.arrays import Array
from triton_poplar.admission import CANCELLED, Admission
from triton_poplar.errors import ModelConfigError
from triton_poplar.in_flight import InFlight
from triton_poplar.log import RateLimitedWarnings
from triton_poplar.model_state import ModelState
from triton_poplar.request import CancelledError, Request
from triton_poplar.sessions import (
    describe_failure,
    load_first,
    load_session,
    make_graph_options,
)
from triton_poplar.statistics import Histogram, Statistics

if TYPE_CHECKING:  # few servers are traced
    from model_runtime.pvti import Graph, Trace

DEFAULT_TIMEOUT_NS = 500_000
"""Default of `timeout_ns`."""
NUM_LAST_RUNS = 8
"""Number of runs whose shortest decides how long batches wait; a single run may be long because the
machine is busy."""
MAX_UNCOUNTED = 1024
"""Maximum number of answered requests that the statistics do not contain yet."""


class ModelInstanceState:
    """Answers requests of one model, joined into compiled batches. One thread calls `execute` and
    `submit`.

    `execute` runs its requests in the calling thread and returns when all have their answer.
    Without `respond` execution is synchronous: there is nothing else. With `respond` the instance
    has a session thread. `submit` hands requests over to it, and each is passed to `respond` once,
    in order of arrival, when it has its outputs or an error. The queue is bounded: `submit` blocks
    while the rows of a whole run wait already, so that Triton's batcher continues to fill batches.
    `is_worth_waiting` says which of the two is faster for a call.

    `is_cancelled` returns whether a request's client has gone. With it a backlog is drained
    (admission.py).
    """

    def __init__(
        self,
        model_state: ModelState,
        name: str,
        respond: Callable[[Request], None] | None = None,
        is_cancelled: Callable[[Request], bool] | None = None,
    ) -> None:
        self.model_state = model_state
        self.name = name
        self.instance_id = model_state.instance_id(name)
        self.trace = _open_trace(f"{model_state.name}_{name}")
        self._respond = respond
        self._statistics_lock = threading.Lock()
        self._answered: deque[tuple[int, int, int, str]] = deque()
        self._rows_freed = threading.Condition()
        self._waiting_rows = 0
        self._running_lock = threading.Lock()
        self._running: Sequence[Request] = ()
        self._ran_before: Sequence[Request] = ()
        started = time.monotonic()
        model_state.creation_delay()
        self._failures = RateLimitedWarnings(name)
        self.session = _open_session(model_state)
        session = self.session
        self._statistics = Statistics(session.rows_per_run)
        buckets = model_state.parameters.latency_buckets
        self._statistics.latency, self._statistics.waiting = Histogram(buckets), Histogram(buckets)
        self._admission = Admission(
            model_state.name,
            name,
            session,
            self._statistics,
            is_cancelled,
            drains=model_state.parameters.drain_backlog,
        )
        self._join_choice = JoinChoice()
        self._is_paced = model_state.parameters.sim_timing == "paced"
        timeout_ns = model_state.parameters.timeout_ns
        self._max_timeout_ns = DEFAULT_TIMEOUT_NS if timeout_ns is None else timeout_ns
        # A timeout of 0 is none. A paced run takes the chip's time for any number of rows.
        is_limited = bool(self._max_timeout_ns) and not self._is_paced
        self._adapts_timeout = respond is not None and is_limited
        self._in_flight = InFlight()
        # A wait that somebody has asked for is shortened only after some runs.
        self._min_runs = 1 if timeout_ns is None else NUM_LAST_RUNS
        self._last_runs_ns: deque[int] = deque(maxlen=NUM_LAST_RUNS)
        is_plain = self.trace is None and not self._adapts_timeout
        session.observer = self._statistics.add_run if is_plain else self._observe_run
        self._delay_seconds = model_state.execution_delay_seconds(self.instance_id)
        if not self._adapts_timeout:
            timeout_ns = self._max_timeout_ns
        self._request_flow = RequestFlow(self.session, timeout_ns=timeout_ns)
        if respond is not None:
            self._request_flow.start(f"session {name}")
        self.load_seconds = time.monotonic() - started
        """Time from the start of the load until the instance could answer."""

    @property
    def statistics(self) -> Statistics:
        """Sums since the instance was created."""
        return self.read_statistics()

    @property
    def queues_mutex(self) -> threading.Condition:
        """Lock of the queues, held from `enqueue_request` to `set_request_outputs`."""
        return self._request_flow.queues.lock

    @property
    def is_ready(self) -> bool:
        """Whether requests are computed. A dead child process of `sim_isolation` is replaced, so it
        does not count."""
        return self._request_flow.is_open

    @property
    def kernels(self) -> str:
        """Names of what computes the model: accelerators, or else the kernels of half precision.
        "none" means ONNX Runtime's own operators; the log has the reason."""
        return self.session.kernels

    @property
    def queues(self) -> QueueManager:
        """Queues of the session."""
        return self._request_flow.queues

    def get_graph(self, name: str, unit: str = "") -> Graph | None:
        """Return the PVTI graph of that name, prefixed with the model's name, or None while tracing
        is off."""
        if self.trace is None:
            return None
        return self.trace.graph(f"{self.model_state.name} {name}", unit)

    def add_values_to_graph(self, batch_size: int, execution_ns: int) -> None:
        """Add the duration and batch size of a collection of requests to the PVTI graphs."""
        for name, unit, value in (
            ("batch size", "rows", float(batch_size)),
            ("execution", "ms", execution_ns / 1e6),
        ):
            graph = self.get_graph(name, unit)
            if graph is not None:
                graph.addSeries(self.name).add(value)

    def enqueue_request(
        self,
        inputs: Mapping[str, Array],
        batch_size: int,
        callback: Callable[[], None] | None = None,
    ) -> None:
        """Put a request's rows into the input queues, by anchor. Call this with `queues_mutex`
        held, then `set_request_outputs` once. `callback` is called when the request's first row is
        read."""
        self._request_flow.enqueue_request(inputs, batch_size, callback)

    def set_request_outputs(
        self,
        outputs: Mapping[str, OutputSlot | None],
        batch_size: int,
        callback: Callable[[Exception | None], None],
        request: Request | None = None,
    ) -> None:
        """Set where the rows of the last enqueued request go, by anchor; None drops an output.
        `callback` is called once, after the last row of the last output is written or with the
        error that occurred instead."""
        self._request_flow.set_request_outputs(outputs, batch_size, callback, (request, callback))

    def execute(
        self,
        requests: Sequence[Request],
        is_part: bool = False,
    ) -> None:
        """Compute all requests that have no error yet; afterwards each has its outputs or an error.

        Their rows are joined here without the queues, because no other call can add to them
        meanwhile. `is_part` means that they are a part of one call from Triton, as `split` makes
        it.
        """
        arrived_ns, admission = time.perf_counter_ns(), self._admission
        if self._respond is not None:
            admission.judge_sample()
        waiting, watched = admission.admit(requests, is_part)
        self._run(waiting)
        admission.judge(watched)
        self._report(requests, arrived_ns, self._count(requests))

    def split(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Return the parts of one call from Triton, which are computed and answered one after the
        other."""
        return self._admission.split(requests)

    def is_worth_waiting(self, requests: Sequence[Request]) -> bool:
        """Return whether to `submit` a call, so that its rows join those of other calls, or to
        `execute` it.

        It is executed if nothing is gained by a wait: the session thread is idle, and the rows fill
        whole batches, or batches do not wait, or no other requests are to be expected.
        """
        flow = self._request_flow
        if self._respond is None:
            return False
        if self._is_paced or not flow.is_idle:
            return True
        if not flow.queues.waits_for_more(sum(map(self._admission.count_rows, requests))):
            return False
        return not (self._adapts_timeout and self._in_flight.may_compute(len(requests)))

    def _run(self, requests: Sequence[Request]) -> None:
        """Compute requests that have no error."""
        if not requests:
            return
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        started_ns = time.perf_counter_ns()
        for request in requests:
            request.started_ns = started_ns
        self._running = requests
        try:
            outcomes = list(compute_joined(self.session, requests, started_ns, self._join_choice))
        finally:
            with self._running_lock:  # whoever asks for a client must not use a request afterwards
                self._running = ()
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._fail(request, outcome)
            else:
                request.finish(outcome)

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests over to the session thread. It raises nothing: every error becomes the
        answer of a request."""
        collection = RequestCollection(requests, self._report)
        parts = self._admission.split(requests)
        delay_seconds = self._delay_seconds
        for part in parts:
            try:
                if delay_seconds:
                    time.sleep(delay_seconds)
                    delay_seconds = 0
                self._admission.admit_submitted(part, len(parts) > 1)
            except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
                for request in part:
                    self._fail(request, error)
            for request in part:
                self._submit(request, collection)
            if self._adapts_timeout and self._in_flight.are_all_waiting:
                self.queues.flushAll()

    def withdraw_cancelled(self, is_cancelled: Callable[[Request], bool]) -> None:
        """Remove cancelled requests from the queues, so that others can take their places. They
        still get an answer."""
        for _, done in self._request_flow.withdraw(
            lambda owner: owner[0] is not None and is_cancelled(owner[0])
        ):
            done(CancelledError(CANCELLED))

    def end_unwanted_run(self, is_cancelled: Callable[[Request], bool]) -> None:
        """End the run in flight if the clients of all its requests have cancelled. It has lasted
        since the last call, at least: so only runs that are longer than the time between two calls
        cost a look at their clients."""
        with self._running_lock:
            running, before = self._find_running(), self._ran_before
            self._ran_before = running
            is_old = bool(running) and _are_same(running, before)
            if not is_old or not all(map(is_cancelled, running)):
                return
        self.session.end_run(lambda: _are_same(self._find_running(), running))

    def _find_running(self) -> Sequence[Request]:
        """Return the requests that are computed now."""
        owners = self._running or [owner for owner, _ in self._request_flow.find_running()]
        return [owner for owner in owners if owner is not None]

    def close(self) -> None:
        """Stop the instance. Requests without an answer get UNAVAILABLE, the device is released,
        and the trace is written."""
        self._request_flow.stop()
        self._admission.close()
        self.session.unloadFromDevice()
        self._failures.close()
        if self.trace is not None:
            self.trace.close()
        self._count_answered()

    def read_statistics(self) -> Statistics:
        """Return the sums so far, with the current depth of the queue."""
        self._count_answered()
        self._statistics.queue_depth = self.queues.readAvailable()
        return self._statistics

    def _count_answered(self) -> None:
        with self._statistics_lock, suppress(IndexError):
            while True:
                self._statistics.add_request(*self._answered.popleft())

    def _submit(self, request: Request, collection: RequestCollection) -> None:
        if request.error is None:
            self._reserve_rows(request.batch_size)
            try:
                if not request.expire():
                    self._enqueue(request, collection)
                    return
            except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
                self._fail(request, error)
            self._release_rows(request.batch_size)
            self._in_flight.answer()
        self._answer(request, collection)

    def _fail(self, request: Request, error: Exception) -> None:
        """Answer with an error, and log it unless the request was cancelled or the session
        stopped."""
        if isinstance(error, RunUnwantedError):
            error = CancelledError(CANCELLED)
        request.fail_run(error)
        if not isinstance(error, (CancelledError, StoppedError)):
            self._failures.warn(request.error)

    def _enqueue(self, request: Request, collection: RequestCollection) -> None:
        slots = {
            t.anchor: OutputSlot() if request.wants(name) else None
            for name, t in self.model_state.outputs.items()
        }

        def started() -> None:
            """Free the request's place in the queue when its first row is read. Later calls do
            nothing."""
            if not request.started_ns:
                request.start_compute_timer()
                self._release_rows(request.batch_size)

        def done(error: Exception | None) -> None:
            if not request.started_ns:
                self._release_rows(request.batch_size)
            self._in_flight.answer()
            if error is not None:
                self._fail(request, error)
            request.finish(
                {
                    anchor: slot.array
                    for anchor, slot in slots.items()
                    if slot and slot.array is not None
                }
            )
            self._answer(request, collection)

        with self.queues_mutex:
            self.enqueue_request(request.inputs, request.batch_size, started)
            self.set_request_outputs(slots, request.batch_size, done, request)

    def _reserve_rows(self, rows: int) -> None:
        with self._rows_freed:
            while self._waiting_rows >= self._admission.capacity:
                self._rows_freed.wait()
            self._waiting_rows += rows
        self._in_flight.arrive()

    def _release_rows(self, rows: int) -> None:
        with self._rows_freed:
            self._waiting_rows -= rows
            self._rows_freed.notify()
        self._in_flight.start()

    def _answer(self, request: Request, collection: RequestCollection) -> None:
        assert self._respond is not None
        self._admission.record_answer(request)
        self._count([request])
        self._respond(request)
        collection.answered()

    def _count(self, requests: Sequence[Request]) -> int:
        """Note answered requests, for `read_statistics` to count: to count one takes longer than to
        note it. Return the time."""
        now_ns, note = time.perf_counter_ns(), self._answered.append
        for request in requests:
            note((request.arrived_ns, request.started_ns, now_ns, request.error_kind))
        if len(self._answered) >= MAX_UNCOUNTED:
            self._count_answered()
        return now_ns

    def _observe_run(
        self, start_ns: int, end_ns: int, rows: int, lateness_ns: int, cost: RunCost
    ) -> None:
        """Count a run, and decide by the last runs' durations how long batches wait.

        To join an earlier run saves at most the time of a run. So a wait longer than that costs
        more than it saves, and so does any wait for short runs, as requests that wait are handed
        over between threads.
        """
        self._statistics.add_run(start_ns, end_ns, rows, lateness_ns, cost)
        if self._adapts_timeout:
            self._in_flight.end_run(len(self._running))
            self._last_runs_ns.append(end_ns - start_ns)
            if len(self._last_runs_ns) >= self._min_runs:
                self.queues.timeout_ns = self._find_timeout_ns()
        if self.trace is None:
            return
        args = {
            "rows": rows,
            "IPU cycles (modelled)": self.session.cycles,
            "IPU seconds (modelled)": self.session.seconds,
            "IPU and host seconds (modelled)": self.session.modelled_seconds,
            "CPU late by seconds": lateness_ns / 1e9,
        }
        self.trace.add_slice("run", start_ns, end_ns, args)

    def _find_timeout_ns(self) -> int | None:
        """Return how long a batch waits for more rows; None means not at all."""
        run_ns, max_ns = min(self._last_runs_ns), self._max_timeout_ns
        is_long = run_ns >= min(max_ns, DEFAULT_TIMEOUT_NS)
        return min(max_ns, run_ns) if is_long else None

    def _report(self, requests: Sequence[Request], arrived_ns: int, now_ns: int) -> None:
        """Record how long a call's requests took, once the last one is answered."""
        self._statistics.execution_ns += now_ns - arrived_ns
        if self.trace is not None:
            rows = sum(request.batch_size for request in requests)
            self.add_values_to_graph(rows, now_ns - arrived_ns)
            if self._respond is None:
                self.trace.add_slice(
                    "execute", arrived_ns, now_ns, {"requests": len(requests), "rows": rows}
                )


class RequestCollection:
    """Requests of one call to `submit`; the last answer reports how long they took."""

    def __init__(
        self, requests: Sequence[Request], report: Callable[[Sequence[Request], int, int], None]
    ) -> None:
        self.arrived_ns = time.perf_counter_ns()
        self._report = report
        self._requests = requests
        self._num_unanswered = len(requests)
        self._lock = threading.Lock()

    def answered(self) -> None:
        """Record that one request has its answer."""
        with self._lock:
            self._num_unanswered -= 1
            last = not self._num_unanswered
        if last:
            self._report(self._requests, self.arrived_ns, time.perf_counter_ns())


def _are_same(requests: Sequence[Request], others: Sequence[Request]) -> bool:
    return len(requests) == len(others) and all(map(operator.is_, requests, others))


def _open_trace(name: str) -> Trace | None:
    """Return the trace that the environment enables."""
    if not os.environ.get("PVTI_OPTIONS"):
        return None
    from model_runtime.pvti import Trace

    return Trace.from_environment(name)


def _open_session(model_state: ModelState) -> Session:
    """Return the session of a model with its weights loaded. Raises ModelConfigError if the model
    cannot be loaded."""
    options = make_graph_options(model_state)
    load_first(model_state, options, load_session)
    try:
        return load_session(model_state)
    except LoadError as error:
        text = describe_failure(model_state, error, options.ready_seconds)
        raise ModelConfigError(f"model {model_state.name!r}: {text}") from error
    except (ModelRuntimeError, SimIpuError, popef.PopefError) as error:
        raise ModelConfigError(f"model {model_state.name!r}: {error}") from error
