"""Time that a server's start leaves for the load of a model.

A tritonserver serves nothing until it has tried to load every model of its repository, and whoever
has started it waits for a limited time only. So the loads of a start share that time: unknown files
may take a third of what is left. However many models never end to load, one after the other, each
leaves two thirds to the others. A server that listens has started, and sets no limit.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass

from popef._tools.progress import read_stat
from popef._tools.sockets import LISTENS, find_owned, iter_inodes

START_SECONDS = 300
"""Default time limit of a server's start: that of `poplar-triton serve`, and what process managers
may be told for a tritonserver of their own."""
_USABLE = 0.9
"""Part of the limit that loads may use. The rest is for the server itself, and for the last loads,
which get the minimum."""
_SHARE = 1 / 3
"""Part of the time left that the first load of unknown files may take. A load that succeeds in it
is done once more, in the server's process."""
_MIN_SHARE = 1 / 150
"""Minimum time limit of a load, as a part of the start's limit."""


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

    def limit(self, seconds: float) -> float:
        """Return the time limit of a load that may take `seconds` of its own."""
        left = self._find_left()
        return seconds if left is None else min(seconds, max(left, self._least))

    def limit_first(self, seconds: float) -> float:
        """Return the time limit of a first load, of unknown files, that may take `seconds` of its
        own."""
        left = self._find_left()
        return seconds if left is None else min(seconds, max(_SHARE * left, self._least))

    @property
    def _least(self) -> float:
        return _MIN_SHARE * self.limit_seconds

    def _find_left(self) -> float | None:
        """Return how many seconds of the start are left; None if it is over."""
        age = time.monotonic() - self.began
        if age > self.limit_seconds:
            return None
        if self.pid and find_owned(self.pid, set(iter_inodes(LISTENS))):
            return None
        return _USABLE * self.limit_seconds - age
