"""What the backend writes to the server's log: each message in one line, whatever names are in it, and few of
a kind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from popef.text import escape

REST_SECONDS = 10.0
"""Between two lines of a kind that clients can bring about at will."""
_MOST_CHARACTERS = 2000

_log = logging.getLogger("triton_poplar")


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record), _MOST_CHARACTERS)


def log_to_stderr() -> None:
    """Have this process write to stderr, which in a process of the server's is the server's."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter("[poplar] %(message)s"))
    logging.basicConfig(handlers=[handler])


class RareWarnings:
    """Warnings under one name, at most one in `REST_SECONDS`: the next, or `close`, says how many there were
    besides."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until = float("-inf")
        self._untold = 0

    def warn(self, text: object) -> None:
        """Write it, or count it."""
        with self._lock:
            now = self._clock()
            if now < self._quiet_until:
                self._untold += 1
                return
            self._quiet_until = now + REST_SECONDS
            untold, self._untold = self._untold, 0
        _log.warning(
            "%s: %s%s", self._name, text, f" (and {untold} more since the last such line)" if untold else ""
        )

    def close(self) -> None:
        """Say how many were counted since the last line."""
        with self._lock:
            untold, self._untold = self._untold, 0
        if untold:
            _log.warning("%s: and %d more since the last such line", self._name, untold)
