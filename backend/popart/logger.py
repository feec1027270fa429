"""PopART's loggers, on Python's `logging`.

All of them write to the logger "popart", which writes to stderr. POPART_LOG_LEVEL sets the level at
first; the default is WARN.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import datetime, timezone
from typing import Final

from popef._tools.logs import LEVELS, TRACE, log_to_stderr

_LETTERS: Final = {TRACE: "T"}
"""Letters of levels that Python's logging has no name for."""


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
    if log_to_stderr(root, _Formatter()):
        root.setLevel(_find_level(os.environ.get("POPART_LOG_LEVEL", "WARN")))
    return root


def _find_level(name: str) -> int:
    """Return the level of a name. As in PopART, an unknown name means OFF."""
    return LEVELS.get(name.upper(), LEVELS["OFF"])


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
