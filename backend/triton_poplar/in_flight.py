"""Requests in flight in one instance, in asynchronous mode: when all that may come are there, an
incomplete batch need not wait for more.

Triton does not tell a backend which clients it has. But a client that waits for its answer sends
nothing, so as many requests as were in flight at once lately are all of them, as a rule. Requests
that wait in Triton while `execute` computes are not seen; therefore a call that could be computed
at once is now and then handed over all the same, and more requests may come while it waits.
"""

from __future__ import annotations

import threading
from collections import deque

NUM_PEAKS = 8
"""Number of runs after which fewer requests in flight are believed."""
PROBE_CALLS = 32
"""Number of calls that could be computed at once, of which one is handed over."""


class InFlight:
    """Counts requests from their arrival to their answer. Several threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_requests = self._num_waiting = self._peak = self._num_calls = 0
        self._num_probed = 0
        """Number of requests that wait although there seem to be no others."""
        self._peaks: deque[int] = deque(maxlen=NUM_PEAKS)
        """Largest numbers of requests in flight at once, between the ends of runs."""

    def arrive(self) -> None:
        """Count a request that waits for its run."""
        with self._lock:
            self._num_requests += 1
            self._num_waiting += 1
            self._peak = max(self._peak, self._num_requests)

    def start(self) -> None:
        """Note that a request waits no longer."""
        with self._lock:
            self._num_waiting -= 1

    def answer(self) -> None:
        """Note that a request has its answer."""
        with self._lock:
            self._num_requests -= 1

    def end_run(self, num_requests: int = 0) -> None:
        """Note the end of a run; of `num_requests` if they were not counted before."""
        with self._lock:
            if peak := max(self._peak, num_requests):
                self._peaks.append(peak)
            self._peak, self._num_probed = self._num_requests, 0

    @property
    def are_all_waiting(self) -> bool:
        """Whether all requests wait that may come."""
        with self._lock:
            return self._num_waiting > self._num_probed and self._are_all(self._num_waiting)

    def may_compute(self, num_requests: int) -> bool:
        """Return whether to compute a call of so many requests at once, since no others are to be
        expected."""
        with self._lock:
            if not self._are_all(num_requests):
                return False
            self._num_calls += 1
            if self._num_calls % PROBE_CALLS:
                return True
            self._num_probed = num_requests
            return False

    def _are_all(self, num_requests: int) -> bool:
        peaks = self._peaks
        is_known = len(peaks) == NUM_PEAKS
        return is_known and num_requests >= self._peak and num_requests >= max(peaks)
