"""Scheduling of requests of different lengths that share runs: which requests wait for each other,
and how long. pack_layout places them in the arrays of a run."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import TIMEOUT_MAX, Condition

from model_runtime import (
    DataDesc,
    ModelRunner,
    OutputFutureMemory,
    OutputMemory,
    Promise,
    RequestTracepoint,
    ServingThread,
    StoppedError,
    TensorMemory,
    endless_wait,
    is_retried_alone,
    stop_at_exit,
)
from simipu import FORKS, WATCHDOG

from popef._tools.arrays import Array
from poprt.runtime.pack_algorithms import PackRunnerConfig
from poprt.runtime.pack_layout import Group, PackedSample, PackLayout

MAX_GROUPS = 64
"""Maximum number of runs that wait for the device before new requests are blocked, too; it limits
the memory."""
_STOPPED = "the runner was closed before the request was computed"


@dataclass(slots=True, eq=False)
class _Run:
    """A group that is being filled or run, with the promises of its samples.

    The run is sent at the deadline at the latest.
    """

    group: Group
    deadline_ns: int
    promises: list[Promise] = field(default_factory=list)


class PackFlow:
    """Packs requests into runs of a ModelRunner, in the order of their arrival, and answers each
    separately.

    A run is sent when it is full, that is when the next sample does not fit, or after the
    configured time since its first sample. If a run fails because values are rejected, each of its
    samples is run again, alone. Callers should `close` it; a PackFlow without references ends by
    itself.
    """

    def __init__(self, runner: ModelRunner, config: PackRunnerConfig) -> None:
        layout = PackLayout(runner.getExecuteInputs(), runner.getExecuteOutputs(), config)
        self._runner = runner
        self._scheduler = _PackScheduler(runner, layout, config.timeout_microseconds * 1_000)
        self._finalizer = weakref.finalize(self, _abandon, self._scheduler)
        self._finalizer.atexit = False
        self._scheduler.start()

    def getExecuteInputs(self) -> list[DataDesc]:
        """Return the inputs of a run; a request has the part of one sample."""
        return self._runner.getExecuteInputs()

    def getExecuteOutputs(self) -> list[DataDesc]:
        """Return the outputs of a run."""
        return self._runner.getExecuteOutputs()

    def execute(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None
    ) -> OutputMemory:
        """Compute one sample and wait for the results."""
        return self.executeAsync(inputs, outputs).wait()

    def executeAsync(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None
    ) -> OutputFutureMemory:
        """Start computing one sample: arrays of its length, or padded ones if padding is removed.

        Results are written to the beginning of the arrays in `outputs`. They need as many places as
        the sample has, or all of its row if the model separates the samples. None allocates the
        arrays. Raises ModelRuntimeError for a sample that does not fit into a run, and StoppedError
        after the runner is closed.
        """
        sample, promise = self._scheduler.add(inputs, outputs)
        return OutputFutureMemory(list(sample.outputs), promise, self)

    def getRequestTracepoints(self) -> list[RequestTracepoint]:
        """Return the runner's tracepoints: none, because a PackRunnerConfig cannot request them."""
        return self._runner.getRequestTracepoints()

    def close(self) -> None:
        """Stop. Requests without results get a StoppedError."""
        self._finalizer.detach()
        self._scheduler.close()


