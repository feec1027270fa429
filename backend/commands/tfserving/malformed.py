"""What is no HTTP: counted, and told in few lines of the log, whatever clients send."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp.http_exceptions import BadHttpMessage
from triton_poplar.log import RareWarnings

_MAX_CHARACTERS = 200
"""Length of the client's text in a log line: aiohttp quotes it."""


class MalformedLog(logging.Handler):
    """What aiohttp's server logs: requests that it cannot read are given to `count` and told rarely, all else
    goes to the process's log as it is."""

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__()
        self._count = count
        self._rare = RareWarnings("REST")

    def emit(self, record: logging.LogRecord) -> None:
        """Count or write a record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, BadHttpMessage):
            self._count()
            # The first line: those that follow show the bytes of the client.
            line = error.message.partition("\n")[0][:_MAX_CHARACTERS]
            self._rare.warn(f"a request that is no HTTP was refused: {line}")
        else:
            logging.getLogger(record.name).handle(record)


def make_logger(count: Callable[[], None]) -> logging.Logger:
    """The logger for aiohttp's server."""
    logger = logging.Logger("aiohttp.server", logging.WARNING)
    logger.addHandler(MalformedLog(count))
    return logger
