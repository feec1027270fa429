"""Output of tritonserver: copied line by line, and searched for its reason for not serving."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from popef._tools.text import escape

_KEPT_LINES = 50
_LONGEST_LINE_BYTES = 1 << 16
_ERROR = re.compile(r"E\d{4} \S+ +\d+ \S+:\d+\] (.*)")
"""Line of Triton's log: level and date, time, process, place, text."""
_HARMLESS = "CudaDriverHelper has not been initialized."
"""Texts that Triton logs as an error at every start without a GPU."""
_FATAL = re.compile(r"error: (.*)")
"""Text of tritonserver's main before it exits."""
_PROGRAM = re.compile(r"^\S*/tritonserver: ")
_USAGE = "Usage: tritonserver"
"""Start of hundreds of lines, indented except for titles. Other lines before or after them name the
wrong option."""


class ServerOutput:
    """Copies a server's output, every line without control characters, to a file (`log`) or to
    stderr, or to `copy`.

    A thread of its own reads, so that the server never waits for a reader of its output.
    """

    def __init__(
        self, pipe: IO[bytes], log: Path | None, copy: Callable[[str], None] | None = None
    ) -> None:
        self._pipe = pipe
        self._copy_line = copy
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
        """Whether the server has said that it cannot serve and is ending."""
        return self._wrong_call is not None or bool(self._fatal)

    @property
    def reason(self) -> str:
        """Triton's message about a wrong call or a fatal error, or else the last error that it
        logged; "" for none."""
        return _PROGRAM.sub("", " ".join(self._wrong_call or ())) or self._fatal or self._error

    @property
    def unseen_lines(self) -> list[str]:
        """Last lines, if they went to a file."""
        return [] if self._shown else list(self._last)[-20:]

    def join(self, seconds: float) -> None:
        """Wait until all output of the ended server is copied."""
        self._thread.join(seconds)
        if self._sink is not None and not self._thread.is_alive():
            self._sink.close()

    def _copy(self) -> None:
        with self._pipe:
            while raw := self._pipe.readline(_LONGEST_LINE_BYTES):
                line = escape(raw.decode("utf-8", "replace").rstrip("\r\n").expandtabs())
                self._note(line)
                # A full disk or a closed terminal must not stop the server.
                with suppress(OSError, ValueError):
                    self._write(line)

    def _write(self, line: str) -> None:
        if self._copy_line is not None:
            self._copy_line(line)
        else:
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
