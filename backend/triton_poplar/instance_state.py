"""ModelInstanceState: one instance of a model: its session, its queues, and the way of requests through
them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from model_runtime import ModelRuntimeError, OutputSlot, QueueManager, RequestFlow, Session, StoppedError
from model_runtime.joining import run_joined
from model_runtime.pvti import Graph, Trace
from simipu.errors import SimIpuError
from simipu.kernels import find_kernels

import popef
from triton_poplar.backlog import Backlog
from triton_poplar.errors import ModelConfigError, RequestError
from triton_poplar.log import RareWarnings
from triton_poplar.model_state import ModelState
from triton_poplar.request import Array, CancelledError, Request
from triton_poplar.sessions import open_session
from triton_poplar.statistics import Statistics

PART_SECONDS = 0.1
"""Of a long call: what of it is answered before the rest is computed."""
CANCELLED = "the client cancelled it while it waited"
OVERLOADED = (
    "is overloaded: the request was refused with all that waited, for answers came too late; try again"
)


class ModelInstanceState:
    """Answers requests of one model, joined into compiled batches. One thread calls `execute`, or `submit`.

    Without `respond` execution is synchronous: `execute` runs its requests in the calling thread and returns
    when all have their answer. With it the instance has a session thread: `submit` hands requests over, and
    each is passed to `respond` once, in the order in which they came, when it has its outputs or an error.
    What waits is bounded: `submit` blocks while a whole run's rows wait already, so that Triton's batcher
    goes on filling batches.

    `is_cancelled` asks whether a request's client has gone; with it a backlog is drained (backlog.py).
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
        self.trace = Trace.from_environment(f"{model_state.name}_{name}")
        self._respond = respond
        self._counting = threading.Lock()
        self._room = threading.Condition()
        self._waiting_rows = 0
        model_state.creation_delay()
        self._failures, self._drains = RareWarnings(name), RareWarnings(name)
        self._is_cancelled = is_cancelled or (lambda _: False)
        drains = is_cancelled is not None and model_state.parameters.drain_backlog
        self._backlog = Backlog(self._report_drain) if drains else None
        self.session = _open(model_state)
        session = self.session
        self.statistics = Statistics(
            session.rows_per_run, session.cycles, session.seconds, session.modelled_seconds
        )
        self._observe = self.statistics.add_run if self.trace is None else self._trace_run
        session.observer = self._count_fused if session.branch_costs else self._observe
        self._delay_seconds = model_state.execution_delay_seconds(self.instance_id)
        self._pipeline = RequestFlow(self.session, timeout_ns=model_state.parameters.timeout_ns)
        if respond is not None:
            self._pipeline.start(f"session {name}")

    @property
    def queues_mutex(self) -> threading.Condition:
        """The lock of the queues: held from `enqueue_request` to `set_request_outputs`."""
        return self._pipeline.queues.lock

    @property
    def is_ready(self) -> bool:
        """Whether requests are computed; a child of `sim_isolation` that died is replaced, and does not
        count."""
        return self._pipeline.is_open

    @property
    def kernels(self) -> str:
        """The instructions that compute half precision; "none": ONNX Runtime's own operators do, and the log
        has the reason."""
        return find_kernels().instructions

    @property
    def queues(self) -> QueueManager:
        """The queues of the session."""
        return self._pipeline.queues

    def get_graph(self, name: str, unit: str = "") -> Graph | None:
        """The PVTI graph of that name, with the model's before it; None while tracing is off."""
        return self.trace.graph(f"{self.model_state.name} {name}", unit) if self.trace is not None else None

    def add_values_to_graph(self, batch_size: int, execution_ns: int) -> None:
        """Add what a collection of requests took to the PVTI graphs."""
        for name, unit, value in (
            ("batch size", "rows", float(batch_size)),
            ("execution", "ms", execution_ns / 1e6),
        ):
            graph = self.get_graph(name, unit)
            if graph is not None:
                graph.addSeries(self.name).add(value)

    def enqueue_request(
        self, inputs: Mapping[str, Array], batch_size: int, callback: Callable[[], None] | None = None
    ) -> None:
        """Put a request's rows into the input queues, by anchor. Call with `queues_mutex` held, then
        `set_request_outputs` once. `callback` is called when its first row is read."""
        self._pipeline.enqueue_request(inputs, batch_size, callback)

    def set_request_outputs(
        self,
        outputs: Mapping[str, OutputSlot | None],
        batch_size: int,
        callback: Callable[[Exception | None], None],
        request: Request | None = None,
    ) -> None:
        """Say where the rows of the last enqueued request go, by anchor; None drops an output. `callback` is
        called once: after the last row of the last output is written, or with the error that came instead."""
        self._pipeline.set_request_outputs(outputs, batch_size, callback, (request, callback))

    def _count_fused(self, start_ns: int, end_ns: int, rows: int, lateness_ns: int) -> None:
        """A run of a fused model takes what the model takes that it was for."""
        cost, statistics = self.session.run_cost, self.statistics
        statistics.cycles, statistics.seconds = cost.cycles, cost.seconds
        statistics.modelled_seconds = cost.modelled_seconds
        self._observe(start_ns, end_ns, rows, lateness_ns)

    def execute(self, requests: Sequence[Request], is_part: bool = False) -> None:
        """Compute all requests that have no error yet; afterwards each has its outputs or an error.

        Their rows are joined here, past the queues: while this call goes on no other can add to them.
        `is_part`: they are a part of a call of Triton's, as `split` makes them.
        """
        arrived_ns = time.perf_counter_ns()
        waiting = [request for request in requests if self._accepts(request)]
        if self._backlog is None or not waiting:
            self._run(waiting)
        elif not self._backlog.admit(
            waiting, is_full := is_part or self._fills_run(waiting), self._is_cancelled
        ):
            self._refuse(waiting)
            self._backlog.leave()
        elif not is_full:
            self._run(waiting)
        else:
            watched, gone = self._backlog.watch(waiting, self._is_cancelled)
            for request in gone:
                self._fail(request, CancelledError(CANCELLED))
            self._run([request for request in waiting if request.error is None])
            self._backlog.judge(watched, self._is_cancelled)
        self._count(requests, arrived_ns)
        self._report(requests, arrived_ns)

    def split(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """The parts of a call of Triton's, which are to be computed and answered one after the other.

        Triton hands over all that waits, up to max_batch_size. Answered together, the first of a call that
        takes seconds would wait for the last.
        """
        statistics = self.statistics
        if self._backlog is None or self._backlog.is_draining or not statistics.batches:
            return [requests]
        runs = max(1, int(PART_SECONDS * 1e9 * statistics.batches / max(1, statistics.compute_ns)))
        parts: list[Sequence[Request]] = []
        start = rows = 0
        for index, request in enumerate(requests):
            if rows >= runs * self._capacity:
                parts.append(requests[start:index])
                start, rows = index, 0
            rows += self._count_rows(request)
        return [*parts, requests[start:]]

    @property
    def _capacity(self) -> int:
        """The rows that are computed at once."""
        return self.session.rows_per_run * self.session.runs_at_once

    def _count_rows(self, request: Request) -> int:
        """The rows of the runs that a request takes."""
        return self.session.rows_per_run if self.session.runs_alone else request.batch_size

    def _fills_run(self, requests: Sequence[Request]) -> bool:
        return sum(map(self._count_rows, requests)) >= self._capacity

    def _run(self, requests: Sequence[Request]) -> None:
        """Compute requests that have no error."""
        if not requests:
            return
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        outcomes = run_joined(self.session, requests, time.perf_counter_ns())
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._fail(request, outcome)
            else:
                request.finish(outcome)

    def _refuse(self, requests: Sequence[Request]) -> None:
        """Answer requests of a backlog."""
        for request in requests:
            request.fail(
                RequestError(f"model {self.model_state.name!r} {OVERLOADED}", "UNAVAILABLE"), "drained"
            )

    def _report_drain(self, refused: int) -> None:
        self._drains.warn(
            f"overload: refused {refused} requests that waited, for answers came after their clients' "
            "deadlines; offer less, add servers, or see drain_backlog"
        )

    def _accepts(self, request: Request) -> bool:
        """Whether a request is to be run; one that would have to be split where that changes its answer gets
        its error."""
        if request.error is None and self.session.runs_alone:
            try:
                self.session.check_rows(request.batch_size)
            except ModelRuntimeError as error:
                request.fail(RequestError(f"model {self.model_state.name!r}: {error}"), "bad_request")
        return request.error is None

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests over to the session thread. Nothing is raised: what goes wrong is a request's
        answer."""
        collection = RequestCollection(requests, self._report)
        delay_seconds = self._delay_seconds
        for request in requests:
            try:
                if delay_seconds:
                    time.sleep(delay_seconds)
                    delay_seconds = 0
                self._submit(request, collection)
            except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
                self._fail(request, error)
                self._answer(request, collection)

    def withdraw_cancelled(self, is_cancelled: Callable[[Request], bool]) -> None:
        """Give the places of waiting requests that nobody wants any more to others; they are answered all the
        same."""
        for _, done in self._pipeline.withdraw(lambda owner: owner[0] is not None and is_cancelled(owner[0])):
            done(CancelledError(CANCELLED))

    def close(self) -> None:
        """Stop: requests that have no answer yet get UNAVAILABLE. The device is given up, the trace
        written."""
        self._pipeline.stop()
        if self._backlog is not None:
            self._backlog.close()
        self._drains.close()
        self.session.unloadFromDevice()
        self._failures.close()
        if self.trace is not None:
            self.trace.close()

    def read_statistics(self) -> Statistics:
        """The sums so far, with the queue's depth of now."""
        self.statistics.queue_depth = self.queues.readAvailable()
        return self.statistics

    def _submit(self, request: Request, collection: RequestCollection) -> None:
        if not self._accepts(request):
            self._answer(request, collection)
            return
        self._wait_for_room(request.batch_size)
        try:
            self._enqueue(request, collection)
        except BaseException:
            self._free(request.batch_size)
            raise

    def _fail(self, request: Request, error: Exception) -> None:
        """Answer with what went wrong, and tell the log, unless it is only that nobody wants the answer any
        more."""
        request.fail_run(error)
        if not isinstance(error, (CancelledError, StoppedError)):
            self._failures.warn(request.error)

    def _enqueue(self, request: Request, collection: RequestCollection) -> None:
        slots = {
            t.anchor: OutputSlot() if request.wants(name) else None
            for name, t in self.model_state.outputs.items()
        }

        def started() -> None:
            """The first row is read: the request leaves its place to another; once only."""
            if not request.started_ns:
                request.start_compute_timer()
                self._free(request.batch_size)

        def done(error: Exception | None) -> None:
            if not request.started_ns:
                self._free(request.batch_size)
            if error is not None:
                self._fail(request, error)
            request.finish(
                {anchor: slot.array for anchor, slot in slots.items() if slot and slot.array is not None}
            )
            self._answer(request, collection)

        with self.queues_mutex:
            self.enqueue_request(request.inputs, request.batch_size, started)
            self.set_request_outputs(slots, request.batch_size, done, request)

    def _wait_for_room(self, rows: int) -> None:
        with self._room:
            while self._waiting_rows >= self._capacity:
                self._room.wait()
            self._waiting_rows += rows

    def _free(self, rows: int) -> None:
        with self._room:
            self._waiting_rows -= rows
            self._room.notify()

    def _answer(self, request: Request, collection: RequestCollection) -> None:
        assert self._respond is not None
        self._count([request], collection.arrived_ns)
        self._respond(request)
        collection.answered()

    def _count(self, requests: Sequence[Request], arrived_ns: int) -> None:
        statistics = self.statistics
        with self._counting:
            statistics.requests += len(requests)
            for request in requests:
                if request.started_ns:
                    statistics.queue_wait_ns += request.started_ns - arrived_ns
                if request.error is not None:
                    statistics.errors[request.error_kind] += 1

    def _trace_run(self, start_ns: int, end_ns: int, rows: int, lateness_ns: int) -> None:
        self.statistics.add_run(start_ns, end_ns, rows, lateness_ns)
        assert self.trace is not None
        modelled = {
            "IPU cycles (modelled)": self.session.cycles,
            "IPU seconds (modelled)": self.session.seconds,
            "IPU and host seconds (modelled)": self.session.modelled_seconds,
        }
        self.trace.add_slice(
            "run", start_ns, end_ns, {"rows": rows, **modelled, "CPU late by seconds": lateness_ns / 1e9}
        )

    def _report(self, requests: Sequence[Request], arrived_ns: int) -> None:
        """What a call's requests took, once the last is answered."""
        now_ns = time.perf_counter_ns()
        self.statistics.execution_ns += now_ns - arrived_ns
        if self.trace is not None:
            rows = sum(request.batch_size for request in requests)
            self.add_values_to_graph(rows, now_ns - arrived_ns)
            if self._respond is None:
                self.trace.add_slice("execute", arrived_ns, now_ns, {"requests": len(requests), "rows": rows})


class RequestCollection:
    """The requests of one call to `submit`; the last answer reports what they took."""

    def __init__(self, requests: Sequence[Request], report: Callable[[Sequence[Request], int], None]) -> None:
        self.arrived_ns = time.perf_counter_ns()
        self._report = report
        self._requests = requests
        self._open = len(requests)
        self._lock = threading.Lock()

    def answered(self) -> None:
        """One request has its answer."""
        with self._lock:
            self._open -= 1
            last = not self._open
        if last:
            self._report(self._requests, self.arrived_ns)


def _open(model_state: ModelState) -> Session:
    """The session of a model with its weights loaded; ModelConfigError where it cannot be had."""
    try:
        session = open_session(model_state)
        session.runLoadPrograms()
    except (ModelRuntimeError, SimIpuError, popef.PopefError) as error:
        raise ModelConfigError(f"model {model_state.name!r}: {error}") from error
    return session
