"""Where the bytes of a file come from: a mapped file, or bytes already in memory."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO, Protocol

from .errors import FormatError, PopefError


class Source(Protocol):
    """Random access to the bytes of one file or stream."""

    name: str
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes; fewer when the file has shrunk."""

    def view(self, offset: int, size: int) -> memoryview:
        """A read-only view without copying; it stays valid after `close`."""

    def close(self) -> None:
        """Give up the bytes; views handed out keep theirs alive."""


class MemorySource:
    """Bytes in memory, as a stream leaves them."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data: memoryview | None = memoryview(data)

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes."""
        return bytes(self.view(offset, size))

    def view(self, offset: int, size: int) -> memoryview:
        """A read-only view without copying."""
        if self._data is None:
            raise _closed(self.name)
        return self._data[offset : offset + size]

    def close(self) -> None:
        """Forget the bytes."""
        self._data = None


class FileSource:
    """A regular file: structures are copied with pread, which cannot fault; payloads are views of a mapping.

    A file that shrinks after `release` faults when a payload is touched, as with every mapping: replace files by
    renaming, the way `Writer` does, and readers keep the old one.
    """

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._file: BinaryIO | None = file
        self._map: memoryview | None = None

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes."""
        if self._file is None:
            return bytes(self.view(offset, size))
        chunks = []
        while size > 0 and (chunk := os.pread(self._file.fileno(), size, offset)):
            chunks.append(chunk)
            offset += len(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def release(self) -> None:
        """Map the file and let go of the descriptor; reads go through the mapping from here on."""
        if self._file is None:
            return
        if self.size and os.fstat(self._file.fileno()).st_size < self.size:
            raise FormatError(0, self.name, f"{self.size} bytes", "fewer: the file shrank while being read")
        if self.size:
            self._map = memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))
        else:
            self._map = memoryview(b"")
        self._file = None

    def view(self, offset: int, size: int) -> memoryview:
        """A read-only view of the mapping."""
        if self._map is None:
            raise _closed(self.name)
        return self._map[offset : offset + size]

    def close(self) -> None:
        """Drop the mapping as soon as no view needs it."""
        self._file = None
        self._map = None


def _closed(name: str) -> PopefError:
    return PopefError(f"{name}: expected an open reader, got a closed one; take the data before closing it")
