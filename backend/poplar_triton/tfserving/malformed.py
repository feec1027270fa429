"""Log of requests that are not valid HTTP: they are counted, and reported in few lines whatever
clients send."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp.http_exceptions import BadHttpMessage
from triton_poplar.log import RateLimitedWarnings

_MAX_CHARACTERS = 200
"""Maximum length of the client's text in a log line: aiohttp quotes it."""


class MalformedLog(logging.Handler):
    """Handler of aiohttp's server log. It passes unreadable requests to `count` and logs them
    rarely; other records go to the process's log unchanged."""

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__()
        self._count = count
        self._rare = RateLimitedWarnings("REST")

    def emit(self, record: logging.LogRecord) -> None:
        """Count or write a record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, BadHttpMessage):
            self._count()
            # Only the first line: the following lines show the client's bytes.
            line = error.message.partition("\n")[0][:_MAX_CHARACTERS]
            self._rare.warn(f"rejected a request that is not HTTP: {line}")
        else:
            logging.getLogger(record.name).handle(record)


def make_logger(count: Callable[[], None]) -> logging.Logger:
    """Return the logger for aiohttp's server."""
    logger = logging.Logger("aiohttp.server", logging.WARNING)
    logger.addHandler(MalformedLog(count))
    return logger
