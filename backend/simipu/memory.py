"""The memory that this process may use, as far as the machine and its container say, and the way to allow it
less."""

from __future__ import annotations

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
