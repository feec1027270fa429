"""The core that the interpreter's threads of a process share.

Only one of them can be at work at a time, and on several cores they wake each other from one to the next: a
call of few bytes takes a third less of the processor where all are on one. What computes without the
interpreter, ONNX Runtime's threads and long runs, may be on every core.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

STARVED_SHARE, ENOUGH_SHARE = 0.3, 0.7
"""Of a second: threads that waited for their core longer than the one, and had it for less than the other,
share it with others' work."""
_TASKS = Path("/proc/self/task")
_NANOSECONDS = 1e9


class Core:
    """One of the cores that this process may use: the one numbered `number`, counted around and around."""

    def __init__(self, number: int, tasks: Path = _TASKS) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._number = number % len(self._cores)
        self._tasks = tasks
        self._seen = (0.0, 0.0)

    @property
    def core(self) -> int:
        """Which one it is now."""
        return self._cores[self._number]

    def enter(self) -> None:
        """Have the calling thread, and those that it starts, run there and nowhere else."""
        os.sched_setaffinity(0, {self.core})

    def leave(self) -> None:
        """Have the calling thread run anywhere."""
        os.sched_setaffinity(0, self._cores)

    def move_if_starved(self, seconds: float) -> bool:
        """Go to the next core where others kept this one busy for the `seconds` since it was last called;
        whether that was so."""
        ran, waited = self._read_times()
        since_ran, since_waited = (ran - self._seen[0]) / seconds, (waited - self._seen[1]) / seconds
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
        """Those that are there."""
        found = []
        for task in self._tasks.iterdir():
            with suppress(OSError):
                if os.sched_getaffinity(int(task.name)) == {self.core}:
                    found.append(int(task.name))
        return found

    def _read_times(self) -> tuple[float, float]:
        """Seconds for which the threads that are there ran, and for which they could have run and did not."""
        ran = waited = 0
        for thread in self._find_threads():
            with suppress(OSError):
                words = (self._tasks / str(thread) / "schedstat").read_text().split()
                ran, waited = ran + int(words[0]), waited + int(words[1])
        return ran / _NANOSECONDS, waited / _NANOSECONDS
