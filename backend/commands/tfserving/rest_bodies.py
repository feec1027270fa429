"""Bodies of requests, read within bounds: how large one is, and all that are being read, once gzip is undone;
and how long it takes to come.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import PayloadEncodingError

from commands.tfserving.errors import Code
from commands.tfserving.rest_calls import within

_GZIP = 16 + zlib.MAX_WBITS
"""zlib's way to say: with the header of gzip, and no other."""
_CHUNK_BYTES = 1 << 16


class BodyError(Exception):
    """A body that is not taken; the HTTP status says more than that of the code does."""

    def __init__(self, status: int, code: Code, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class BodyReader:
    """Reads the bodies of a server's requests: of at most `most_bytes` each, `most_together` of all that are
    held, within `seconds`."""

    def __init__(self, most_bytes: int, most_together: int, seconds: float) -> None:
        self._most_bytes = most_bytes
        self._most_together = most_together
        self._seconds = seconds
        self._held = 0

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """The body of a request, counted as held until the end of the context. Raises BodyError."""
        self._check(request.content_length or 0, 0)
        body = bytearray()
        try:
            try:
                await within(self._collect(request, body), self._seconds)
            except asyncio.TimeoutError:
                raise BodyError(
                    408, Code.DEADLINE_EXCEEDED, f"expected the whole body within {self._seconds:g} s"
                ) from None
            yield body
        finally:
            self._held -= len(body)

    async def _collect(self, request: web.Request, body: bytearray) -> None:
        decoder = _find_decoder(request.headers.get("Content-Encoding", ""))
        try:
            async for chunk in request.content.iter_any():
                for part in decoder.decode(chunk):
                    self._check(len(body) + len(part), self._held + len(part))
                    self._held += len(part)
                    body += part
        except (web.RequestPayloadError, PayloadEncodingError) as error:
            raise _broken(f"the body is not what its headers say: {error}") from None
        decoder.finish()

    def _check(self, size: int, together: int) -> None:
        if size > self._most_bytes:
            raise BodyError(
                413,
                Code.RESOURCE_EXHAUSTED,
                f"expected a body of at most {self._most_bytes} bytes; send fewer rows in one request",
            )
        if together > self._most_together:
            raise BodyError(
                503,
                Code.RESOURCE_EXHAUSTED,
                f"bodies of requests fill the {self._most_together} bytes that there are for them; try again",
            )


class _Plain:
    """A body as it is."""

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """The next bytes."""
        yield chunk

    def finish(self) -> None:
        """Nothing is missing."""


class _Gunzip:
    """A body in gzip, a little at a time, however much a little becomes. What follows it is left out."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """What the next bytes become, in parts. Raises BodyError."""
        while not self._stream.eof:
            try:
                part = self._stream.decompress(chunk, _CHUNK_BYTES)
            except zlib.error as error:
                raise _broken(f"expected gzip, as Content-Encoding says: {error}") from None
            yield part
            chunk = self._stream.unconsumed_tail
            if not chunk and len(part) < _CHUNK_BYTES:
                return

    def finish(self) -> None:
        """Raise BodyError if the end is missing."""
        if not self._stream.eof:
            raise _broken("expected gzip, as Content-Encoding says, found its beginning only")


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
