"""Loggers of the libraries, which write to stderr in the real libraries' formats and have their
levels."""

from __future__ import annotations

import logging
import sys
from typing import Final

TRACE: Final = 5
"""Level below DEBUG."""
LEVELS: Final = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}
"""Python's levels by the names of Poplar's libraries."""


class _StderrHandler(logging.Handler):
    """Handler that writes to the current sys.stderr, which may be replaced later."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        print(self.format(record), file=sys.stderr)


def log_to_stderr(logger: logging.Logger, formatter: logging.Formatter) -> bool:
    """Let a logger write to stderr, and not to its parents; return False if it does already."""
    if any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        return False
    handler = _StderrHandler()
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.propagate = False
    return True
