"""Fake requests as seen from their clients: the test decides which are cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PlayedCall:
    """A call (see poplar_triton.tfserving.models.Call) whose client the test disconnects;
    `num_waits` counts its thread's waits."""

    def __init__(self, seconds: float | None = None) -> None:
        self.num_waits = 0
        self._seconds = seconds
        self._lock = threading.Lock()
        self._is_wanted = True
        self._callbacks: list[Callable[[], None]] = []

    def seconds_left(self) -> float | None:
        return self._seconds

    def is_wanted(self) -> bool:
        return self._is_wanted

    def when_given_up(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if self._is_wanted:
                self._callbacks.append(callback)
                return
        callback()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.num_waits += 1
        yield

    def give_up(self) -> None:
        with self._lock:
            self._is_wanted = False
        for callback in self._callbacks:
            callback()
