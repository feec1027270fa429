"""What a fork does to objects that have threads, locks or sessions of ONNX Runtime.

A forked child has its parent's objects but none of its parent's threads, and a lock that one of these held is
held for ever. Objects that `FORKS` watches are told in the child before any other code runs there. They drop
what belongs to the parent and make it anew when it is next asked for. What they have in the parent stays as
it is.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object with something that only one process can use."""

    def forget_parent(self) -> None:
        """Drop what belongs to the parent; called in the child, where nothing else runs yet. It takes no lock
        and starts nothing."""


class Forks:
    """Tells objects of this process that they were forked."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        """Of this process; cheaper to read than to ask the kernel for it."""
        self._watched: weakref.WeakSet[Forked] = weakref.WeakSet()

    def watch(self, each: Forked) -> None:
        """Call its `forget_parent` in every child that is forked while it lives."""
        self._watched.add(each)

    def in_child(self) -> None:
        """The hook of os.register_at_fork."""
        self.process_id = os.getpid()
        for each in list(self._watched):
            each.forget_parent()


def keep_forever(value: object) -> None:
    """Never destroy `value`, not even at the end of the interpreter: the destructors of ONNX Runtime's thread
    pools wait for their threads, which a forked child does not have, so they would never return.

    ONNX Runtime has one such pool in a static object, too. So the process ends without the handlers that
    native libraries registered before the fork; those of Python's atexit are called. Without on_exit, which
    only glibc has, such a child must end by os._exit, as those of multiprocessing do.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc["_exit"], None)
        libc["__cxa_atexit"](libc.fflush, None, None)  # called first: the order is reversed


FORKS = Forks()
"""Of this process."""
os.register_at_fork(after_in_child=FORKS.in_child)
