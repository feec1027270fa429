"""Ends a process when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal

_DIE_WITH_PARENT = 1
"""Value of PR_SET_PDEATHSIG of prctl(2)."""
_PRCTL = ctypes.CDLL(None).prctl
"""Function prctl, loaded before any fork: the child of a process with threads must not load
libraries."""


def die_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent dies, and return whether the parent is
    still alive.

    The process is also killed when only the *thread* that started it ends, so start it in the main
    thread.
    """
    _PRCTL(_DIE_WITH_PARENT, signal.SIGKILL)
    return os.getppid() == parent
