"""Messages of the backend in the server's log: each in one line, whatever names are in it, and few
of a kind."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from popef._tools.line_queue import QueueHandler, describe_dropped
from popef._tools.text import escape, write_utf_8

MIN_INTERVAL_SECONDS = 10.0
"""Minimum time between two log lines of a kind that clients can cause at will."""
_MAX_CHARACTERS = 2000
"""Maximum length of a line, whose text may come from a client or a file."""

_log = logging.getLogger("triton_poplar")


class _BoundedLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record), _MAX_CHARACTERS)


def log_to_stderr() -> None:
    """Log to stderr, which a process of the server shares with the server. A request that logs
    does not wait for the reader of the log."""
    write_utf_8(sys.stderr)  # the locale of Triton's stub is C
    formatter = _BoundedLineFormatter("[poplar] %(message)s")
    logging.basicConfig(handlers=[QueueHandler(formatter, _describe_dropped)])


def _describe_dropped(number: int) -> str:
    return f"[poplar] {describe_dropped(number)}"


class RateLimitedWarnings:
    """Warnings under one name, at most one in `MIN_INTERVAL_SECONDS`. The next warning, or `close`,
    logs how many were left out."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until = float("-inf")
        self._num_suppressed = 0

    def warn(self, text: object) -> None:
        """Log the warning, or count it."""
        with self._lock:
            now = self._clock()
            if now < self._quiet_until:
                self._num_suppressed += 1
                return
            self._quiet_until = now + MIN_INTERVAL_SECONDS
            num_suppressed, self._num_suppressed = self._num_suppressed, 0
        _log.warning(
            "%s: %s%s",
            self._name,
            text,
            f" (and {num_suppressed} more since the last such line)" if num_suppressed else "",
        )

    def close(self) -> None:
        """Log how many warnings were counted since the last line."""
        with self._lock:
            num_suppressed, self._num_suppressed = self._num_suppressed, 0
        if num_suppressed:
            _log.warning("%s: and %d more since the last such line", self._name, num_suppressed)
