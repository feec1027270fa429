"""The core that the interpreter's threads of a process share.

Only one of them can run at a time, and on several cores they wake each other from one core to the
next. A call of few bytes takes a third less processor time if all are on one core. Work outside the
interpreter, such as ONNX Runtime's threads and long runs, may use every core.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

STARVED_SHARE, ENOUGH_SHARE = 0.3, 0.7
"""Shares of a second. Threads that waited for their core longer than the first share, and ran on it
for less than the second, share it with other work."""
_TASKS = Path("/proc/self/task")
_NANOSECONDS = 1e9


class Core:
    """One of the cores that this process may use: core `number`, modulo their number."""

    def __init__(self, number: int, tasks: Path = _TASKS) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._number = number % len(self._cores)
        self._tasks = tasks
        self._seen = (0.0, 0.0)

    @property
    def core(self) -> int:
        """Number of the current core."""
        return self._cores[self._number]

    def enter(self) -> None:
        """Bind the calling thread, and those that it starts, to the core."""
        os.sched_setaffinity(0, {self.core})

    def leave(self) -> None:
        """Allow the calling thread to run on any core."""
        os.sched_setaffinity(0, self._cores)

    def move_if_starved(self, seconds: float) -> bool:
        """Move to the next core if other work kept this one busy for the `seconds` since the last
        call. Return whether it moved."""
        ran, waited = self._read_times()
        since_ran, since_waited = (
            (ran - self._seen[0]) / seconds,
            (waited - self._seen[1]) / seconds,
        )
        self._seen = ran, waited
        if len(self._cores) == 1 or since_waited < STARVED_SHARE or since_ran > ENOUGH_SHARE:
            return False
        threads = self._find_threads()
        self._number = (self._number + 1) % len(self._cores)
        for thread in threads:
            with suppress(OSError):  # it may have ended
                os.sched_setaffinity(thread, {self.core})
        return True

    def _find_threads(self) -> list[int]:
        """Return the threads of this process that are bound to the core."""
        found = []
        for task in self._tasks.iterdir():
            with suppress(OSError):
                if os.sched_getaffinity(int(task.name)) == {self.core}:
                    found.append(int(task.name))
        return found

    def _read_times(self) -> tuple[float, float]:
        """Return the seconds for which the existing threads ran, and for which they were ready but
        did not run."""
        ran = waited = 0
        for thread in self._find_threads():
            with suppress(OSError):
                words = (self._tasks / str(thread) / "schedstat").read_text().split()
                ran, waited = ran + int(words[0]), waited + int(words[1])
        return ran / _NANOSECONDS, waited / _NANOSECONDS
