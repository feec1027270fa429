"""What tritonserver writes: copied line by line, and its reason for not serving found among them."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from popef.text import escape

_KEPT_LINES = 50
_LONGEST_LINE_BYTES = 1 << 16
_ERROR = re.compile(r"E\d{4} \S+ +\d+ \S+:\d+\] (.*)")
"""A line of Triton's log: level and date, time, process, place, text."""
_HARMLESS = "CudaDriverHelper has not been initialized."
"""Logged as an error at every start without a GPU."""
_FATAL = re.compile(r"error: (.*)")
"""What tritonserver's main says before it exits."""
_PROGRAM = re.compile(r"^\S*/tritonserver: ")
_USAGE = "Usage: tritonserver"
"""Begins hundreds of lines, indented but for titles, after or before which other lines name the wrong
option."""


class ServerOutput:
    """Copies a server's output, every line without control characters, to a file (`log`) or to stderr.

    Its own thread reads, so that the server never waits for who looks at its output.
    """

    def __init__(self, pipe: IO[bytes], log: Path | None) -> None:
        self._pipe = pipe
        self._sink = None if log is None else log.open("w", encoding="utf-8")
        self._shown = log is None
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._wrong_call: list[str] | None = None
        self._fatal = ""
        self._error = ""
        self._thread = threading.Thread(target=self._copy, name="tritonserver output", daemon=True)
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the server has said that it cannot serve and ends."""
        return self._wrong_call is not None or bool(self._fatal)

    @property
    def reason(self) -> str:
        """Triton's words for what is wrong: with the call, or fatal, or else the last error that it logged;
        "" for none."""
        return _PROGRAM.sub("", " ".join(self._wrong_call or ())) or self._fatal or self._error

    @property
    def unseen_lines(self) -> list[str]:
        """The last lines, if they went to a file."""
        return [] if self._shown else list(self._last)[-20:]

    def join(self, seconds: float) -> None:
        """Wait until all that the server has written is copied: it has ended."""
        self._thread.join(seconds)
        if self._sink is not None and not self._thread.is_alive():
            self._sink.close()

    def _copy(self) -> None:
        with self._pipe:
            while raw := self._pipe.readline(_LONGEST_LINE_BYTES):
                line = escape(raw.decode("utf-8", "replace").rstrip("\r\n").expandtabs())
                self._note(line)
                # A full disk, or a terminal that is gone, must not stop the server.
                with suppress(OSError, ValueError):
                    print(line, file=self._sink or sys.stderr, flush=True)

    def _note(self, line: str) -> None:
        if line.startswith(_USAGE):
            self._wrong_call = [each.strip() for each in self._last if each.strip()]
        elif self._wrong_call is not None and re.match(r"\S.*[^:]$", line):
            self._wrong_call.append(line)
        elif fatal := _FATAL.match(line):
            self._fatal = self._fatal or fatal[1]
        elif (error := _ERROR.match(line)) and _HARMLESS not in line:
            self._error = error[1].strip('"')
        self._last.append(line)
