"""Log lines on stderr: a supervisor's own, and those of the tritonserver that it has started. Its
output is copied line by line, and searched for its reason for not serving.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import IO

from popef._tools.text import escape

PROGRAM = "poplar-triton"
_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_TRITON = re.compile(r"([IWEF])\d{4} ")
"""Start of a line of Triton's log: level, month and day."""
_WARNING = "warning: "


class LogFormat(Enum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


def make_tell(log_format: LogFormat = LogFormat.TEXT) -> Callable[[str], None]:
    """Return a function that writes a line of the supervisor's log, with its time."""
    return _tell_as_json if log_format is LogFormat.JSON else _tell_as_text


def make_copy(log_format: LogFormat) -> Callable[[str], None] | None:
    """Return a function that writes a line of tritonserver's output, or None if it stays
    unchanged."""
    return _copy_as_json if log_format is LogFormat.JSON else None


def _tell_as_text(text: str) -> None:
    _write(f"{PROGRAM}: {_now()} {escape(text, most=sys.maxsize)}")


def _tell_as_json(text: str) -> None:
    level = "warning" if text.startswith(_WARNING) else "info"
    _write_object(PROGRAM, level, text.removeprefix(_WARNING))


def _copy_as_json(line: str) -> None:
    found = _TRITON.match(line)
    level = _LEVELS[found[1]] if found and not line.endswith(_EXPLANATION) else "info"
    _write_object("tritonserver", level, line)


def _write_object(program: str, level: str, message: str) -> None:
    _write(json.dumps({"time": _now(), "program": program, "level": level, "message": message}))


def _now() -> str:
    """Return the time in UTC, in the format of RFC 3339."""
    now = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now // 1000))}.{now % 1000:03d}Z"


def _write(line: str) -> None:
    """Write a line in one piece, because several threads write."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


_KEPT_LINES = 50
_MAX_LINE_BYTES = 1 << 16
_ERROR = re.compile(r"E\d{4} \S+ +\d+ \S+:\d+\] (.*)")
"""Line of Triton's log: level and date, time, process, place, text."""
_WITHOUT_GPU = (
    "CudaDriverHelper has not been initialized.",
    "Unable to allocate pinned system memory, pinned memory pool will not be available",
    "Failed to initialize NVML",
    "DCGM unable to start: DCGM initialization error",
)
"""Texts of the warnings and errors that Triton logs at every start on a machine without a GPU."""
_GPU = Path("/dev/nvidiactl")
"""Device of NVIDIA's driver, which every machine with a usable GPU has."""
_EXPLANATION = " (harmless: this machine has no GPU, and the IPU is simulated on the CPU)"
_REJECTED = re.compile(
    r"(?:Poll failed for model directory|failed to load model) '(.+?)': (.*)", re.DOTALL
)
"""Error of a model that Triton lists without a state: no valid configuration, or no version."""
_SYNTAX_ERROR = re.compile(r"\[libprotobuf ERROR .*Error parsing text-format \S+: (.*)")
"""Line before the error of a configuration that protobuf cannot parse: line, column and fault."""
_FATAL = re.compile(r"error: (.*)")
"""Text of tritonserver's main before it exits."""
_PROGRAM = re.compile(r"^\S*/tritonserver: ")
_USAGE = "Usage: tritonserver"
"""Start of hundreds of lines, indented except for titles. Other lines before or after them name the
wrong option."""


def _is_harmless(line: str) -> bool:
    """Return whether Triton logs the line because there is no GPU."""
    return any(text in line for text in _WITHOUT_GPU) and not _GPU.exists()


class ServerOutput:
    """Copies a server's output, every line without control characters, to a file (`log`) or to
    stderr, or to `copy`. Errors that only say that there is no GPU are explained; Triton's usage is
    left out.

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
        self._syntax_error = ""
        self.rejected_models: dict[str, str] = {}
        """Reasons by name of the models that Triton lists without a state."""
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
            while raw := self._pipe.readline(_MAX_LINE_BYTES):
                line = escape(raw.decode("utf-8", "replace").rstrip("\r\n").expandtabs())
                self._note(line)
                if self._is_usage(line):
                    continue
                self._last.append(line)
                # A full disk or a closed terminal must not stop the server.
                with suppress(OSError, ValueError):
                    self._write(f"{line}{_EXPLANATION}" if _is_harmless(line) else line)

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
        elif (error := _ERROR.match(line)) and not _is_harmless(line):
            self._error = error[1].strip('"')
            self._note_rejected(self._error)
        elif syntax := _SYNTAX_ERROR.match(line):
            self._syntax_error = f": {syntax[1]}"

    def _is_usage(self, line: str) -> bool:
        """Return whether a line only lists Triton's options after a wrong call, in several screens.
        The lines that name what is wrong are no such lines."""
        return self._wrong_call is not None and line not in self._wrong_call

    def _note_rejected(self, error: str) -> None:
        if rejected := _REJECTED.match(error):
            self.rejected_models[rejected[1]] = f"{rejected[2]}{self._syntax_error}"
            self._syntax_error = ""
