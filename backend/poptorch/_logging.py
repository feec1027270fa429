"""PopTorch's logger, on Python's `logging`.

It writes to stderr in the real module's format. POPTORCH_LOG_LEVEL sets the level at first; the
default is WARN.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

import popart

TRACE: Final = 5
"""Level below DEBUG."""
_LEVELS: Final = {
    "TRACE": (0, TRACE),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL + 1),
}
"""PopTorch's number and Python's level by PopTorch's name."""
_ALIASES: Final = {"TRACE_ALL": "TRACE", "DEBUG_IR": "DEBUG"}
_POPART_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF")
_NAMES: Final = {TRACE: "trace", logging.ERROR: "err"}

logger: Final = logging.getLogger("poptorch::python")


class _StderrHandler(logging.Handler):
    """Handler that writes to the current sys.stderr, which may be replaced later."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        print(self.format(record), file=sys.stderr)


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
        names = [name for name, (number, _) in _LEVELS.items() if number == level]
        if not names:
            numbers = ", ".join(str(number) for number, _ in _LEVELS.values())
            raise ValueError(f"Invalid log level integer {level}: expected one of {numbers}")
        level = names[0]
    name = _ALIASES.get(level, level)
    if name not in _LEVELS:
        *first, last = sorted(_LEVELS)
        raise ValueError(
            f"Unknown log level: {level}. Valid values are {', '.join(first)} and {last}"
        )
    logger.setLevel(_LEVELS[name][1])


def setPopartLogLevel(level: str) -> None:
    """Set the lowest level that popart's loggers write.

    Args:
        level: TRACE, DEBUG, INFO, WARN, ERR or OFF.

    Raises:
        ValueError: For another level.
    """
    if level not in _POPART_LEVELS:
        raise ValueError(f"Level must be one of {', '.join(_POPART_LEVELS)}; found {level!r}")
    popart.getLogger().setLevel(level)


def _start() -> None:
    """Give the logger its handler and its first level."""
    handler = _StderrHandler()
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.propagate = False
    first = os.environ.get("POPTORCH_LOG_LEVEL", "WARN").upper()
    try:
        setLogLevel(int(first) if first.isdigit() else first)
    except ValueError as error:
        setLogLevel("WARN")
        logger.warning("POPTORCH_LOG_LEVEL: %s", error)


_start()
