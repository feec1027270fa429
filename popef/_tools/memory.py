"""Memory limits of this process: the memory that the machine and its control groups allow and have
left, and functions that lower the limit and return freed memory."""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import time
from contextlib import suppress
from pathlib import Path

from .control_groups import CONTROL_GROUPS, iter_groups, read_limit, read_memory
from .stalls import PROC

MAX_OOM_SCORE = 1000
"""The kernel's OOM_SCORE_ADJ_MAX."""
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_DATA = re.compile(r"^VmData:\s+(\d+) kB$", re.MULTILINE)
_LIMITS = {True: ("memory.limit_in_bytes",), False: ("memory.max", "memory.high")}
"""Files with a control group's memory limits, by whether it is of version 1."""
_RESERVED_SHARE, _MAX_RESERVED_BYTES = 16, 1 << 30
"""Memory that no run takes: a part of what may be used, of at most 1 GiB. The kernel, tritonserver
and other processes allocate meanwhile, and a machine without free memory reads its programs again
and again from the disk."""
_MIN_SPARE_BYTES = 1 << 26
"""Least memory that a run may take: with less, small models fail where they need no new memory."""
_LOOK_SECONDS = 1.0
"""Interval between two reads of the free memory; one takes up to a millisecond."""


def usable_memory_bytes(proc: Path = PROC, groups: Path = CONTROL_GROUPS) -> int:
    """Return the bytes of memory that the machine has, or the smallest limit of the control groups
    around this process if that is less."""
    usable = _read_field(proc / "meminfo", _TOTAL)
    if usable is None:
        usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder, is_old in iter_groups(proc, groups):
        with suppress(ValueError):
            usable = min(usable, read_limit(folder, _LIMITS[is_old]))
    return usable


def spare_memory_bytes(proc: Path = PROC, groups: Path = CONTROL_GROUPS) -> int:
    """Return the bytes of memory that this process may take now: what the machine, each control
    group around the process and the process's own limits have left, less a reserve. Memory of files
    that the kernel can reclaim counts as free. The result is at least 64 MiB."""
    usable = usable_memory_bytes(proc, groups)
    free = _read_field(proc / "meminfo", _AVAILABLE)
    free = usable if free is None else min(usable, free)
    for folder, is_old in iter_groups(proc, groups):
        with suppress(OSError, ValueError, KeyError):
            used_bytes, limit = read_memory(folder, is_old=is_old)
            free = min(free, limit - used_bytes)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        free = min(free, most - _data_bytes(proc))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        free = min(free, most - _mapped_bytes())
    reserved = min(usable // _RESERVED_SHARE, _MAX_RESERVED_BYTES)
    return max(free - reserved, _MIN_SPARE_BYTES)


def _read_field(file: Path, field: re.Pattern[str]) -> int | None:
    with suppress(OSError):
        match = field.search(file.read_text())
        return int(match[1]) << 10 if match else None
    return None


def _data_bytes(proc: Path = PROC) -> int:
    """Return the private memory of this process, as RLIMIT_DATA counts it."""
    return _read_field(proc / "self" / "status", _DATA) or 0


class GrowthLimit:
    """Limits the private memory of this process to what is free: an allocation beyond it fails in
    the run that makes it, before the kernel ends a process.

    It counts all memory, also that of libraries outside of ONNX Runtime's arena. It lowers the soft
    limit RLIMIT_DATA, and is off until `start`.
    """

    def __init__(self) -> None:
        self._most = self._share = 0
        self._next_look = math.inf
        self._soft = resource.RLIM_INFINITY

    def start(self, max_bytes: int, share: int = 1) -> None:
        """Limit the process to `max_bytes` more than it has now, and to one part in `share` of the
        free memory."""
        self.stop()
        self._soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        self._most, self._share = _data_bytes() + max_bytes, share
        self._next_look = 0.0
        self.look()

    def stop(self) -> None:
        """Restore the limit that the process had at `start`."""
        if self._next_look != math.inf:
            self._next_look = math.inf
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (self._soft, hard))

    def look(self) -> None:
        """Adjust the limit to the free memory, at most once a second; call it at intervals, or
        before each run."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        limit = min(self._most, _data_bytes() + spare_memory_bytes() // self._share)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


GROWTH = GrowthLimit()
"""Limit of this process."""


def limit_memory(num_bytes: int) -> None:
    """Limit the private memory of this process and its children; an existing limit is never
    raised."""
    _lower(resource.RLIMIT_DATA, num_bytes)


def limit_addresses(num_bytes: int) -> None:
    """Limit the addresses that this process and its children map beside those that are mapped now;
    an existing limit is never raised.

    This also limits memory that `limit_memory` does not count: page tables, stacks that grow, and
    memory that was made read-only after it was written.
    """
    _lower(resource.RLIMIT_AS, _mapped_bytes() + num_bytes)


def _mapped_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lower(number: int, limit: int) -> None:
    _, most = resource.getrlimit(number)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(number, (limit, limit))


def offer_to_oom_killer(pid: int | str = "self", points: int = MAX_OOM_SCORE) -> None:
    """Have the kernel kill a process earlier when memory runs out; by default before all others."""
    with suppress(OSError, ValueError):  # the process has ended, or the change is not permitted
        file = f"/proc/{pid}/oom_score_adj"
        with open(file, "rb", buffering=0) as old:
            score = min(int(old.read()) + points, MAX_OOM_SCORE)
        with open(file, "wb", buffering=0) as new:
            new.write(str(score).encode())


def return_memory() -> None:
    """Return freed memory to the machine. Preparing a graph leaves some 20 MB behind in every
    instance, which glibc would keep for later allocations."""
    with suppress(AttributeError):  # other C libraries have no malloc_trim, and keep less memory
        ctypes.CDLL(None).malloc_trim(0)
