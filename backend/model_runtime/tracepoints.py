"""Records of the last requests of a runner: when each arrived, began and ended.

The real library's names are not public, except for the size of the buffer and that nothing is
recorded unless flush_on_waiting_outputs is on. The content of a record, and the way to read it, are
ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from model_runtime.queues import Done


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
