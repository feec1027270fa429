"""Ends runs that exceed their time limit, and runs still in ONNX Runtime when the interpreter
exits.

One thread watches every run of the process, and does the work that finalizers must leave to a
thread that may wait. It is a daemon thread that is joined at exit: it has ended when the
interpreter shuts down. A process that skips the exit handlers (a fork of multiprocessing) never
waits for it. Nothing here takes a lock that a finalizer or a run could find taken: every step is
one operation on a dict or queue.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

# Its hook, which keeps sessions of ONNX Runtime from being destroyed in a forked child, comes
# before ours: an errand that `reset` drops may hold the last reference to one.
import simipu.processes.forks  # noqa: F401


class Ending(Protocol):
    """Object that ends a run when `terminate` is set: onnxruntime.RunOptions. A later run has
    the same object only if no check came meanwhile, so a late check cannot end another run."""

    terminate: bool


class EndedBy:
    """An `Ending` for what has no such attribute: setting it calls `end`."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._ended = False

    @property
    def terminate(self) -> bool:
        """Return whether the run was ended."""
        return self._ended

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._ended = value
        if value:
            self._end()


class Watchdog:
    """Watches the runs of one process. `begin` and `end` cost a run under a microsecond. They wake
    no thread, except for the first run in each period as long as the limit."""

    num_looks = 0
    """Number of times that runs were checked. If it is the same after a run as it was before, the
    run is not terminated later, and its `Ending` can be used again."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state. A fork has neither the thread nor the runs of its parent, but
        a thread of the parent may have held a lock."""
        self._runs: dict[Ending, float] = {}
        self._errands: SimpleQueue[float | Callable[[], object] | None] = SimpleQueue()
        self._next_look = math.inf
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._closed_by: int | None = None
        self.num_looks += 1

    def begin(self, run: Ending, limit_seconds: float) -> None:
        """Register a run that starts now. `terminate` is set if the run has not ended after the
        limit. A call of `end` must follow.

        After `close`, runs of the closing thread are not watched. Any other thread ends here,
        silently, by SystemExit.
        """
        deadline = time.monotonic() + limit_seconds
        # Store the deadline first, then compare: a check that misses this run sets the time of the
        # next check only afterwards.
        self._runs[run] = deadline
        if self._closed_by is not None:
            self.end(run)
        elif deadline < self._next_look:
            self.start()
            self._errands.put(deadline)

    def end(self, run: Ending) -> None:
        """Unregister a run that is over. Raises SystemExit if the exit of the interpreter ended the
        run."""
        self._runs.pop(run, None)
        if self._closed_by is not None and self._closed_by != threading.get_ident():
            # This is a daemon thread, which Python freezes soon; freezing it on its way out of ONNX
            # Runtime would abort the process.
            raise SystemExit

    def end_soon(self, find_run: Callable[[], Ending | None]) -> None:
        """Have the thread end the run that `find_run` returns, if any. A run that begins after
        `find_run` was called has another `Ending`, and goes on."""
        self.soon(partial(self._end_found, find_run))

    def _end_found(self, find_run: Callable[[], Ending | None]) -> None:
        self.num_looks += 1
        run = find_run()
        if run is not None:
            run.terminate = True

    def soon(self, errand: Callable[[], object]) -> None:
        """Have the thread call `errand`, which may wait a little; `start` must have been called in
        this process.

        A finalizer may do no more than this: it takes no lock, so it is safe wherever the garbage
        collector runs.
        """
        self._errands.put(errand)

    def start(self) -> None:
        """Start the thread if it is not running. When the interpreter exits and no thread can
        start, do nothing."""
        with self._starting:
            if self._thread is not None or self._closed_by is not None:
                return
            # Assign the thread before it starts: the garbage collector may call a finalizer that
            # runs a model, which calls this method in between.
            thread = self._thread = threading.Thread(
                target=self._watch, name="simipu watchdog", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
            except KeyboardInterrupt:
                # Most likely the interrupt came while start waited for the thread to run; then it
                # runs. Else the next run starts another thread.
                self._thread = thread if thread.ident is not None else None
                raise

    def close(self) -> None:
        """End every run, and wait until no thread is in one; then do the remaining errands and end
        the thread."""
        self._closed_by = threading.get_ident()
        self.num_looks += 1
        while self._runs:
            for run in self._runs.copy():
                run.terminate = True
            time.sleep(0.001)
        if self._thread is not None:
            self._errands.put(None)
            # A thread whose start was interrupted cannot be joined; it ends too, or is frozen while
            # it sleeps.
            with suppress(RuntimeError):
                self._thread.join()

    def _watch(self) -> None:
        while True:
            # The longest wait that the platform supports is some centuries; limits may be longer.
            seconds = min(max(0.0, self._next_look - time.monotonic()), threading.TIMEOUT_MAX)
            with suppress(Empty):
                errand = self._errands.get(timeout=seconds)
                if errand is None:
                    return
                if isinstance(errand, float):
                    # Keep the time even if its run is over: later runs then need not wake this
                    # thread before it.
                    self._next_look = min(self._next_look, errand)
                else:
                    errand()
                errand = None  # do not keep a finished errand alive
            if self._next_look <= time.monotonic():
                self._look()

    def _look(self) -> None:
        """End the runs whose time is up, and set the time of the next check."""
        self._next_look = math.inf
        self.num_looks += 1
        now = time.monotonic()
        deadlines = self._runs.copy()
        for run, deadline in deadlines.items():
            if deadline <= now:
                run.terminate = True
        self._next_look = min(
            (deadline for deadline in deadlines.values() if deadline > now), default=math.inf
        )


WATCHDOG = Watchdog()
"""Watchdog of this process."""

atexit.register(WATCHDOG.close)
os.register_at_fork(after_in_child=WATCHDOG.reset)
