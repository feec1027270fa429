"""Log lines on stderr: a supervisor's own, and those of the tritonserver that it has started."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from enum import Enum

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
    _write_object("tritonserver", _LEVELS[found[1]] if found else "info", line)


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
