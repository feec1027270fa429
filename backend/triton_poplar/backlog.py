"""Drains a backlog of requests whose clients have gone, so that goodput under overload stays near
capacity.

A growing queue is served from its old end. Once it is as long as the clients' deadlines, every
request reaches the model just before its deadline, is computed, and is answered too late. The
server then works at full load and no client gets an answer. Skipping the cancelled requests does
not help, because the next one is about to expire as well. Refusing the whole queue at once does
help: later requests are fresh.

The rule, for a call that brings at least a full run (nothing waits behind a smaller one):

1. At most `SAMPLES_PER_SECOND` times a second, look at a few requests of the call. Do this before
   the run and, unless the run is short, after it. To check whether one is cancelled takes 30 to 100
   us. Usually none is, and the check ends here.
2. Otherwise look at more. Cancelled requests are not computed. There is a backlog if the client of
   more than half has gone at the end of the run, and most of them had not at its start: the run was
   wasted. Requests that are cancelled *before* the run are no evidence of a backlog: a client that
   gives up at once is no reason to refuse others.
   The runs of small batches are counted together, until they had `MIN_EVIDENCE` requests.
3. Then refuse everything until a call comes that is not full, or that the instance had to wait for.
   The exception is a call in which every request looked at is already cancelled: its other requests
   are computed. Such calls are at the head of the queue only, unless some clients give up early,
   and others wait among them.
4. A drain has to help. Until `GOOD_SAMPLES` in a row were good, the next drain waits for
   `MIN_BACKOFF_SECONDS`, then for twice that, and so on. So a client that always cancels in the
   middle of runs causes ever fewer drains.

Clients without deadlines cancel nothing. None of them is refused, however long their queue is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

SAMPLES_PER_SECOND = 20
"""Maximum number of calls per second that are sampled. This takes 0.5 % of the time, or 1 % with
long runs."""
PROBE_SIZE, SAMPLE_SIZE = 4, 16
"""Numbers of requests to look at, spread over the call: `PROBE_SIZE` in every sampled call,
`SAMPLE_SIZE` if one of those is cancelled."""
MIN_WASTED, MAX_USEFUL_WASTE = 0.5, 0.25
"""Shares of requests that are cancelled at the end of a run. Above `MIN_WASTED` the run was wasted;
of few requests it must be more, because their share says little (`_is_wasted`). Up to
`MAX_USEFUL_WASTE` of the requests it was computed for, it was not."""
MIN_EVIDENCE = 4
"""Minimum number of requests in successive wasted runs that shows a backlog. One client that
cancels a request or two says nothing about the others."""
MIN_RUN_SECONDS = 0.01
"""Minimum duration of a run that is judged if it began with nothing cancelled; a shorter run loses
little."""
MAX_DRAIN_SECONDS = 1.0
"""Maximum duration of a drain. A drain cannot end a backlog to which requests come faster than they
can be refused."""
MIN_IDLE_SECONDS = 0.002
"""Minimum idle time that shows an empty queue. Calls that wait in a queue follow one another within
0.5 ms."""
MIN_EMPTY_SECONDS = 0.05
"""Minimum idle time that shows an empty queue before a call of several requests, which may have
arrived together after an idle time."""
MAX_HANDING_OVER_SECONDS = 0.001
"""Maximum time that Triton and the stub take to send one refusal or to hand over one request. The
next call comes after the last of both."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0
"""Minimum and maximum time between drains that did not help."""
GOOD_SAMPLES = 3
"""Number of successive calls with hardly a cancelled request that show that a drain has helped."""

RequestT = TypeVar("RequestT")


