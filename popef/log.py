"""Logging of popef, configured by the environment variables POPEF_LOG_LEVEL and POPEF_LOG_DEST.

Without them popef logs to the Python logger "popef", and the application configures the rest.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping

from ._tools.text import escape, escape_lines

# The values are those of Poplar's sister libraries (POPLAR_LOG_LEVEL); popef's own are not public.
LEVELS = {
    "OFF": logging.CRITICAL + 1,
    "ERR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_WORDS = {
    logging.ERROR: "error",
    logging.WARNING: "warning",
    logging.INFO: "info",
    logging.DEBUG: "debug",
}


def log_line(when: float, level: int, text: str) -> str:
    """Format a line as the real library prints it (Listing 1.1): time, library, level, text."""
    stamp = time.strftime("%H:%M:%S", time.localtime(when))
    word = _WORDS.get(level, "critical")
    return f"[{stamp}.{int(when * 1000) % 1000:03}] [popef:cpp] [{word}] {escape_lines(text)}"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return log_line(record.created, record.levelno, record.getMessage())


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Configure logging from POPEF_LOG_LEVEL and POPEF_LOG_DEST; do nothing if the level is not
    set.

    The destination is stderr (the default), stdout or a file to append to. An unknown level, or a
    file that cannot be opened, is reported on stderr and otherwise ignored: logging must not stop a
    program.
    """
    name = environment.get("POPEF_LOG_LEVEL", "")
    if not name:
        return
    level = LEVELS.get(name.upper())
    if level is None:
        print(
            f"popef: POPEF_LOG_LEVEL: expected one of {', '.join(LEVELS)}, got {name!r}; ignored",
            file=sys.stderr,
        )
        return
    logger = logging.getLogger("popef")
    handler = _handler(environment.get("POPEF_LOG_DEST", "stderr"))
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _handler(destination: str) -> logging.Handler:
    if destination == "stdout":
        return logging.StreamHandler(sys.stdout)
    if destination != "stderr":
        try:
            return logging.FileHandler(destination)
        except OSError as error:
            print(f"popef: POPEF_LOG_DEST: {escape(error)}; logging to stderr", file=sys.stderr)
    return logging.StreamHandler(sys.stderr)
