"""Reads bodies of requests within limits: the size of one and of all that are being read, after
gzip decompression; how long one takes to arrive and how fast; and how many are incomplete.

Requests that are not valid HTTP are counted, and reported in few lines whatever clients send.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, PayloadEncodingError
from triton_poplar.log import RateLimitedWarnings

from poplar_triton.tfserving.models import Code
from poplar_triton.tfserving.settings import MAX_UNFINISHED_BODIES
from poplar_triton.tfserving.unfinished import MAX_SECONDS, Unfinished

_GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the header of gzip and no other."""
_CHUNK_BYTES = 1 << 16


class BodyError(Exception):
    """Error of a rejected body; the HTTP status is more specific than that of the code."""

    def __init__(self, status: int, code: Code, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of the bodies of a server's requests."""

    body_bytes: int
    """Maximum size of one body, after gzip decompression."""
    all_bytes: int
    """Maximum size of all bodies that are held."""
    seconds: float = MAX_SECONDS
    """Maximum time for a body to arrive."""
    min_bytes_per_second: float = 1024.0
    """Minimum rate at which a body must arrive, over any `pace_seconds`."""
    pace_seconds: float = 10.0
    unfinished: int = MAX_UNFINISHED_BODIES
    """Maximum number of incomplete bodies; see Unfinished."""


class BodyReader:
    """Reads the bodies of a server's requests within `limits`."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._held = 0
        self._unfinished: Unfinished[asyncio.Future[None]] = Unfinished(limits.unfinished)
        self._shed: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """Read the body of a request, which counts as held until the end of the context. Raises
        BodyError."""
        self._check(request.content_length or 0, 0)
        body = bytearray()
        try:
            await self._finish(request, asyncio.ensure_future(self._collect(request, body)))
            yield body
        finally:
            self._held -= len(body)

    async def _finish(self, request: web.Request, coming: asyncio.Future[None]) -> None:
        """Wait for a body to arrive. Raises BodyError if it must end before."""
        address = request.remote or ""
        shed = self._unfinished.add(address, coming)
        if shed is not None:
            self._shed.add(shed)
            shed.cancel()
        try:
            await self._keep_pace(request, coming)
        except asyncio.CancelledError:
            if coming not in self._shed:
                raise
            raise _late(
                Code.RESOURCE_EXHAUSTED,
                f"the server waits for the bodies of {self._limits.unfinished} other "
                "requests; send the request again",
            ) from None
        finally:
            coming.cancel()
            self._unfinished.remove(address, coming)
            self._shed.discard(coming)

    async def _keep_pace(self, request: web.Request, coming: asyncio.Future[None]) -> None:
        limits, loop = self._limits, asyncio.get_running_loop()
        end = loop.time() + limits.seconds
        min_bytes = limits.min_bytes_per_second * limits.pace_seconds
        while True:
            before = request.content.total_bytes
            await asyncio.wait({coming}, timeout=min(limits.pace_seconds, end - loop.time()))
            if coming.done():
                return coming.result()
            if loop.time() >= end:
                raise _late(
                    Code.DEADLINE_EXCEEDED, f"expected the whole body within {limits.seconds:g} s"
                )
            if (came := request.content.total_bytes - before) < min_bytes:
                raise _late(
                    Code.DEADLINE_EXCEEDED,
                    f"expected {min_bytes:g} bytes of the body in {limits.pace_seconds:g} s, found "
                    f"{came}",
                )

    async def _collect(self, request: web.Request, body: bytearray) -> None:
        decoder = _find_decoder(request.headers.get("Content-Encoding", ""))
        try:
            async for chunk in request.content.iter_any():
                for part in decoder.decode(chunk):
                    self._check(len(body) + len(part), self._held + len(part))
                    self._held += len(part)
                    body += part
        except (web.RequestPayloadError, PayloadEncodingError) as error:
            raise _broken(f"the body does not match its headers: {error}") from None
        decoder.finish()

    def _check(self, size: int, together: int) -> None:
        if size > self._limits.body_bytes:
            raise BodyError(
                413,
                Code.RESOURCE_EXHAUSTED,
                f"expected a body of at most {self._limits.body_bytes} bytes; send fewer rows in "
                "one request",
            )
        if together > self._limits.all_bytes:
            raise BodyError(
                503,
                Code.RESOURCE_EXHAUSTED,
                f"request bodies use all {self._limits.all_bytes} bytes available for them; try "
                "again",
            )


class _Plain:
    """Decoder of an uncompressed body."""

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the next bytes."""
        yield chunk

    def finish(self) -> None:
        """Accept the end of the body, which is never incomplete."""


class _Gunzip:
    """Decoder of a body in gzip, in small parts however large the result is. Bytes after the gzip
    data are ignored."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decompressed next bytes, in parts. Raises BodyError."""
        while not self._stream.eof:
            try:
                part = self._stream.decompress(chunk, _CHUNK_BYTES)
            except zlib.error as error:
                raise _broken(f"expected gzip, as in Content-Encoding: {error}") from None
            yield part
            chunk = self._stream.unconsumed_tail
            if not chunk and len(part) < _CHUNK_BYTES:
                return

    def finish(self) -> None:
        """Raise BodyError if the end is missing."""
        if not self._stream.eof:
            raise _broken("expected gzip, as in Content-Encoding, found only the start of it")


def _find_decoder(encoding: str) -> _Plain | _Gunzip:
    if "gzip" in encoding.lower():
        return _Gunzip()
    if encoding.lower() not in ("", "identity"):
        raise BodyError(
            415,
            Code.INVALID_ARGUMENT,
            f"Content-Encoding: expected gzip or none, found {encoding}; send the body as it is",
        )
    return _Plain()


def _broken(message: str) -> BodyError:
    return BodyError(400, Code.INVALID_ARGUMENT, message)


def _late(code: Code, message: str) -> BodyError:
    return BodyError(408, code, message)


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
