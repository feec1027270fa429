"""Threads for calls, few of which run at a time, and the core that they share.

Busy Python threads wait for each other and wake each other in vain: with 128 of them a call takes
some 70 % more processor time than with 4. But threads that wait for a run, or for a Triton, cost
nothing. There must be as many of those as there are requests to share a run.

Only one thread of the interpreter can run at a time, and on several cores they wake each other from
one core to the next. A call of few bytes takes a third less processor time if all are on one core.
Work outside the interpreter, such as ONNX Runtime's threads and long runs, may use every core.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STARVED_SHARE, ENOUGH_SHARE = 0.3, 0.7
"""Shares of a second. Threads that waited for their core longer than the first share, and ran on it
for less than the second, share it with other work."""
_TASKS = Path("/proc/self/task")
_NANOSECONDS = 1e9


class Core:
    """One of the cores that this process may use: core `number`, modulo their number."""

    def __init__(self, number: int, tasks: Path = _TASKS) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._number = number % len(self._cores)
        self._tasks = tasks
        self._seen = (0.0, 0.0)

    @property
    def core(self) -> int:
        """Number of the current core."""
        return self._cores[self._number]

    def enter(self) -> None:
        """Bind the calling thread, and those that it starts, to the core."""
        os.sched_setaffinity(0, {self.core})

    def leave(self) -> None:
        """Allow the calling thread to run on any core."""
        os.sched_setaffinity(0, self._cores)

    def move_if_starved(self, seconds: float) -> bool:
        """Move to the next core if other work kept this one busy for the `seconds` since the last
        call. Return whether it moved."""
        ran, waited = self._read_times()
        since_ran, since_waited = (
            (ran - self._seen[0]) / seconds,
            (waited - self._seen[1]) / seconds,
        )
        self._seen = ran, waited
        if len(self._cores) == 1 or since_waited < STARVED_SHARE or since_ran > ENOUGH_SHARE:
            return False
        threads = self._find_threads()
        self._number = (self._number + 1) % len(self._cores)
        for thread in threads:
            with suppress(OSError):  # it may have ended
                os.sched_setaffinity(thread, {self.core})
        return True

    def _find_threads(self) -> list[int]:
        """Return the threads of this process that are bound to the core."""
        threads = []
        for task in self._tasks.iterdir():
            with suppress(OSError):
                if os.sched_getaffinity(int(task.name)) == {self.core}:
                    threads.append(int(task.name))
        return threads

    def _read_times(self) -> tuple[float, float]:
        """Return the seconds for which the existing threads ran, and for which they were ready but
        did not run."""
        ran = waited = 0
        for thread in self._find_threads():
            with suppress(OSError):
                words = (self._tasks / str(thread) / "schedstat").read_text().split()
                ran, waited = ran + int(words[0]), waited + int(words[1])
        return ran / _NANOSECONDS, waited / _NANOSECONDS


AT_WORK = 6
"""Number of threads that work at the same time; see above for the cost of more."""
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

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"the threads {self._name!r} were shut down")
            self._tasks.put((future, call, arguments, keywords))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
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
        """End the wait that `begin_wait` began: the thread counts as working again."""
        with self._lock:
            self._surplus += 1

    def begin_wait(self) -> None:
        """Count the calling thread as waiting, and let another one work in its place."""
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
            future, call, arguments, keywords = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*arguments, **keywords))
                except BaseException as error:  # noqa: BLE001  the future raises it
                    future.set_exception(error)
            del task, future, call, arguments, keywords  # keep nothing of a finished request

    def _park(self) -> None:
        with self._lock:
            if self._surplus <= 0 or self._is_shut_down:
                return
            self._surplus -= 1
            self._num_parked += 1
        self._parked.acquire()
