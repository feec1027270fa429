"""Whether a process makes progress, as /proc tells it.

A process that exists may do nothing for ever: it was stopped (SIGSTOP, a debugger, gcore, py-spy), frozen
with its control group, or it waits for a disk that does not answer. Who supervises a process asks here. What
to do about a stalled one is decided there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LOOK_SECONDS = 0.2
"""Between two looks at a process."""
STALL_SECONDS = 1.0
"""A process that is stopped or frozen for so long is stalled: Triton's own requests to a stub end then."""
DISK_STALL_SECONDS = 3.0
"""The same for one that waits for a disk, which may be slow."""
MIN_LOOKS = 3
"""A process is stalled only after so many looks in a row: after a pause of the whole machine all of its
processes were seen before and after it, and none in between."""

_STATE, _PARENT, _MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM, _STARTED = 0, 1, 7, 9, 11, 12, 19
"""Places among the fields of /proc/PID/stat after the program's name (proc_pid_stat(5))."""
_FROZEN_IN = ("get_signal", "do_freezer_trap")
"""Where the kernel has a process wait that is frozen with its control group (version 2): its state is S. Of
version 1 it is D."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process at one moment. `started` counts clock ticks since the machine was started; `work` grows while
    any of its threads computes or is given memory."""

    state: str
    parent: int
    started: int
    work: tuple[int, ...]


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat:
    """Raises OSError or ValueError where there is no such process, or is none any more."""
    # The program's name, in brackets, may hold anything, brackets too.
    words = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(words) <= _STARTED:
        raise ValueError(f"/proc/{pid}/stat: expected more than {_STARTED} fields, found {len(words)}")
    work = tuple(int(words[place]) for place in (_MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM))
    return ProcessStat(words[_STATE], int(words[_PARENT]), int(words[_STARTED]), work)


@dataclass(slots=True)
class _Pause:
    """A process that was seen to do nothing."""

    stat: ProcessStat
    since: float
    looks: int = 1


class ProgressWatch:
    """Sees which processes stall. It is to be asked again and again, LOOK_SECONDS apart."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._pauses: dict[int, _Pause] = {}

    def find_stalled(self, pids: Iterable[int]) -> dict[int, str]:
        """Of these processes those that make no progress, and why not."""
        now = self._clock()
        stalled, pauses = {}, {}
        for pid in pids:
            stat, why, limit_seconds = self._look(pid)
            if stat is None:
                continue
            pause = self._pauses.get(pid)
            if pause is None or pause.stat != stat:
                pause = _Pause(stat, now)
            else:
                pause.looks += 1
            pauses[pid] = pause
            if pause.looks >= MIN_LOOKS and now - pause.since >= limit_seconds:
                stalled[pid] = why
        self._pauses = pauses
        return stalled

    def _look(self, pid: int) -> tuple[ProcessStat | None, str, float]:
        """A process that does nothing now, why, and how long it may; None for any other."""
        with suppress(OSError, ValueError):
            stat = read_stat(pid, self._proc)
            if stat.state in ("T", "t"):
                return stat, "it is stopped", STALL_SECONDS
            if stat.state == "D":
                return stat, "it waits for a disk", DISK_STALL_SECONDS
            if stat.state == "S" and self._is_frozen(pid):
                return stat, "its control group is frozen", STALL_SECONDS
        return None, "", 0.0

    def _is_frozen(self, pid: int) -> bool:
        with suppress(OSError):
            return (self._proc / str(pid) / "wchan").read_text(errors="replace") in _FROZEN_IN
        return False
