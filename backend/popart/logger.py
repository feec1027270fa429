"""PopART's loggers, on Python's `logging`.

All of them write to the logger "popart", which writes to stderr. POPART_LOG_LEVEL sets the level at
first; the default is WARN.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import datetime, timezone
from typing import Final

_LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}
"""Levels by PopART's names. As there, an unknown name means OFF."""


TRACE: Final = _LEVELS["TRACE"]
_LETTERS: Final = {TRACE: "T"}


class _StderrHandler(logging.Handler):
    """Handler that writes to the current sys.stderr, which may be replaced later."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        print(self.format(record), file=sys.stderr)


class _Formatter(logging.Formatter):
    """Format `2026-01-31T10:20:30.123456Z popart:ir 12.34 D: message`, as PopART does.

    The numbers are the process and the thread; the letter is the first one of the level.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        created = datetime.fromtimestamp(record.created, timezone.utc)
        time = created.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        module = record.name.replace(".", ":")
        level = _LETTERS.get(record.levelno, record.levelname[:1])
        ids = f"{record.process}.{threading.get_native_id()}"
        return f"{time} {module} {ids} {level}: {record.getMessage()}"


def _root() -> logging.Logger:
    root = logging.getLogger("popart")
    if not any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        handler = _StderrHandler()
        handler.setFormatter(_Formatter())
        root.addHandler(handler)
        root.setLevel(_find_level(os.environ.get("POPART_LOG_LEVEL", "WARN")))
        root.propagate = False
    return root


def _find_level(name: str) -> int:
    return _LEVELS.get(name.upper(), _LEVELS["OFF"])


class Logger:
    """Logger of one of PopART's modules; made by `getLogger`."""

    def __init__(self, name: str) -> None:
        self._logger = _root() if name == "all" else _root().getChild(name)

    def setLevel(self, level: str) -> None:
        """Set the lowest level that is written.

        Args:
            level: TRACE, DEBUG, INFO, WARN, ERR, CRITICAL or OFF.
        """
        self._logger.setLevel(_find_level(level))

    def debug(self, info: str) -> None:
        """Log a message at the level DEBUG."""
        self._logger.debug("%s", info)

    def info(self, info: str) -> None:
        """Log a message at the level INFO."""
        self._logger.info("%s", info)

    def warn(self, info: str) -> None:
        """Log a message at the level WARN."""
        self._logger.warning("%s", info)

    def error(self, info: str) -> None:
        """Log a message at the level ERR."""
        self._logger.error("%s", info)

    def critical(self, info: str) -> None:
        """Log a message at the level CRITICAL."""
        self._logger.critical("%s", info)


def getLogger(name: str = "all") -> Logger:
    """Return a logger.

    Args:
        name: Module of PopART, as "session"; "all" is the parent of all.

    Returns:
        The logger.
    """
    return Logger(name)
