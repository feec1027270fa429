"""Threads for calls, few of which run at a time.

Busy Python threads wait for each other and wake each other in vain: with 128 of them a call takes
some 70 % more processor time than with 4. But threads that wait for a run, or for a Triton, cost
nothing. There must be as many of those as there are requests to share a run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

from poplar_triton.tfserving.cores import Core

AT_WORK = 6
MAX_THREADS = 256
"""Maximum number of threads, including those that wait. Further calls wait in the queue."""

_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Threads(Executor):
    """Runs calls on threads: AT_WORK of them, and one more for each that is `waiting`, up to
    MAX_THREADS. None ends before `shutdown`. Working threads run on `core`; None means any core."""

    def __init__(self, name: str, core: Core | None = None) -> None:
        self._name = name
        self._core = core
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._parked = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._num_parked = 0
        self._surplus = 0
        """Number of threads that must park after their current work."""
        self._is_shut_down = False
        self._threads = [self._start() for _ in range(AT_WORK)]

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """See concurrent.futures.Executor."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"the threads {self._name!r} were shut down")
            self._tasks.put((future, call, given, named))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See concurrent.futures.Executor."""
        with suppress(queue.Empty):
            while cancel_futures:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        with self._lock:
            self._is_shut_down = True
            for _ in range(self._num_parked):
                self._parked.release()
            self._num_parked = 0
        self._tasks.put(None)
        # Waiting calls may have started others meanwhile; this loop finds them too.
        for thread in self._threads if wait else ():
            thread.join()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait that takes no time of this process. Another call may run meanwhile, and this
        thread may use any core."""
        self.begin_wait()
        if self._core is not None:
            self._core.leave()
        try:
            yield
        finally:
            if self._core is not None:
                self._core.enter()
            self.end_wait()

    def end_wait(self) -> None:
        """Let a thread that waited since `begin_wait` work again."""
        with self._lock:
            self._surplus += 1

    def begin_wait(self) -> None:
        """Let another thread work instead of one that waits."""
        with self._lock:
            if self._surplus:
                self._surplus -= 1
            elif self._num_parked:
                self._num_parked -= 1
                self._parked.release()
            elif len(self._threads) < MAX_THREADS:
                self._threads.append(self._start())
            else:
                self._surplus -= 1  # one that returns continues

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        if self._core is not None:
            self._core.enter()
        while True:
            if self._surplus > 0:
                self._park()
            task = self._tasks.get()
            if task is None:
                self._tasks.put(None)  # for the others
                return
            future, call, given, named = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*given, **named))
                except BaseException as error:  # noqa: BLE001  it is whoever waits for it who is to know
                    future.set_exception(error)
            del task, future, call, given, named  # keep nothing of a finished request

    def _park(self) -> None:
        with self._lock:
            if self._surplus <= 0 or self._is_shut_down:
                return
            self._surplus -= 1
            self._num_parked += 1
        self._parked.acquire()
