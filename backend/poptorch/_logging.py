"""PopTorch's logger, on Python's `logging`.

It writes to stderr in the real module's format. POPTORCH_LOG_LEVEL sets the level at first; the
default is WARN.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import popart

from popef._tools.logs import LEVELS, TRACE, log_to_stderr

_NUMBERS: Final = {"TRACE": 0, "DEBUG": 1, "INFO": 2, "WARN": 3, "ERR": 4, "OFF": 6}
"""PopTorch's numbers of the levels."""
_ALIASES: Final = {"TRACE_ALL": "TRACE", "DEBUG_IR": "DEBUG"}
_NAMES: Final = {TRACE: "trace", logging.ERROR: "err"}

logger: Final = logging.getLogger("poptorch::python")


class _Formatter(logging.Formatter):
    """Format `[HH:MM:SS.mmm] [logger] [level] message`."""

    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        level = _NAMES.get(record.levelno, record.levelname.lower())
        lines = f"[{self.formatTime(record)}] [{record.name}] [{level}] {record.getMessage()}"
        if record.exc_info:
            lines += "\n" + self.formatException(record.exc_info)
        return lines


def setLogLevel(level: str | int) -> None:
    """Set the lowest level that is written.

    Args:
        level: TRACE, DEBUG, INFO, WARN, ERR or OFF; or 0 to 4 or 6, their numbers.

    Raises:
        ValueError: For another level.
    """
    if isinstance(level, int):
        names = [name for name, number in _NUMBERS.items() if number == level]
        if not names:
            numbers = ", ".join(map(str, _NUMBERS.values()))
            raise ValueError(f"Invalid log level integer {level}: expected one of {numbers}")
        level = names[0]
    name = _ALIASES.get(level, level)
    if name not in _NUMBERS:
        *first, last = sorted(_NUMBERS)
        raise ValueError(
            f"Unknown log level: {level}. Valid values are {', '.join(first)} and {last}"
        )
    logger.setLevel(LEVELS[name])


def setPopartLogLevel(level: str) -> None:
    """Set the lowest level that popart's loggers write.

    Args:
        level: TRACE, DEBUG, INFO, WARN, ERR or OFF.

    Raises:
        ValueError: For another level.
    """
    if level not in _NUMBERS:
        raise ValueError(f"Level must be one of {', '.join(_NUMBERS)}; found {level!r}")
    popart.getLogger().setLevel(level)


def _start() -> None:
    """Give the logger its handler and its first level."""
    log_to_stderr(logger, _Formatter())
    first = os.environ.get("POPTORCH_LOG_LEVEL", "WARN").upper()
    try:
        setLogLevel(int(first) if first.isdigit() else first)
    except ValueError as error:
        setLogLevel("WARN")
        logger.warning("POPTORCH_LOG_LEVEL: %s", error)


_start()
