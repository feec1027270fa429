"""Fork safety of objects that have threads, locks or sessions of ONNX Runtime.

A forked child has its parent's objects but none of its parent's threads. A lock that one of these
threads held stays locked for ever. `FORKS` notifies the objects that it watches in the child,
before any other code runs there. They drop what belongs to the parent and create it again on the
next use. Their state in the parent does not change.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object with something that only one process can use."""

    def forget_parent(self) -> None:
        """Drop what belongs to the parent. It is called in the child, before anything else runs
        there; it must not take a lock or start anything."""


class Forks:
    """Notifies registered objects in a forked child process."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        """ID of this process; cheaper to read than to ask the kernel for it."""
        self._watched: weakref.WeakSet[Forked] = weakref.WeakSet()
        self._collects_after: set[int] = set()

    def watch(self, each: Forked) -> None:
        """Call the object's `forget_parent` in every child that is forked while the object
        lives."""
        self._watched.add(each)

    def before(self) -> None:
        """Pause the garbage collector: the hooks of other modules, which the child calls before
        `in_child`, allocate enough to start it."""
        if gc.isenabled():
            gc.disable()
            self._collects_after.add(threading.get_ident())

    def in_parent(self) -> None:
        """Let the garbage collector run again, in the parent or after a fork that failed."""
        if threading.get_ident() in self._collects_after:
            self._collects_after.discard(threading.get_ident())
            gc.enable()

    def in_child(self) -> None:
        """Notify all watched objects.

        The garbage collector leaves the parent's objects alone from now on: if it found a session
        of ONNX Runtime among unreachable ones, its destructor would wait for threads that are not
        here, or crash.
        """
        gc.freeze()
        if self._collects_after:  # that of any thread: none of the others is here to say so
            self._collects_after.clear()
            gc.enable()
        self.process_id = os.getpid()
        for watched in list(self._watched):
            watched.forget_parent()


def keep_forever(value: object) -> None:
    """Never destroy `value`, not even when the interpreter exits. The destructors of ONNX Runtime's
    thread pools wait for their threads, which a forked child does not have, so they would never
    return.

    ONNX Runtime also has such a pool in a static object. So the process ends without the handlers
    that native libraries registered before the fork; those of Python's atexit are called. Without
    on_exit, which only glibc has, such a child must end by os._exit, as children of multiprocessing
    do.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc["_exit"], None)
        libc["__cxa_atexit"](libc.fflush, None, None)  # called first: the order is reversed


FORKS = Forks()
"""Fork notifier of this process."""
os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child
)
