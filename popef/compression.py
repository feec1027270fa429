"""Payloads as binary streams, and compressed executables: detection of the codec, and inflation
limited to the announced size.

The real library's codec is not public, so readers accept zlib, gzip and zstd by magic; writers use
zlib. Each stream is independent: it stays readable after its reader is closed.
"""

from __future__ import annotations

import importlib
import io
import os
import zlib
from enum import Enum
from typing import Any

from .errors import FormatError, Rule, UnsupportedError
from .source import CHUNK_BYTES

_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
"""zlib's window-bits value that detects zlib or gzip by the header."""


_ZLIB_HEADER_BYTES = 2
"""Bytes of zlib's header, CMF and FLG (RFC 1950)."""
_DEFLATE = 8
"""Compression method of zlib; the only one that is defined."""
_LARGEST_WINDOW = 7
"""Maximum window size code: log2 of its bytes, less 8, which is 32 KiB."""


class Codec(Enum):
    """Storage format of an executable's payload."""

    RAW = "raw"
    ZLIB = "zlib"
    GZIP = "gzip"
    ZSTD = "zstd"


MAGIC_BYTES = 4


def detect(head: bytes, payload_bytes: int, uncompressed_bytes: int) -> Codec | None:
    """Return the codec of a payload that begins with `head`.

    Returns None if the payload is announced as compressed but has no known magic.
    `uncompressed_bytes` is 0 for a payload that is not compressed, regardless of its first bytes.
    """
    if uncompressed_bytes == 0:
        return Codec.RAW
    if head[:2] == b"\x1f\x8b":  # RFC 1952
        return Codec.GZIP
    if head[:4] == b"\x28\xb5\x2f\xfd":  # RFC 8878: 0xFD2FB528, little-endian
        return Codec.ZSTD
    if _is_zlib(head):
        return Codec.ZLIB
    return Codec.RAW if payload_bytes == uncompressed_bytes else None


# RFC 1950:
#
#  15        12 11         8 7              0
# +------------+------------+----------------+
# | window - 8 |   method   |     flags      |   both bytes together are a multiple of 31
# +------------+------------+----------------+
def _is_zlib(head: bytes) -> bool:
    header = int.from_bytes(head[:_ZLIB_HEADER_BYTES], "big")
    right_kind = header >> 8 & 0x0F == _DEFLATE and header >> 12 <= _LARGEST_WINDOW
    return len(head) >= _ZLIB_HEADER_BYTES and right_kind and header % 31 == 0


class Inflater(io.RawIOBase):
    """Stream over a compressed payload, limited to the size that its structure announces;
    decompressed while it is read."""

    def __init__(
        self, payload: memoryview, codec: Codec, uncompressed_bytes: int, offset: int, label: str
    ) -> None:
        """Open the payload; `offset` and `label` say where it is, for errors.

        Raises UnsupportedError without a zstd module.
        """
        self._stream = _ZstdStream(payload, label) if codec is Codec.ZSTD else _ZlibStream(payload)
        self._left = uncompressed_bytes
        self._bytes = uncompressed_bytes
        self._offset = offset
        self._label = label

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read some bytes into `buffer` and return their number, 0 at the end."""
        piece = self.next_piece(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def next_piece(self, size: int) -> bytes:
        """Return between 1 and `size` bytes, or b"" at the end.

        Raises FormatError for a broken stream or a stream of another length.
        """
        try:
            # One byte more than there should be tells a stream that goes on from one that ends.
            piece = self._stream.read(min(size, self._left) or 1)
        except self._stream.ERRORS as error:
            raise self._fail("a whole zlib, gzip or zstd stream", str(error)) from error
        if len(piece) > self._left:
            raise self._fail(f"{self._bytes} bytes after decompression", "more")
        self._left -= len(piece)
        if not piece and self._left:
            raise self._fail(
                f"{self._bytes} bytes after decompression", f"{self._bytes - self._left} bytes"
            )
        if not piece and self._stream.rest():
            raise self._fail(
                "a payload of one compressed stream", f"{self._stream.rest()} bytes after it"
            )
        return piece

    def _fail(self, expected: str, got: str) -> FormatError:
        return FormatError(Rule.EXECUTABLE_SIZE, self._offset, self._label, expected, got)


def inflate(inflater: Inflater) -> memoryview:
    """Return the whole payload, read-only.

    The buffer grows as bytes arrive, so a false announced size costs no memory.
    """
    data = bytearray()
    while piece := inflater.next_piece(CHUNK_BYTES):
        data += piece
    return memoryview(data).toreadonly()


class _ZlibStream:
    ERRORS: tuple[type[Exception], ...] = (zlib.error, EOFError)

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._stream = zlib.decompressobj(_ZLIB_OR_GZIP)

    def read(self, size: int) -> bytes:
        while not self._stream.eof:
            source = self._stream.unconsumed_tail
            if not source:
                source = bytes(self._payload[:CHUNK_BYTES])
                self._payload = self._payload[CHUNK_BYTES:]
            piece = self._stream.decompress(source, size)
            if piece:
                return piece
            if not source:
                raise EOFError("a truncated stream")
        return b""

    def rest(self) -> int:
        """Return the number of bytes behind the end of the stream."""
        return len(self._payload) + len(self._stream.unused_data)


class _ZstdStream:
    def __init__(self, payload: memoryview, label: str) -> None:
        open_stream, self.ERRORS = _zstd(label)
        self._stream = open_stream(ViewStream(payload))

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        return data

    def rest(self) -> int:
        """Return 0: a zstd payload is read frame by frame, to its end."""
        return 0


def _zstd(label: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a function that opens a decompressing stream, and the errors that the stream
    raises."""
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        pass
    else:
        return module.open, (module.ZstdError, EOFError)
    try:
        module = importlib.import_module("zstandard")
    except ImportError as error:
        raise UnsupportedError(
            f"{label}: expected zlib, gzip or a zstd module, got a zstd executable without one; "
            "`pip install zstandard`"
        ) from error

    def open_stream(source: ViewStream) -> Any:
        return module.ZstdDecompressor().stream_reader(source, read_across_frames=True)

    return open_stream, (module.ZstdError,)


BUFFER_BYTES = 1 << 16
"""Buffer of a stream over a payload; larger reads do not use it."""


class ViewStream(io.RawIOBase):
    """Stream over the bytes of a view, without copying the view as a whole."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset, which may lie beyond the end but not before the beginning."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        if base + offset < 0:
            raise ValueError(
                f"seek: expected an offset of 0 and above, got {base + offset}; seek inside the "
                "payload"
            )
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with the bytes that are left, and return their number."""
        piece = self._view[self._position : self._position + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


def open_view(view: memoryview) -> io.BufferedReader:
    """Return a seekable stream of a view."""
    return io.BufferedReader(ViewStream(view), BUFFER_BYTES)
