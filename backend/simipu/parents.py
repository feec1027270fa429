"""A process that does not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_PRCTL = ctypes.CDLL(None).prctl
"""Loaded before any fork: the child of a process with threads must load nothing."""


def die_with(parent: int) -> bool:
    """Have this process killed when its parent dies; whether that is alive still.

    It is killed as well when only the *thread* ends that started it, so start it in the main thread.
    """
    _PRCTL(_DIE_WITH_PARENT, signal.SIGKILL)
    return os.getppid() == parent
