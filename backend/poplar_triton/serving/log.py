"""Log lines on stderr: a supervisor's own, and those of the tritonserver that it has started. Its
output is copied line by line, and searched for its reason for not serving. Neither waits for the
reader of the log.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from popef._tools.line_queue import LineQueue, describe_dropped, discard_blocked
from popef._tools.shortages import name_limit
from popef._tools.stalls import count_ticks
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


class Log:
    """Output of a supervisor, as a context manager: everything that it writes to stdout and stderr
    goes through one queue, so that nothing that it does waits for a reader.

    At the end it waits a little for the reader. If there is none, what is written afterwards is
    discarded.
    """

    def __init__(self, log_format: LogFormat = LogFormat.TEXT) -> None:
        self._is_json = log_format is LogFormat.JSON
        self._queue = LineQueue(lambda number: self._format(_WARNING + describe_dropped(number)))

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.flush()
        discard_blocked()

    def tell(self, text: str) -> None:
        """Log a line of the supervisor, with its time."""
        self._queue.add(self._format(text))

    def copy(self, line: str) -> None:
        """Log a line of tritonserver's output."""
        if self._is_json:
            match = _TRITON.match(line)
            level = _LEVELS[match[1]] if match and not line.endswith(_EXPLANATION) else "info"
            line = _format_object("tritonserver", level, line)
        self._queue.add(line)

    def show(self, text: str) -> None:
        """Print a text on stdout."""
        self._queue.add(text, lambda: sys.stdout)

    def _format(self, text: str) -> str:
        if not self._is_json:
            return f"{PROGRAM}: {_now()} {escape(text, most=sys.maxsize)}"
        level = "warning" if text.startswith(_WARNING) else "info"
        return _format_object(PROGRAM, level, text.removeprefix(_WARNING))


def _format_object(program: str, level: str, message: str) -> str:
    return json.dumps({"time": _now(), "program": program, "level": level, "message": message})


def _now() -> str:
    """Return the time in UTC, in the format of RFC 3339."""
    now = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now // 1000))}.{now % 1000:03d}Z"


_KEPT_LINES = 50
"""Number of last lines that are kept for the error of a server that has ended."""
REPEAT_SECONDS = 10.0
"""Minimum time between two lines that say how often a line was repeated."""
MAX_COPIES = 10
"""Maximum number of equal warnings or errors in that time that are copied though other lines come
between them: more than the same fault of each of some models, and few enough for any disk."""
_MAX_TEXTS = 64
"""Maximum number of texts of which the repeats are counted at once."""
_HEADER = re.compile(r"^[IWEF]\d{4} \S+ +\d+ ")
"""Part of a line of Triton's log that differs between two lines of the same text: level and date,
time, process."""
_MAX_LINE_BYTES = 1 << 16
"""Maximum length of a line that is read at once; a longer one is copied as several."""
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
_LOADING = re.compile(r'I\d{4} .*\] "loading: (.*):\d+"$')
_LOADED = re.compile(
    r"""[IE]\d{4} .*\] "(?:successfully loaded '(.*)'|failed to load '(.*)' version \d+: .*)"""
)
"""Lines of Triton's log when the load of a model's version begins and ends."""
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


@dataclass(slots=True)
class _Often:
    """How often a text came since a moment: how many lines of it were copied, and how many not."""

    since: float
    copied: int = 0
    hidden: int = 0


