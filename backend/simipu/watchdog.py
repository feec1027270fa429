"""Ends a run that takes too long. Watching costs a run two locks; a watchdog with nothing to watch sleeps for good."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `bark` once for a run that lasts longer than `limit_seconds`; one run at a time."""

    def __init__(self, limit_seconds: float, bark: Callable[[], None]) -> None:
        self.limit_seconds = limit_seconds
        self._bark = bark
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._deadline: float | None = None
        self._idle = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A run starts now."""
        with self._lock:
            self._deadline = time.monotonic() + self.limit_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="simipu watchdog", daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify()

    def end(self) -> None:
        """The run is over: `bark` does not come for it any more."""
        with self._lock:
            self._deadline = None

    def close(self) -> None:
        """Watch no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                # A run that began after an earlier one ended is found when the earlier one's time is up.
                if self._deadline is None:
                    self._idle = True
                    self._changed.wait()
                    self._idle = False
                elif (remaining := self._deadline - time.monotonic()) > 0:
                    self._changed.wait(remaining)
                else:
                    self._deadline = None
                    self._bark()
