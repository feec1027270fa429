"""What became of the last requests of a runner: when each came, began and ended. The real library's names for
this are not public, but for the size of the buffer and that nothing is recorded unless
flush_on_waiting_outputs is on; what a record holds, and how it is read, is ours."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Done = Callable[[Exception | None], None]


@dataclass(slots=True)
class RequestTracepoint:
    """One request, its times on the clock of time.perf_counter_ns; 0 for what did not happen."""

    rows: int
    enqueued_ns: int
    started_ns: int = 0
    """Its first row was read for a run."""
    finished_ns: int = 0
    """Its last row was written, or it failed."""
    error: str = ""
    """What went wrong, if something did."""

    def start(self) -> None:
        """The first row is read; only the first call counts, for a run may be repeated."""
        self.started_ns = self.started_ns or time.perf_counter_ns()


class RequestTracepoints:
    """The last `size` requests that ended (0: all of them), in the order of their ends."""

    def __init__(self, size: int) -> None:
        self._ended: deque[RequestTracepoint] = deque(maxlen=size or None)

    def watch(self, rows: int, done: Done) -> tuple[Callable[[], None], Done]:
        """A request comes now: what to call when its first row is read, and instead of `done`."""
        point = RequestTracepoint(rows, time.perf_counter_ns())

        def close(error: Exception | None) -> None:
            point.finished_ns = time.perf_counter_ns()
            point.error = "" if error is None else str(error)
            self._ended.append(point)
            done(error)

        return point.start, close

    def read(self) -> list[RequestTracepoint]:
        """Those there are, the oldest first."""
        return list(self._ended.copy())
