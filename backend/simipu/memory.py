"""The memory that this process may use, as far as the machine and its container say, and the ways to allow it
less, and to give back what it has done with."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the container: control groups of version 2 and 1."""


def usable_memory_bytes() -> int:
    """Bytes of memory that the machine has, or its container where that has less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(file.read_text()))
    return found


def limit_memory(num_bytes: int) -> None:
    """Have this process, and those it starts, take no more memory of their own; no limit is ever raised."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = num_bytes if most == resource.RLIM_INFINITY else min(num_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def return_memory() -> None:
    """Give the machine back what was allocated and freed: making a graph ready leaves some 20 MB behind in
    every instance, which glibc would keep for what may come."""
    with suppress(AttributeError):  # other libraries have no such function, and keep less
        ctypes.CDLL(None).malloc_trim(0)
