"""Detection of stalled processes, by means of /proc.

A process that exists may make no progress for ever: it was stopped (SIGSTOP, a debugger, gcore,
py-spy), frozen with its control group, or it waits for a disk that does not answer. Supervisors of
processes use this module to find stalled ones and decide themselves what to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LOOK_SECONDS = 0.2
"""Interval between two checks of a process."""
STALL_SECONDS = 1.0
"""Time after which a stopped or frozen process counts as stalled: Triton's own requests to a stub
end then."""
DISK_STALL_SECONDS = 3.0
"""Time after which a process that waits for a disk counts as stalled; a disk may be slow."""
MIN_LOOKS = 3
"""Minimum number of consecutive checks before a process counts as stalled. After a pause of the
whole machine, all its processes were checked before and after the pause, and none in between."""

STOPPED_STATES = ("T", "t")
"""States of a process that a signal or a debugger stopped."""
_STATE, _PARENT, _MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM, _STARTED = 0, 1, 7, 9, 11, 12, 19
"""Indices of fields in /proc/PID/stat after the program's name (proc_pid_stat(5))."""
_FROZEN_IN = ("get_signal", "do_freezer_trap")
"""Kernel functions in which a process waits that is frozen with its control group (version 2): its
state is S. With version 1 its state is D."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """State of a process at one moment. `started` counts clock ticks since the machine started.
    `work` grows while any of the process's threads computes or is given memory."""

    state: str
    parent: int
    started: int
    work: tuple[int, ...]


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat:
    """Return the state of a process. Raises OSError or ValueError if there is no such process, or
    no longer."""
    # The program's name, in brackets, may contain any character, brackets too.
    words = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(words) <= _STARTED:
        raise ValueError(
            f"/proc/{pid}/stat: expected more than {_STARTED} fields, found {len(words)}"
        )
    work = tuple(int(words[place]) for place in (_MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM))
    return ProcessStat(words[_STATE], int(words[_PARENT]), int(words[_STARTED]), work)


def count_ticks() -> float:
    """Return the clock ticks since the machine was started, as `ProcessStat.started` counts
    them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def find_zombies(parents: Collection[int], proc: Path = PROC) -> list[int]:
    """Return the children of these processes that have ended and are not reaped yet."""
    zombies = []
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):
                stat = read_stat(int(entry.name), proc)
                if stat.state == "Z" and stat.parent in parents:
                    zombies.append(int(entry.name))
    return zombies


@dataclass(slots=True)
class _Pause:
    """A process that made no progress since an earlier check."""

    stat: ProcessStat
    since: float
    looks: int = 1


class StallDetector:
    """Finds stalled processes. Call `find_stalled` repeatedly, LOOK_SECONDS apart."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._pauses: dict[int, _Pause] = {}

    def find_stalled(self, pids: Iterable[int]) -> dict[int, str]:
        """Return the processes of `pids` that make no progress, each with the reason."""
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

    def is_paused(self, pid: int) -> bool:
        """Return whether a process made no progress in the last check; it need not be stalled."""
        return pid in self._pauses

    def _look(self, pid: int) -> tuple[ProcessStat | None, str, float]:
        """Return the state of an inactive process, the reason, and how long it may be inactive;
        None for any other process."""
        with suppress(OSError, ValueError):
            stat = read_stat(pid, self._proc)
            if stat.state in STOPPED_STATES:
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
