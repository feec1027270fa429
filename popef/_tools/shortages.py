"""Limits of the system, as errors tell them: which limit it was, and what to do. The texts of such
errors come from many programs and libraries, which name neither the limit nor the remedy.
"""

from __future__ import annotations

import re
import resource

_MEMORY = re.compile("bad_alloc|Cannot allocate memory|MemoryError|failed to map segment")
_THREADS = re.compile("Resource temporarily unavailable|can't start new thread")
_FILES = re.compile("Too many open files")
_FILE_SIZE = re.compile("File too large")
_KIB, _MIB = 1 << 10, 1 << 20


def name_limit(text: str) -> str:
    """Return which limit of the system the text of an error is about, and what to do about it; ""
    for none."""
    if _MEMORY.search(text):
        return _name_memory()
    if _THREADS.search(text):
        addresses = _read(resource.RLIMIT_AS, _MIB)
        more = f", or that of addresses, {addresses} MiB (ulimit -v)" if addresses else ""
        limits = f"pids.max of the control group, ulimit -u{more}"
        return f"no more threads and processes may start: raise the limit ({limits})"
    if _FILES.search(text):
        number = _read(resource.RLIMIT_NOFILE, 1)
        limit = f"the limit is {number} files: raise it (ulimit -n)"
        return limit if number else "no more files may be opened"
    if _FILE_SIZE.search(text):
        number = _read(resource.RLIMIT_FSIZE, _KIB)
        return f"the limit is {number} KiB: raise it (ulimit -f)" if number else ""
    return ""


def describe_last_line(error: Exception) -> str:
    """Return the type of an error and the last line of its text, which may be a page."""
    last = str(error).strip().rpartition("\n")[2]
    return ": ".join(filter(None, (type(error).__name__, last)))


def _name_memory() -> str:
    if number := _read(resource.RLIMIT_AS, _MIB):
        return f"the limit of addresses is {number} MiB: raise it (ulimit -v)"
    return "the system has no more memory: add some, raise the limit (memory.max), or do less"


def _read(number: int, unit: int) -> str:
    """Return the limit with a number, in units; "" if there is none."""
    soft, _ = resource.getrlimit(number)
    return "" if soft == resource.RLIM_INFINITY else str(soft // unit)