class _Repeats:
    """Passes lines on to `copy`, but counts those that say the same as the line before, and
    warnings and errors that come too often between others. Triton logs some errors without end,
    such as two hundred thousand lines a second that it may open no more files.
    """

    def __init__(
        self, copy: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._copy = copy
        self._clock = clock
        self._line = ""
        self._text: str | None = None
        self._is_hidden = False
        self._number = 0
        self._told_at = 0.0
        self._often: dict[str, _Often] = {}
        """Last texts of warnings and errors, the oldest count first."""

    def copy(self, line: str) -> None:
        """Copy a line, or count it."""
        text = _HEADER.sub("", line)
        if text != self._text:
            self._tell_repeats()
            self._text = text
            self._is_hidden = not line.startswith("I") and self._is_too_often(text)
            if not self._is_hidden:
                self._copy(line)
            return
        self._line = line
        self._number += 1
        if self._clock() >= self._told_at + REPEAT_SECONDS:
            self._tell_repeats()

    def tell(self) -> None:
        """Copy a line for each number of repeats that is not told yet."""
        self._tell_repeats()
        self._tell_hidden(until=math.inf)

    def _tell_repeats(self) -> None:
        """Copy a line with the number of repeats of the last line since the last such line; a
        single one is copied itself."""
        number, self._number = self._number, 0
        self._told_at = self._clock()
        if number and self._is_hidden and self._text is not None:
            self._count(self._text).hidden += number
        elif number:
            self._copy(self._line if number == 1 else f"the last line was repeated {number} times")
        self._tell_hidden(until=self._told_at - REPEAT_SECONDS)

    def _is_too_often(self, text: str) -> bool:
        """Count a text, and return whether it is not to be copied now."""
        often = self._count(text)
        if often.copied < MAX_COPIES:
            often.copied += 1
            return False
        often.hidden += 1
        return True

    def _count(self, text: str) -> _Often:
        if text not in self._often and len(self._often) >= _MAX_TEXTS:
            self._tell_hidden(until=next(iter(self._often.values())).since)
        return self._often.setdefault(text, _Often(self._clock()))

    def _tell_hidden(self, until: float) -> None:
        """Forget the counts that began at `until` or before, and copy a line for each text that was
        not copied each time."""
        while self._often:
            text, often = next(iter(self._often.items()))
            if often.since > until:
                return
            del self._often[text]
            if often.hidden:
                self._copy(f"this line was repeated {often.hidden} times: {text}")


class ServerOutput:
    """Copies a server's output, every line without control characters, to a file (`log`) or to
    stderr, or to `copy`. Errors that only say that there is no GPU are explained; Triton's usage is
    left out.

    A thread of its own reads, and does not write itself (LineQueue), so that the server never waits
    for a reader of its output. A line that repeats the last one is counted instead.
    """

    def __init__(
        self, pipe: IO[bytes], log: Path | None, copy: Callable[[str], None] | None = None
    ) -> None:
        self._pipe = pipe
        self._sink = None if log is None else log.open("w", encoding="utf-8")
        self._queue = LineQueue(describe_dropped, lambda: self._sink or sys.stderr)
        self._repeats = _Repeats(copy or self._queue.add)
        self._shown = log is None
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._wrong_call: list[str] | None = None
        self._fatal = ""
        self._error = ""
        self._limit = ""
        self._syntax_error = ""
        self.rejected_models: dict[str, str] = {}
        """Reasons by name of the models that Triton lists without a state."""
        self.loading_models: frozenset[str] = frozenset()
        """Models whose load has begun and not ended yet."""
        self.loaded_models: Mapping[str, float] = {}
        """Models that have loaded, with the time at which the last load of each succeeded: clock
        ticks since the machine was started, as in `Stub.started`."""
        self._thread = threading.Thread(target=self._copy, name="tritonserver output", daemon=True)
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the server has said that it cannot serve and is ending."""
        return self._wrong_call is not None or bool(self._fatal)

    @property
    def reason(self) -> str:
        """Triton's message about a wrong call or a fatal error, or else the last error that it
        logged; "" for none. A limit of the system that it has met is named, too."""
        wrong_call = _PROGRAM.sub("", " ".join(self._wrong_call or ()))
        reasons = (wrong_call or self._fatal or self._error, self._limit)
        return "; ".join(filter(None, reasons))

    @property
    def unseen_lines(self) -> list[str]:
        """Last lines, if they went to a file."""
        return [] if self._shown else list(self._last)[-20:]

    def join(self, seconds: float) -> None:
        """Wait until all output of the ended server is copied."""
        self._thread.join(seconds)
        if self._queue.flush() and self._sink is not None and not self._thread.is_alive():
            self._sink.close()

    def _copy(self) -> None:
        with self._pipe:
            while raw := self._pipe.readline(_MAX_LINE_BYTES):
                line = escape(raw.decode("utf-8", "replace").rstrip("\r\n").expandtabs())
                self._note(line)
                self._note_load(line)
                if self._is_usage(line):
                    continue
                self._last.append(line)
                self._repeats.copy(f"{line}{_EXPLANATION}" if _is_harmless(line) else line)
        self._repeats.tell()

    def _note(self, line: str) -> None:
        self._limit = name_limit(line) or self._limit
        if line.startswith(_USAGE):
            self._wrong_call = [line.strip() for line in self._last if line.strip()]
        elif self._wrong_call is not None and re.match(r"\S.*[^:]$", line):
            self._wrong_call.append(line)
        elif fatal := _FATAL.match(line):
            self._fatal = self._fatal or fatal[1]
        elif (error := _ERROR.match(line)) and not _is_harmless(line):
            self._error = error[1].strip('"')
            self._note_rejected(self._error)
        elif syntax := _SYNTAX_ERROR.match(line):
            self._syntax_error = f": {syntax[1]}"

    def _note_load(self, line: str) -> None:
        if loading := _LOADING.match(line):
            self.loading_models |= {loading[1]}
        elif loaded := _LOADED.match(line):
            self.loading_models -= {loaded[1] or loaded[2]}
            if name := loaded[1]:
                self.loaded_models = {**self.loaded_models, name: count_ticks()}

    def _is_usage(self, line: str) -> bool:
        """Return whether a line only lists Triton's options after a wrong call, in several screens.
        The lines that name what is wrong are no such lines."""
        return self._wrong_call is not None and line not in self._wrong_call

    def _note_rejected(self, error: str) -> None:
        if rejected := _REJECTED.match(error):
            self.rejected_models[rejected[1]] = f"{rejected[2]}{self._syntax_error}"
            self._syntax_error = ""
