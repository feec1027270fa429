"""Memory limits of this process: the memory that the machine and its container allow, and functions
that lower the limit and return freed memory."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the container's memory limit: control groups of version 2 and 1."""
MAX_OOM_SCORE = 1000
"""The kernel's OOM_SCORE_ADJ_MAX."""


def usable_memory_bytes() -> int:
    """Return the bytes of memory that the machine has, or its container if that has less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(file.read_text()))
    return found


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
    with open("/proc/self/statm", "rb", buffering=0) as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _lower(resource.RLIMIT_AS, mapped + num_bytes)


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
