"""Requests that have begun and are incomplete: how many there may be, and for how long.

Above a limit the oldest request of the client address with the most requests is dropped. So a
client that floods a server loses requests, and others do not.

Over gRPC each call gets a thread when it is opened, and the thread waits for the request. Most
requests are there at once. A thread whose request does not arrive after a moment counts as waiting,
so that another takes its place.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from poplar_triton.tfserving.threads import AT_WORK, Threads

MAX_CALLS = 128
"""Maximum number of unfinished calls over gRPC: half of the threads. The others are for complete
requests."""
MAX_SECONDS = 60.0
"""Maximum time for a request to arrive completely, over either protocol."""
_MANY = 2 * AT_WORK
"""Number of calls above which a new one counts as waiting at once."""
_LOOK_SECONDS = 0.05
_MOMENT_SECONDS = 0.1
"""Time after which a call counts as waiting."""
_Item = TypeVar("_Item", bound=Hashable)


class Unfinished(Generic[_Item]):
    """Up to `limit` unfinished requests by client address. One thread at a time may use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._by_address: dict[str, dict[_Item, None]] = {}  # the oldest first

    def add(self, address: str, item: _Item) -> _Item | None:
        """Add a request. Return the request to drop for it, which is removed from here, or None."""
        self._by_address.setdefault(address, {})[item] = None
        self._count += 1
        if self._count <= self._limit:
            return None
        busiest = max(self._by_address, key=lambda address: len(self._by_address[address]))
        oldest = next(iter(self._by_address[busiest]))
        self.remove(busiest, oldest)
        return oldest

    def remove(self, address: str, item: _Item) -> None:
        """Remove a request, if it is in here."""
        items = self._by_address.get(address, {})
        if item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._by_address[address]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_Item]:
        return (item for items in self._by_address.values() for item in items)


@dataclass(slots=True, eq=False)
class _UnfinishedCall:
    context: Any
    address: str
    begun: float = field(default_factory=time.monotonic)
    waits: bool = False
    """Whether another thread has taken the place of this call's thread."""


class UnfinishedCalls:
    """Calls over gRPC on `threads` that wait for their clients."""

    def __init__(
        self, threads: Threads, max_calls: int = MAX_CALLS, max_seconds: float = MAX_SECONDS
    ) -> None:
        self.threads = threads
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._calls: Unfinished[_UnfinishedCall] = Unfinished(max_calls)
        self._any = threading.Event()
        weakref.finalize(self, self._any.set)
        threading.Thread(target=_watch, args=[weakref.ref(self), self._any], daemon=True).start()

    def __len__(self) -> int:
        return len(self._calls)

    def read(self, requests: Iterator[bytes], context: Any) -> bytes | None:
        """Return the request of a call once it is complete, or None for a call that ends without
        one.

        Raises gRPC's error if the call was cancelled.
        """
        call = self._begin(context)
        try:
            return next(requests, None)
        finally:
            self._end(call)

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """Mark that a call waits for its client in another way."""
        call = self._begin(context)
        try:
            yield
        finally:
            self._end(call)

    def look(self) -> bool:
        """Count calls that have waited for a moment as waiting, and end those that are too old.
        Return whether there are any calls."""
        now = time.monotonic()
        with self._lock:
            waiting = [call for call in self._calls if now - call.begun >= _MOMENT_SECONDS]
            late = [call for call in waiting if now - call.begun > self._max_seconds]
            for call in waiting:
                self._let_wait(call)
            for call in late:
                self._calls.remove(call.address, call)
            is_any = len(self._calls) > 0
            if not is_any:
                self._any.clear()
        for call in late:
            call.context.cancel()
        return is_any

    def _begin(self, context: Any) -> _UnfinishedCall:
        call = _UnfinishedCall(context, find_address(context))
        with self._lock:
            shed = self._calls.add(call.address, call)
            if len(self._calls) > _MANY:  # more than can run: this one will wait, too
                self._let_wait(call)
        if not self._any.is_set():
            self._any.set()
        if shed is not None:
            shed.context.cancel()
        return call

    def _end(self, call: _UnfinishedCall) -> None:
        with self._lock:
            self._calls.remove(call.address, call)
        if call.waits:
            self.threads.end_wait()

    def _let_wait(self, call: _UnfinishedCall) -> None:
        if not call.waits:
            call.waits = True
            self.threads.begin_wait()


def find_address(context: Any) -> str:
    """Return the address of a call's client, without the port of its connection."""
    peer: str = context.peer()
    return peer.rpartition(":")[0]


def _watch(calls: weakref.ref[UnfinishedCalls], are_any: threading.Event) -> None:
    """Call `look` while there are calls, and as long as the object exists."""
    while True:
        are_any.wait()
        time.sleep(_LOOK_SECONDS)
        watched = calls()
        if watched is None:
            return
        watched.look()
        del watched
