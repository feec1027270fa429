"""Admission of requests to an instance: which requests of a call are computed, and in which parts.

The others get their errors here: those that have expired, that must not be split, whose client has
gone, or that are refused because of a backlog (backlog.py).
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Sequence

from model_runtime import ModelRuntimeError, Session, take_next_run

from triton_poplar.backlog import Backlog, Sample
from triton_poplar.errors import RequestError
from triton_poplar.log import RateLimitedWarnings
from triton_poplar.request import CancelledError, Request
from triton_poplar.statistics import Statistics

MAX_PART_SECONDS = 0.1
"""Duration of the part of a long call that is answered before the rest is computed."""
CANCELLED = "the client cancelled the request while it waited or was computed"
OVERLOADED = (
    "is overloaded: responses came too late, so the backend rejected this request and all "
    "other waiting requests; try again later"
)


class Admission:
    """Admits the requests of one instance. One thread calls it; another one may answer the
    requests, and then calls `record_answer`.

    `is_cancelled` returns whether a request's client has gone. With it, and if `drains`, a backlog
    is drained. `name` names the instance in the log.
    """

    def __init__(
        self,
        model: str,
        name: str,
        session: Session,
        statistics: Statistics,
        is_cancelled: Callable[[Request], bool] | None,
        *,
        drains: bool,
    ) -> None:
        self._model = model
        self._session = session
        self._statistics = statistics
        self._is_cancelled = is_cancelled or (lambda _: False)
        self._warnings = RateLimitedWarnings(name)
        has_backlog = is_cancelled is not None and drains
        self._backlog = Backlog(self._report_drain) if has_backlog else None
        self._sample: Sample | None = None
        self.capacity = session.rows_per_run * session.runs_at_once
        """Number of rows that are computed at once."""
        self._rows_alone = session.rows_per_run if session.runs_alone else 0
        """Rows that a request occupies if it shares no run with others; else 0."""
        self.count_rows: Callable[[Request], int] = (
            (lambda _: self._rows_alone) if self._rows_alone else operator.attrgetter("batch_size")
        )
        """Function that returns the number of rows that the runs of a request occupy."""

    def admit(
        self, requests: Sequence[Request], is_part: bool, may_watch: bool = True
    ) -> tuple[list[Request], Sequence[Request]]:
        """Return the requests of a call to compute, and those of them to judge after the run. The
        other requests get their errors. `is_part` means that they are a part of one call from
        Triton, as `split` makes it."""
        waiting, rows, now_ns = [], 0, time.perf_counter_ns()
        for request in requests:
            if self._rows_alone:
                self._check_rows(request)
            if now_ns > request.expires_ns:
                request.expire()
            if request.error is None:
                waiting.append(request)
                rows += self._rows_alone or request.batch_size
        backlog = self._backlog
        if backlog is None or not waiting:
            return waiting, ()
        is_full = is_part or rows >= self.capacity
        if backlog.is_draining and not self._admit_while_draining(backlog, waiting, is_full):
            return [], ()
        if not is_full or not may_watch:
            return waiting, ()
        watched, gone = backlog.watch(waiting, self._is_cancelled)
        for request in gone:
            request.fail_run(CancelledError(CANCELLED))
        return [request for request in waiting if request.error is None], watched

    def judge(self, watched: Sequence[Request]) -> None:
        """Judge the watched requests of a call after its run."""
        backlog = self._backlog
        if backlog is not None and (watched or backlog.is_draining):
            backlog.judge(watched, self._is_cancelled)

    def split(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Return the parts of one call from Triton, which are computed and answered one after the
        other.

        Triton passes all waiting requests at once, up to max_batch_size. If a call takes seconds,
        its first request would have to wait for the last. A call that is refused is one part, whose
        requests have their errors.
        """
        statistics, backlog = self._statistics, self._backlog
        if backlog is None or len(requests) == 1 or not statistics.batches:
            return [requests]
        if backlog.is_draining:
            waiting = [request for request in requests if request.error is None]
            is_full = sum(map(self.count_rows, waiting)) >= self.capacity
            if not self._admit_while_draining(backlog, waiting, is_full):
                return [requests]
        runs = max(
            1, int(MAX_PART_SECONDS * 1e9 * statistics.batches / max(1, statistics.compute_ns))
        )
        max_rows = runs * self.capacity
        if sum(map(self.count_rows, requests)) <= max_rows:
            return [requests]
        rest, parts = deque(requests), list[Sequence[Request]]()
        while rest:
            parts.append(take_next_run(rest, max_rows, self.count_rows))
        return parts

    def admit_submitted(self, requests: Sequence[Request], is_part: bool) -> None:
        """Decide which requests of a call are computed that another thread answers.

        Before it answers a watched request, that thread checks whether the client has gone. Watched
        requests are judged when the next requests come.
        """
        self.judge_sample()
        _, watched = self.admit(requests, is_part, may_watch=self._sample is None)
        if watched:
            self._sample = Sample(watched)

    def judge_sample(self) -> None:
        """Judge the watched requests of an earlier `admit_submitted`, if all are answered."""
        if self._sample is not None and self._sample.is_complete:
            sample, self._sample = self._sample, None
            if self._backlog is not None:
                self._backlog.judge(sample.watched, sample.is_gone)

    def record_answer(self, request: Request) -> None:
        """Look at a request before its answer is sent."""
        sample = self._sample  # the other thread may replace it meanwhile
        if sample is not None:
            sample.record_answer(request, self._is_client_gone)

    def close(self) -> None:
        """End a drain, and write what the log has not said yet."""
        if self._backlog is not None:
            self._backlog.close()
        self._warnings.close()

    def _admit_while_draining(
        self, backlog: Backlog, requests: Sequence[Request], is_full: bool
    ) -> bool:
        """Return whether a call is computed. Requests of a backlog get their errors."""
        if backlog.admit(requests, is_full, self._is_cancelled):
            return True
        text = f"model {self._model!r} {OVERLOADED}"
        for request in requests:
            request.fail(RequestError(text, "UNAVAILABLE"), "drained")
        backlog.record_refusals()
        return False

    def _check_rows(self, request: Request) -> None:
        """Answer a request with an error if it would have to be split and splitting changes its
        answer."""
        try:
            self._session.check_rows(request.batch_size)
        except ModelRuntimeError as error:
            request.fail(RequestError(f"model {self._model!r}: {error}"), "bad_request")

    def _is_client_gone(self, request: Request) -> bool:
        """Return whether the client of a computed request no longer waits for it."""
        return request.error_kind != "cancelled" and self._is_cancelled(request)

    def _report_drain(self, refused: int) -> None:
        self._warnings.warn(
            f"overload: rejected {refused} waiting requests because responses came after the "
            "clients' deadlines; reduce the load, add servers, or see drain_backlog"
        )
