"""Compressed executables: which codec, and inflation that cannot run past what the structure announces.

The real library's codec is not public, so readers accept zlib, gzip and zstd by magic; writers use zlib.
"""

from __future__ import annotations

import importlib
import io
import zlib
from enum import Enum
from typing import Any

from .errors import FormatError, UnsupportedError

CHUNK_BYTES = 1 << 20

_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
"""zlib's own window-bits code for telling the two apart by their header."""


class Codec(Enum):
    """How an executable's payload is stored."""

    RAW = "raw"
    ZLIB = "zlib"
    GZIP = "gzip"
    ZSTD = "zstd"


def detect(payload: memoryview, uncompressed_bytes: int) -> Codec | None:
    """The codec of `payload`; None when it is announced as compressed but has no known magic.

    `uncompressed_bytes` is 0 for a payload that is not compressed, whatever it starts with.
    """
    if uncompressed_bytes == 0:
        return Codec.RAW
    head = bytes(payload[:4])
    if head[:2] == b"\x1f\x8b":
        return Codec.GZIP
    if head == b"\x28\xb5\x2f\xfd":
        return Codec.ZSTD
    # RFC 1950: method 8, window of at most 32 KiB, and a two-byte checksum of 31.
    if len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return Codec.ZLIB
    return Codec.RAW if len(payload) == uncompressed_bytes else None


def inflate(payload: memoryview, codec: Codec, uncompressed_bytes: int, offset: int, label: str) -> memoryview:
    """Exactly `uncompressed_bytes` bytes, read-only; never holds more than one byte beyond them.

    Raises FormatError when the stream is broken or of another length, UnsupportedError without a zstd module.
    """
    if codec is Codec.ZSTD:
        data = _inflate_zstd(payload, uncompressed_bytes, offset, label)
    else:
        data = _inflate_zlib(payload, uncompressed_bytes, offset, label)
    if len(data) != uncompressed_bytes:
        got = f"{len(data)} bytes" if len(data) < uncompressed_bytes else "more"
        raise FormatError(offset, label, f"{uncompressed_bytes} bytes after decompression", got)
    return memoryview(data).toreadonly()


def _inflate_zlib(payload: memoryview, limit: int, offset: int, label: str) -> bytearray:
    stream = zlib.decompressobj(_ZLIB_OR_GZIP)
    data = bytearray()
    consumed = 0
    try:
        while not stream.eof and len(data) <= limit and (stream.unconsumed_tail or consumed < len(payload)):
            piece = stream.unconsumed_tail
            if not piece:
                piece = bytes(payload[consumed : consumed + CHUNK_BYTES])
                consumed += len(piece)
            data += stream.decompress(piece, min(CHUNK_BYTES, limit + 1 - len(data)))
    except zlib.error as error:
        raise FormatError(offset, label, "a zlib or gzip stream", str(error)) from error
    if len(data) <= limit and not stream.eof:
        data += stream.flush()[: limit + 1 - len(data)]
    if len(data) <= limit and not stream.eof:
        raise FormatError(offset, label, "a whole zlib or gzip stream", "one that is cut short")
    left = len(payload) - consumed + len(stream.unused_data)
    if left and stream.eof:
        raise FormatError(offset, label, "a payload of one compressed stream", f"{left} bytes after it")
    return data


def _inflate_zstd(payload: memoryview, limit: int, offset: int, label: str) -> bytearray:
    open_stream, errors = _zstd(label)
    data = bytearray()
    try:
        stream = open_stream(io.BytesIO(payload))
        while len(data) <= limit and (piece := stream.read(min(CHUNK_BYTES, limit + 1 - len(data)))):
            data += piece
    except errors as error:
        raise FormatError(offset, label, "a zstd stream", str(error)) from error
    return data


def _zstd(label: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """A function that opens a decompressing stream, and the errors it raises."""
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
            f"{label}: expected zlib, gzip or a zstd module, got a zstd executable without one; `pip install zstandard`"
        ) from error
    return module.ZstdDecompressor().stream_reader, (module.ZstdError,)
