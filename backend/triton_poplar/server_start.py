"""Time that a server's start leaves for the load of a model.

A tritonserver serves nothing until it has tried to load every model of its repository, and whoever
has started it waits for a limited time only. So the loads of a start share a part of that time:
unknown files may take a quarter of what is left. However many models never end to load, one after
the other, each leaves three quarters to the others. Once that part is used up, unknown files are
not tried at all: each model costs the start of its processes, which takes seconds on a busy
machine, and for which the rest of the time is. Such models are loaded after the start. A server
that listens has started, and sets no limit.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass

from popef._tools.sockets import LISTENS, find_owned, iter_inodes
from popef._tools.stalls import read_stat

START_SECONDS = 300
"""Default time limit of a server's start: that of `poplar-triton serve`. Process managers may set
another one for a tritonserver of their own."""
CUT_SHORT = "the server's start leaves it too little time"
"""Words in the error of a model that was not tried, or was cancelled before its own limit, while
the server starts. It may be sound, and has to be loaded again after the start."""
NOT_TRIED = "was not tried"
"""Words in the error of a model that was not tried."""
_USABLE = 0.9
"""Part of the limit that the loads of known files may use. The rest is for the server itself, and
for the last loads, which get the minimum."""
_USABLE_FIRST = 0.6
"""Part of the limit in which unknown files are loaded."""
_SHARE = 1 / 4
"""Part of the time left that the first load of unknown files may take. A load that succeeds in it
is done once more, in the server's process."""
_MIN_SHARE = 1 / 60
"""Minimum time limit of a load, as a part of the start's limit. Unknown files are not tried for
less."""


@dataclass(frozen=True, slots=True)
class ServerStart:
    """The start of a server. `began` is on the clock of time.monotonic. `pid` is the process that
    listens once the start is over; 0 for a server that tells its end itself."""

    began: float = -math.inf
    limit_seconds: float = 0.0
    pid: int = 0

    @classmethod
    def of_process(cls, pid: int, limit_seconds: float) -> ServerStart:
        """Return the start of a server's process, or one that is over if /proc does not show it."""
        with suppress(OSError, ValueError):
            began = read_stat(pid).started / os.sysconf("SC_CLK_TCK")
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
            return cls(time.monotonic() - age, limit_seconds, pid)
        return cls()

    @property
    def is_used_up(self) -> bool:
        """Whether no unknown files are to be tried any more in this start."""
        return _SHARE * self._find_left(_USABLE_FIRST) < self._least and not self._is_over()

    def limit(self, seconds: float) -> float:
        """Return the time limit of a load whose own limit is `seconds`."""
        return self._cut(seconds, self._find_left(_USABLE))

    def limit_first(self, seconds: float) -> float:
        """Return the time limit of a first load of unknown files, whose own limit is `seconds`."""
        return self._cut(seconds, _SHARE * self._find_left(_USABLE_FIRST))

    def describe_cut(self) -> str:
        """Return why a model is not loaded in the start, and what to do."""
        usable = _USABLE_FIRST * self.limit_seconds
        return (
            f"{CUT_SHORT}: unknown files get a quarter of what is left of its first {usable:g} s; "
            "load it again later, as poplar-triton tfserving does, and poplar-triton serve with "
            f"--on-dead-stub reload, or raise the start's limit of {self.limit_seconds:g} s "
            "(--start-seconds of poplar-triton, sim_start_sec of another server)"
        )

    @property
    def _least(self) -> float:
        return _MIN_SHARE * self.limit_seconds

    def _find_left(self, usable: float) -> float:
        """Return how many seconds would be left of the usable part of the start."""
        return usable * self.limit_seconds - self._age()

    def _cut(self, seconds: float, seconds_left: float) -> float:
        """Return the shorter of two limits, of which the second counts during the start only."""
        cut = max(seconds_left, self._least)
        # Most loads have time enough, started or not: to look at all sockets takes up to 20 ms.
        return seconds if seconds <= cut or self._is_over() else cut

    def _is_over(self) -> bool:
        """Return whether the start is over."""
        if self._age() > self.limit_seconds:
            return True
        return bool(self.pid) and find_owned(self.pid, set(iter_inodes(LISTENS)))

    def _age(self) -> float:
        return time.monotonic() - self.began