class Sample:
    """Watched requests that another thread answers one by one, with those whose clients had gone by
    then.

    That thread calls `record_answer` before each answer. Checking whether a client has gone takes
    long. If none of the first `PROBE_SIZE` clients has gone, the others count as waiting.
    """

    def __init__(self, watched: Sequence[object]) -> None:
        self.watched = watched
        self._left = set(map(id, watched))
        self._gone: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether all are answered."""
        return not self._left

    def record_answer(self, request: RequestT, is_cancelled: Callable[[RequestT], bool]) -> None:
        """Look at a request before its answer is sent. Requests that are not watched are
        ignored."""
        if id(request) not in self._left:
            return
        asks = self._gone or len(self.watched) - len(self._left) < PROBE_SIZE
        if asks and is_cancelled(request):
            self._gone.add(id(request))
        self._left.discard(id(request))

    def is_gone(self, request: object) -> bool:
        """Return whether a client had gone when its request was answered."""
        return id(request) in self._gone


class Backlog:
    """Decides which calls of one instance are computed: `admit`, and for a full call `watch`, then
    `judge`.

    One thread calls it. If another thread answers the requests, a `Sample` passes its observations
    to `judge`. `report` is called at the end of a drain with the number of refused requests.
    """

    def __init__(
        self,
        report: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._clock = clock
        self.is_draining = False
        """Whether full calls are refused."""
        self._drain_until = 0.0
        self._refused = self._num_refused = 0
        self._refused_at = self._sampled_at = self._backoff_until = float("-inf")
        self._backoff_seconds = MIN_BACKOFF_SECONDS
        self._good_samples = self._num_gone = 0
        self._num_judged = self._num_wasted = 0
        self._is_suspicious = False

    def admit(
        self, requests: Sequence[RequestT], is_full: bool, is_cancelled: Callable[[RequestT], bool]
    ) -> bool:
        """Return whether to compute a call. A call that shows that the queue is empty ends the
        drain."""
        if not self.is_draining:
            return True
        # Triton hands over the next call only after the last call's refusals were sent, one by one.
        # What passes beyond that, and beyond a queue's pause between calls, the instance waited.
        now = self._clock()
        idle = MIN_IDLE_SECONDS if len(requests) == 1 else MIN_EMPTY_SECONDS
        handing_over = (self._num_refused + len(requests)) * MAX_HANDING_OVER_SECONDS
        waited_for = now - self._refused_at >= idle + handing_over
        if not is_full or waited_for or now >= self._drain_until:
            self.close()
            return True
        if all(map(is_cancelled, _pick_evenly(requests, PROBE_SIZE))):
            self._refused_at = now
            return True
        self._num_refused = len(requests)
        self._refused += len(requests)
        return False

    def record_refusals(self) -> None:
        """Record that the requests of a call during a drain have been answered."""
        self._refused_at = self._clock()

    def watch(
        self, requests: Sequence[RequestT], is_cancelled: Callable[[RequestT], bool]
    ) -> tuple[Sequence[RequestT], Sequence[RequestT]]:
        """Look at the requests of a full call, if it is time. Return those to judge after the run
        and those that are already cancelled."""
        now = self._clock()
        if not self.is_draining and now - self._sampled_at < 1 / SAMPLES_PER_SECOND:
            return (), ()
        self._sampled_at = now
        self._num_gone = 0
        sample = _pick_evenly(requests, SAMPLE_SIZE)
        self._is_suspicious = any(map(is_cancelled, _pick_evenly(requests, PROBE_SIZE)))
        if not self._is_suspicious:
            return sample, ()
        watched, gone = _partition(sample, is_cancelled)
        self._num_gone = len(gone)
        if self.is_draining or not watched:
            # A client may wait for one of the others: check every request before it is dropped.
            watched, gone = _partition(requests, is_cancelled)
        # With most requests cancelled before the run it shows nothing about the run: look at the
        # next call at once.
        if 2 * len(watched) >= len(sample):
            return watched[:SAMPLE_SIZE], gone
        self._sampled_at = float("-inf")
        return (), gone

    def judge(self, watched: Sequence[RequestT], is_cancelled: Callable[[RequestT], bool]) -> None:
        """Begin a drain if the run that has ended was for requests whose clients have gone
        meanwhile."""
        if self.is_draining:
            self.record_refusals()
        elif watched:
            self._judge(watched, is_cancelled)

    def _judge(self, watched: Sequence[RequestT], is_cancelled: Callable[[RequestT], bool]) -> None:
        now = self._clock()
        is_short = not self._is_suspicious and now - self._sampled_at < MIN_RUN_SECONDS
        if is_short or not any(map(is_cancelled, _pick_evenly(watched, PROBE_SIZE))):
            self._count_good_sample()
            return
        lost = sum(map(is_cancelled, watched))
        if lost <= MAX_USEFUL_WASTE * len(watched):
            self._count_good_sample()
            return
        # Requests that were cancelled before a suspicious run count as wasted with those that were
        # cancelled during it. Small runs are added up until there is enough evidence.
        self._good_samples = 0
        self._num_judged += self._num_gone + len(watched)
        self._num_wasted += self._num_gone + lost
        if self._num_judged < MIN_EVIDENCE:
            self._sampled_at = float("-inf")
            return
        if _is_wasted(self._num_wasted, self._num_judged) and now >= self._backoff_until:
            self._begin_drain(now)
        self._num_judged = self._num_wasted = 0

    def _begin_drain(self, now: float) -> None:
        self.is_draining = True
        self._num_refused = 0
        self._drain_until = now + MAX_DRAIN_SECONDS
        self._refused_at = now
        self._backoff_until = now + self._backoff_seconds
        self._backoff_seconds = min(2 * self._backoff_seconds, MAX_BACKOFF_SECONDS)

    def close(self) -> None:
        """End the drain, if there is one."""
        self.is_draining = False
        if self._refused:
            self._report(self._refused)
            self._refused = 0

    def _count_good_sample(self) -> None:
        self._num_judged = self._num_wasted = 0
        self._good_samples += 1
        if self._good_samples >= GOOD_SAMPLES:
            self._backoff_seconds, self._backoff_until = MIN_BACKOFF_SECONDS, float("-inf")


def _is_wasted(lost: int, total: int) -> bool:
    """Return whether more than `MIN_WASTED` of a run's requests were lost, by a standard error more
    than that: of four, all; of eight, six; of sixteen, eleven."""
    # The standard error of a share p of n is sqrt(p (1 - p) / n): for one half 0.5 / sqrt(n).
    return lost / total > MIN_WASTED + 0.5 / math.sqrt(total)


def _partition(
    requests: Sequence[RequestT], is_cancelled: Callable[[RequestT], bool]
) -> tuple[list[RequestT], list[RequestT]]:
    """Return the requests that are still wanted and the requests that are cancelled."""
    parts: tuple[list[RequestT], list[RequestT]] = [], []
    for request in requests:
        parts[is_cancelled(request)].append(request)
    return parts


def _pick_evenly(requests: Sequence[RequestT], count: int) -> Sequence[RequestT]:
    """Return at most `count` of the requests, at equal distances."""
    if len(requests) <= count:
        return requests
    return [requests[index * len(requests) // count] for index in range(count)]
