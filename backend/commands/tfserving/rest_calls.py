"""Requests of REST on threads: sockets are read and written on the event loop, what takes time is done by a
pool, and is told when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

_T = TypeVar("_T")
THREADS = 64
"""Of a process: requests that are computed at a time. More wait their turn."""


class RestCall:
    """A call over REST, of so many `seconds` from now on (see models.Call)."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._is_given_up = False

    def seconds_left(self) -> float | None:
        """See Call."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def is_wanted(self) -> bool:
        """See Call."""
        return not self._is_given_up and self.seconds_left() != 0

    def when_given_up(self, callback: Callable[[], None]) -> None:
        """See Call."""
        with self._lock:
            if not self._is_given_up:
                self._callbacks.append(callback)
                return
        callback()

    def waiting(self) -> AbstractContextManager[None]:
        """See Call."""
        return nullcontext()

    def give_up(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._is_given_up = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Threads:
    """The threads that compute. `seconds` are what each call has; None: as long as its client waits."""

    def __init__(self, seconds: float | None, count: int = THREADS) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(count, "rest")

    async def run(self, work: Callable[[RestCall], _T]) -> _T:
        """What `work` returns or raises. asyncio.TimeoutError when its time is over; who cancels this, gives
        the call up."""
        call = RestCall(self._seconds)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, call)
        try:
            return await within(future, self._seconds)
        finally:
            call.give_up()

    def close(self) -> None:
        """Start nothing any more; what was given up ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def within(work: Awaitable[_T], seconds: float | None) -> _T:
    """asyncio.wait_for, which before Python 3.12 loses a cancellation that comes in the moment in which the
    work is done."""
    future = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return future.result()
    finally:
        future.cancel()
