"""Runs REST requests on threads.

The event loop reads and writes sockets. Work that takes time runs on threads, and is notified when
its client no longer waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from poplar_triton.tfserving.cores import Core
from poplar_triton.tfserving.threads import Threads

_T = TypeVar("_T")


class RestCall:
    """Call over REST that lasts `seconds` from now on (see models.Call)."""

    def __init__(self, seconds: float | None, threads: Threads) -> None:
        self.waiting = threads.waiting
        """See Call."""
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

    def give_up(self) -> None:
        """Record that the client no longer waits."""
        with self._lock:
            self._is_given_up = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Calls:
    """Calls of a server. `seconds` is the timeout of each; None means as long as its client
    waits."""

    def __init__(self, seconds: float | None, core: Core | None = None) -> None:
        self._seconds = seconds
        self._threads = Threads("REST", core)

    async def run(self, work: Callable[[RestCall], _T]) -> _T:
        """Return or raise the result of `work`. Raises asyncio.TimeoutError when its time is over.
        Cancelling this gives the call up."""
        call = RestCall(self._seconds, self._threads)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, call)
        try:
            return await within(future, self._seconds)
        finally:
            call.give_up()
            del future  # its error refers to this frame; the cycle would keep the request

    def close(self) -> None:
        """Accept no more calls; cancelled ones end by themselves."""
        self._threads.shutdown(wait=False)


async def within(work: Awaitable[_T], seconds: float | None) -> _T:
    """Replace asyncio.wait_for, which before Python 3.12 loses a cancellation that arrives at the
    moment when the work is done."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.wait({future}, timeout=seconds)
        if not future.done():
            raise asyncio.TimeoutError
        return future.result()
    finally:
        future.cancel()
        del future, work
