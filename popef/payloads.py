"""Payloads as binary streams, the form in which the real library returns them.

Each stream is independent: it stays readable after its reader is closed.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compression import Inflater

BUFFER_BYTES = 1 << 16


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


class InflatedStream(io.RawIOBase):
    """Stream over a compressed payload, decompressed while it is read."""

    def __init__(self, inflater: Inflater) -> None:
        self._inflater = inflater

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read some bytes into `buffer` and return their number, 0 at the end.

        Raises FormatError if the payload does not match its structure.
        """
        piece = self._inflater.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def open_view(view: memoryview) -> io.BufferedReader:
    """Return a seekable stream of a view."""
    return io.BufferedReader(ViewStream(view), BUFFER_BYTES)


def open_inflated(inflater: Inflater) -> io.BufferedReader:
    """Return a stream of a compressed payload."""
    return io.BufferedReader(InflatedStream(inflater), BUFFER_BYTES)
