"""Lines of a server's log, written so that the server never waits for the reader of its log.

A reader that hangs (a log collector, a stopped `less`, a full disk) lets a pipe fill up, and blocks
the next write to it for ever. So one thread writes, and everyone else only adds lines to a bounded
queue.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

MAX_LINES = 10_000
"""Maximum number of lines that wait for the reader: a few MB of memory."""
MAX_BYTES = 1 << 22
"""Maximum number of lines that wait, and of their characters: some seconds of a verbose log."""
FLUSH_SECONDS = 2.0
"""Maximum time to write the lines that wait when a process ends."""

Stream = Callable[[], TextIO | None]
"""Function that returns a stream, such as the current sys.stderr; None if there is none."""


def _find_stderr() -> TextIO | None:
    return sys.stderr


class LineQueue:
    """Queue of lines with a thread that writes them, in their order.

    While the queue is full, new lines are dropped and counted. Once the reader has read all lines
    that wait, the line `describe(number)` takes the place of those that were dropped. Threads may
    share the queue.
    """

    def __init__(
        self,
        describe: Callable[[int], str],
        stream: Stream = _find_stderr,
        max_lines: int = MAX_LINES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._describe = describe
        self._stream = stream
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Stream, str]] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._is_writing = False
        self._has_thread = False

    def add(self, line: str, stream: Stream | None = None) -> None:
        """Add a line, without its line break, for this stream or that of the queue. It is dropped
        if too many wait."""
        with self._changed:
            size = self._num_bytes + len(line)
            is_full = len(self._waiting) >= self._max_lines or size > self._max_bytes
            # Until the queue is empty: one line of two would be of no use to a slow reader.
            if self._num_dropped or is_full:
                self._num_dropped += 1
            else:
                self._waiting.append((stream or self._stream, line))
                self._num_bytes = size
            self._changed.notify_all()
            if not self._has_thread:
                self._start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait at most that long until all lines are written; return whether they are."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        try:
            thread.start()
            self._has_thread = True
        except RuntimeError:  # the limit of threads is reached
            while self._waiting:
                self._write(*self._take())

    def _is_idle(self) -> bool:
        return not (self._waiting or self._num_dropped or self._is_writing)

    def _run(self) -> None:
        while True:
            self._write(*self._take())

    def _write(self, stream: Stream, line: str) -> None:
        # A closed terminal or a full disk must not stop the server.
        with suppress(OSError, ValueError):
            write_line(stream(), line)
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()

    def _take(self) -> tuple[Stream, str]:
        """Wait for a line and return it. If only dropped lines are left, that is their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._num_dropped)
            self._is_writing = True
            if self._waiting:
                stream, line = self._waiting.popleft()
                self._num_bytes -= len(line)
                return stream, line
            line, self._num_dropped = self._describe(self._num_dropped), 0
            return self._stream, line


class QueueHandler(logging.Handler):
    """Handler of log records that adds their lines to a queue of stderr."""

    def __init__(self, formatter: logging.Formatter, describe: Callable[[int], str]) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._describe = describe
        self._queue = LineQueue(describe)
        os.register_at_fork(after_in_child=self._forget_parent)

    def emit(self, record: logging.LogRecord) -> None:
        """Add the line of a record."""
        self._queue.add(self.format(record))

    def flush(self) -> None:
        """Wait a little until all lines are written, when the process ends."""
        self._queue.flush()

    def _forget_parent(self) -> None:
        self._queue = LineQueue(self._describe)  # a fork has no thread, and perhaps a held lock


def describe_dropped(number: int) -> str:
    """Return the text about lines that were dropped."""
    return f"{number} lines of the log are missing here: its reader was too slow, or did not read"


def write_line(stream: TextIO | None, line: str) -> None:
    """Write a line in one piece.

    It goes to the descriptor itself: the buffer of a Python stream has a lock, for which Python
    would wait when it shuts down, while a thread holds it and waits for the reader.
    """
    if stream is None:
        return
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is no file, as in a test
        stream.write(f"{line}\n")
        stream.flush()
        return
    data = memoryview(f"{line}\n".encode(stream.encoding or "utf-8", "backslashreplace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def discard_blocked(seconds: float = FLUSH_SECONDS) -> None:
    """Redirect stdout and stderr to /dev/null if they have no reader: the last lines of a process
    that ends must not keep it alive."""
    end = time.monotonic() + seconds
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            if not writable.poll(max(0.0, end - time.monotonic()) * 1000):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
