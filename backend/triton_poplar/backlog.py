"""Drains a backlog of requests whose clients have gone, so that goodput under overload stays near capacity.

A queue that grows is served from its old end. Once it is as long as the clients' deadlines every request
reaches the model just before its deadline, is computed, and is answered too late: the server works at full
load and no client has an answer. To skip the cancelled requests does not help, for the next one is about to
expire as well. What helps is to refuse the whole queue at once: what comes next is fresh.

The rule, for a call that brings at least a full run (nothing waits behind a smaller one):

1. At most `SAMPLES_PER_SECOND` times a second look at a few of its requests, before the run and, unless it is
   short, after it: to ask whether one is cancelled takes 30 to 100 us. Usually none is, and that is all.
2. Else look at more. Those that are cancelled are not computed. If the client of more than half has gone at
   the end of the run, and most of them had not at its start, the run was wasted: there is a backlog. Requests
   that are cancelled *before* the run are no evidence of one: a client that gives up at once is no reason to
   refuse others.
3. Then refuse everything until a call comes that is not full, or that the instance had to wait for. But of
   calls in which every request looked at is cancelled already the others are computed: there are such calls
   at the head of the queue only, unless some clients give up early, and others wait among them.
4. A drain has to help: until `GOOD_SAMPLES` in a row were good, the next drain waits for `MIN_REST_SECONDS`,
   then for twice that, and so on. A client that always cancels in the middle of runs has others' requests
   refused ever more rarely.

Clients without deadlines cancel nothing. However long their queue is, none of them is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

SAMPLES_PER_SECOND = 20
"""Calls that are looked at, which takes 0.5 % of the time, or, with long runs, 1 %."""
GLANCE, SAMPLE = 4, 16
"""Requests that are looked at, spread over the call: of every sampled call, and where one of them is
cancelled."""
MIN_WASTED, MAX_USEFUL_WASTE = 0.5, 0.25
"""Share of requests that are cancelled at the end of a run: above which the run was wasted; up to which, of
those that it was computed for, it was not."""
MIN_RUN_SECONDS = 0.01
"""A shorter run that began with nothing cancelled is not judged: little is lost with it."""
MAX_DRAIN_SECONDS = 1.0
"""Requests that come faster than they can be refused are no backlog that a drain could end."""
MIN_IDLE_SECONDS = 0.002
"""Calls that wait in a queue follow one another within 0.5 ms."""
MIN_EMPTY_SECONDS = 0.05
"""For a call of several requests, which may have come together after nothing did."""
MAX_REFUSAL_SECONDS = 0.001
"""What Triton takes to send one refusal; it hands over the next call after the last."""
MIN_REST_SECONDS, MAX_REST_SECONDS = 1.0, 60.0
"""Between drains that did not help."""
GOOD_SAMPLES = 3
"""Calls with hardly a cancelled request, one after the other, that show that a drain has helped."""

Item = TypeVar("Item")


class Backlog:
    """Decides which calls of one instance are computed: `admit`, and for a full call `watch`, then `judge`.

    One thread calls it. `report` is told at the end of a drain how many requests were refused.
    """

    def __init__(
        self, report: Callable[[int], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._clock = clock
        self._is_draining = False
        self._drain_until = 0.0
        self._refused = self._num_refused = 0
        self._refused_at = self._sampled_at = self._rest_until = float("-inf")
        self._rest_seconds = MIN_REST_SECONDS
        self._good_samples = self._num_gone = 0
        self._suspects = False

    @property
    def is_draining(self) -> bool:
        """Whether full calls are refused."""
        return self._is_draining

    def admit(self, requests: Sequence[Item], is_full: bool, is_cancelled: Callable[[Item], bool]) -> bool:
        """Whether to compute a call; one that shows that the queue is empty ends the drain."""
        if not self._is_draining:
            return True
        now = self._clock()
        idle = MIN_IDLE_SECONDS if len(requests) == 1 else MIN_EMPTY_SECONDS
        waited_for = now - self._refused_at >= idle + self._num_refused * MAX_REFUSAL_SECONDS
        if not is_full or waited_for or now >= self._drain_until:
            self.close()
            return True
        if all(map(is_cancelled, _spread(requests, GLANCE))):
            return True
        self._num_refused = len(requests)
        self._refused += len(requests)
        return False

    def leave(self) -> None:
        """The requests of a call that was not admitted are answered."""
        self._refused_at = self._clock()

    def watch(
        self, requests: Sequence[Item], is_cancelled: Callable[[Item], bool]
    ) -> tuple[Sequence[Item], Sequence[Item]]:
        """Look at the requests of a full call, if it is time: those to be judged after the run, and those
        that are cancelled already."""
        now = self._clock()
        if not self._is_draining and now - self._sampled_at < 1 / SAMPLES_PER_SECOND:
            return (), ()
        self._sampled_at = now
        self._num_gone = 0
        sample = _spread(requests, SAMPLE)
        self._suspects = any(map(is_cancelled, _spread(requests, GLANCE)))
        if not self._suspects:
            return sample, ()
        watched, gone = _part(sample, is_cancelled)
        self._num_gone = len(gone)
        if self._is_draining or not watched:
            # Someone may wait for one of the others: no request is given up unseen.
            watched, gone = _part(requests, is_cancelled)
        if 2 * len(watched) >= len(sample):
            return watched[:SAMPLE], gone
        self._sampled_at = float("-inf")
        return (), gone

    def judge(self, watched: Sequence[Item], is_cancelled: Callable[[Item], bool]) -> None:
        """After the run: begin a drain if it was for requests whose clients have gone meanwhile."""
        if not watched:
            return
        now = self._clock()
        is_short = not self._suspects and now - self._sampled_at < MIN_RUN_SECONDS
        if is_short or not any(map(is_cancelled, _spread(watched, GLANCE))):
            self._count_good_sample()
            return
        lost = sum(map(is_cancelled, watched))
        if lost <= MAX_USEFUL_WASTE * len(watched):
            self._count_good_sample()
            return
        self._good_samples = 0
        wasted = (self._num_gone + lost) / (self._num_gone + len(watched))
        if wasted > MIN_WASTED and now >= self._rest_until:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._is_draining = True
        self._num_refused = 0
        self._drain_until = now + MAX_DRAIN_SECONDS
        self._refused_at = now
        self._rest_until = now + self._rest_seconds
        self._rest_seconds = min(2 * self._rest_seconds, MAX_REST_SECONDS)

    def close(self) -> None:
        """End the drain, if there is one."""
        self._is_draining = False
        if self._refused:
            self._report(self._refused)
            self._refused = 0

    def _count_good_sample(self) -> None:
        self._good_samples += 1
        if self._good_samples >= GOOD_SAMPLES:
            self._rest_seconds, self._rest_until = MIN_REST_SECONDS, float("-inf")


def _part(requests: Sequence[Item], is_cancelled: Callable[[Item], bool]) -> tuple[list[Item], list[Item]]:
    """Those that are awaited, and those that are cancelled."""
    parts: tuple[list[Item], list[Item]] = [], []
    for request in requests:
        parts[is_cancelled(request)].append(request)
    return parts


def _spread(requests: Sequence[Item], count: int) -> Sequence[Item]:
    """At most so many of the requests, at equal distances."""
    if len(requests) <= count:
        return requests
    return [requests[index * len(requests) // count] for index in range(count)]
