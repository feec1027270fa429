"""Ends runs: those that take too long, and those that the interpreter's end would find in ONNX Runtime.

One thread watches every run of the process, and does what finalizers must leave to somebody who may wait. It
is a daemon that is joined at exit: the interpreter never finds it alive, and a process that skips that (a
fork of multiprocessing) never waits for it. Nothing here takes a lock that a finalizer or a run could find
taken: every step is one operation on a dict or queue.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol


class Ending(Protocol):
    """What ends a run once it is set: onnxruntime.RunOptions. One object per run: a late look ends no
    other."""

    terminate: bool


class Watchdog:
    """Watches the runs of one process. `begin` and `end` cost a run under a microsecond and wake nobody, but
    for the first run in each length of the limit."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a fork has neither the thread nor the runs of its parent, but might have a lock that a
        thread held."""
        self._runs: dict[Ending, float] = {}
        self._errands: SimpleQueue[float | Callable[[], object] | None] = SimpleQueue()
        self._next_look = math.inf
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._closed_by: int | None = None

    def begin(self, run: Ending, limit_seconds: float) -> None:
        """A run starts now; `terminate` is set if it has not ended after the limit. `end` must follow.

        After `close` the closing thread's runs go unwatched; any other thread ends here, silently, by
        SystemExit.
        """
        deadline = time.monotonic() + limit_seconds
        # First noted, then compared: a look that misses this run sets the time of the next one only
        # afterwards.
        self._runs[run] = deadline
        if self._closed_by is not None:
            self.end(run)
        elif deadline < self._next_look:
            self.start()
            self._errands.put(deadline)

    def end(self, run: Ending) -> None:
        """The run is over. Raises SystemExit where the interpreter's end has come, which ended it."""
        self._runs.pop(run, None)
        if self._closed_by not in (None, threading.get_ident()):
            # A daemon thread, which Python freezes in a moment; on its way out of ONNX Runtime that would
            # abort the process.
            raise SystemExit

    def soon(self, errand: Callable[[], object]) -> None:
        """Have the thread call `errand`, which may wait a little; `start` must have been called in this
        process.

        All that a finalizer may do: it takes no lock, at whatever point of whatever thread the garbage
        collector comes by.
        """
        self._errands.put(errand)

    def start(self) -> None:
        """Have the thread there; at the interpreter's end, when none can start, do without."""
        with self._starting:
            if self._thread is not None or self._closed_by is not None:
                return
            # Known before it starts: the garbage collector may have a finalizer run a model, which comes
            # here, in between.
            thread = self._thread = threading.Thread(target=self._watch, name="simipu watchdog", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
            except KeyboardInterrupt:
                # While start waited for the thread to run, most likely: then it does. Else the next run
                # starts another.
                self._thread = thread if thread.ident is not None else None
                raise

    def close(self) -> None:
        """End every run, and wait until no thread is in one; then end the thread, its errands done."""
        self._closed_by = threading.get_ident()
        while self._runs:
            for run in self._runs.copy():
                run.terminate = True
            time.sleep(0.001)
        if self._thread is not None:
            self._errands.put(None)
            # One whose start was interrupted may not be joined; it ends too, or is frozen while it sleeps.
            with suppress(RuntimeError):
                self._thread.join()

    def _watch(self) -> None:
        while True:
            # The longest wait that the platform takes is some centuries; limits may be longer.
            seconds = min(max(0.0, self._next_look - time.monotonic()), threading.TIMEOUT_MAX)
            with suppress(Empty):
                errand = self._errands.get(timeout=seconds)
                if errand is None:
                    return
                if isinstance(errand, float):
                    # Kept though its run may be over: runs that follow it need not wake this thread before.
                    self._next_look = min(self._next_look, errand)
                else:
                    errand()
                errand = None  # nor keep alive what it ended
            if self._next_look <= time.monotonic():
                self._look()

    def _look(self) -> None:
        """End the runs whose time is up, and see when the next one's is."""
        self._next_look = math.inf
        now = time.monotonic()
        deadlines = self._runs.copy()
        for run, deadline in deadlines.items():
            if deadline <= now:
                run.terminate = True
        self._next_look = min(
            (deadline for deadline in deadlines.values() if deadline > now), default=math.inf
        )


WATCHDOG = Watchdog()
"""The process's."""

atexit.register(WATCHDOG.close)
os.register_at_fork(after_in_child=WATCHDOG.reset)