class _PackScheduler:
    """State of the thread of a PackFlow, which must not hold a reference to the PackFlow itself.

    Like a session, it ends with the interpreter (model_runtime.shutdown).
    """

    def __init__(self, runner: ModelRunner, layout: PackLayout, timeout_ns: int) -> None:
        self._runner, self._layout, self._timeout_ns = runner, layout, timeout_ns
        self._is_stopped = self._is_abandoned = False
        self._thread = ServingThread()
        self.forget_parent()
        FORKS.watch(self)

    def forget_parent(self) -> None:
        """Reset to a state without requests and without a thread.

        In a fork these belong to the parent, and a thread of the parent may have held the lock.
        """
        self._lock = Condition()
        self._open: _Run | None = None
        self._ready: deque[_Run] = deque()
        """Runs of one sample that failed together with others."""
        self._sent = 0
        self._is_asleep = False
        self._thread.forget_parent()

    @property
    def is_served(self) -> bool:
        """Return whether its thread was started in this process."""
        return not self._thread.is_lost

    def start(self) -> None:
        """Start the thread that sends runs whose deadline has passed."""
        stop_at_exit(self)
        self._thread.start(self._serve, "poprt packing", self)

    def add(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None
    ) -> tuple[PackedSample, Promise]:
        """Add a request to the open run, or send that run and open another."""
        sample = self._layout.read(inputs, outputs)
        promise = Promise()
        with self._lock:
            while self._sent >= MAX_GROUPS and not self._is_stopped:
                with endless_wait:
                    self._lock.wait()
            if self._is_stopped:
                raise StoppedError("the runner was closed")
            if self._thread.is_lost:
                self._thread.restart(self._serve, self)
            run = self._open
            if run is None or not self._layout.put(run.group, sample):
                if run is not None:
                    self._send(run)
                run = self._open = self._begin()
                self._layout.put(run.group, sample)
                if self._is_asleep:
                    self._lock.notify_all()
            run.promises.append(promise)
            if len(run.promises) >= self._layout.most:
                self._send(run)
        return sample, promise

    def stop(self) -> None:
        """Reject new requests, and let the thread answer those that were not sent."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def cancel(self) -> None:
        """Stop like `stop`: the ModelRunner ends the runs in flight."""
        self.stop()

    def abandon(self) -> None:
        """Stop, and drop the only reference to the ModelRunner, which then ends its run."""
        self._is_abandoned = True
        self.stop()

    def close(self) -> None:
        """Stop, answer all requests, and close the ModelRunner."""
        self.stop()
        self._thread.join()
        self._runner.close()

    def _begin(self) -> _Run:
        return _Run(self._layout.open(), time.perf_counter_ns() + self._timeout_ns)

    def _send(self, run: _Run) -> None:
        """Send a run to the device; the caller holds the lock."""
        if run is self._open:
            self._open = None
        self._layout.seal(run.group)
        self._sent += 1
        try:
            future = self._runner.executeAsync(run.group.arrays)
        except Exception as error:  # noqa: BLE001  every request gets an answer
            self._sent -= 1
            _fail_run(run, error)
            return
        future.then(lambda results, error: self._finish(run, results, error))

    def _finish(self, run: _Run, results: OutputMemory | None, error: BaseException | None) -> None:
        """Answer the requests of a run; called by the session thread."""
        again = is_retried_alone(error, len(run.promises))
        if results is not None:
            for sample, promise in zip(run.group.samples, run.promises, strict=True):
                self._answer(sample, results, promise)
        elif error is not None and not again:
            _fail_run(run, error)
        with self._lock:
            if again:
                self._ready.extend(map(self._open_alone, run.group.samples, run.promises))
            self._sent -= 1
            if again or self._sent == MAX_GROUPS - 1:
                self._lock.notify_all()

    def _answer(self, sample: PackedSample, results: OutputMemory, promise: Promise) -> None:
        try:
            self._layout.give(sample, results)
        except Exception as error:  # noqa: BLE001  fails one request, not the others of its run
            promise.set_exception(error)
        else:
            views = {name: array.view(TensorMemory) for name, array in sample.outputs.items()}
            promise.set_result(OutputMemory(views))

    def _open_alone(self, sample: PackedSample, promise: Promise) -> _Run:
        run = self._begin()
        self._layout.put(run.group, sample)
        run.promises.append(promise)
        return run

    def _serve(self) -> None:
        with self._lock:
            while not self._is_stopped:
                self._send_due()
                self._sleep()
            runs = [*self._ready, *([self._open] if self._open else [])]
            self._ready.clear()
            self._open = None
        for run in runs:
            _fail_run(run, StoppedError(_STOPPED))
        if self._is_abandoned:
            del self._runner

    def _send_due(self) -> None:
        while self._ready:
            self._send(self._ready.popleft())
        if self._open is not None and self._open.deadline_ns <= time.perf_counter_ns():
            self._send(self._open)

    def _sleep(self) -> None:
        """Wait until a run is due.

        A run that is opened in the meantime is due later than the current one. Only a sleep without
        a timeout is therefore woken for it.
        """
        if self._ready or self._is_stopped:
            return
        if self._open is None:
            self._is_asleep = True
            with endless_wait:
                self._lock.wait()
            self._is_asleep = False
            return
        remaining_ns = self._open.deadline_ns - time.perf_counter_ns()
        if remaining_ns > 0:
            self._lock.wait(min(remaining_ns / 1e9, TIMEOUT_MAX))


def _fail_run(run: _Run, error: BaseException) -> None:
    for promise in run.promises:
        promise.set_exception(error)


def _abandon(scheduler: _PackScheduler) -> None:
    """Abandon the scheduler; this is a finalizer.

    In a fork without a request there is no thread to end.
    """
    if scheduler.is_served:
        WATCHDOG.soon(scheduler.abandon)
