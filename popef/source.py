"""Where the bytes of a file come from: a file, mapped or read piece by piece, or bytes already in memory."""

from __future__ import annotations

import mmap
import os
import stat
from typing import BinaryIO, Protocol

from .errors import FormatError, LimitError, PopefError
from .rules import Rule
from .wire import WORD_BYTES

CHUNK_BYTES = 1 << 20


class Source(Protocol):
    """Random access to the bytes of one file or stream."""

    name: str
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes; fewer when the file has shrunk."""

    def view(self, offset: int, size: int) -> memoryview:
        """Read-only bytes that stay valid after `close`; raises FormatError when the file no longer has
        them."""

    def settle(self) -> None:
        """Prepare for payloads being all that is asked for from here on."""

    def close(self) -> None:
        """Give up the bytes; views handed out keep theirs alive."""


class MemorySource:
    """Bytes in memory, as a stream leaves them."""

    def __init__(self, name: str, data: bytes | bytearray) -> None:
        self.name = name
        self.size = len(data)
        self._data: memoryview | None = memoryview(data).toreadonly()

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes."""
        return bytes(self.view(offset, size))

    def view(self, offset: int, size: int) -> memoryview:
        """A view without copying."""
        if self._data is None:
            raise _closed(self.name)
        return self._data[offset : offset + size]

    def settle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Forget the bytes."""
        self._data = None


class FileSource:
    """A regular file. Structures are copied with pread, which cannot fault; so are payloads, or they are
    views of a mapping.

    A mapped file that shrinks is refused when the next payload is asked for, but faults where one handed out
    earlier is touched, as with every mapping: replace files by renaming, the way `Writer` does, and readers
    keep the old one.
    """

    def __init__(self, path: str | os.PathLike[str], name: str, *, mapped: bool) -> None:
        self.name = name
        self._file: BinaryIO | None = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._descriptor = self._file.fileno()
        self.size = os.fstat(self._descriptor).st_size
        self._mapped = mapped
        self._map: mmap.mmap | None = None

    def read(self, offset: int, size: int) -> bytes:
        """A copy of at most `size` bytes."""
        if self._file is None:
            return bytes(self.view(offset, size))
        data = os.pread(self._descriptor, size, offset)
        if len(data) in (0, size):
            return data
        # A single pread gives at most 2 GiB, and less at the end of a file.
        return data + self.read(offset + len(data), size - len(data))

    def settle(self) -> None:
        """Map the file, if that was asked for, and let go of the descriptor."""
        if self._mapped and self.size and self._file is not None:
            if os.fstat(self._descriptor).st_size < self.size:
                raise self._shrunk(0, self.size)
            self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            self._file.close()
            self._file = None

    def view(self, offset: int, size: int) -> memoryview:
        """A view of the mapping, or a copy."""
        if self._map is not None:
            if self._map.size() < offset + size:  # asks the file, not the mapping
                raise self._shrunk(offset, size)
            return memoryview(self._map)[offset : offset + size]
        if self._file is None:
            raise _closed(self.name)
        data = self.read(offset, size)
        if len(data) != size:
            raise self._shrunk(offset, size)
        return memoryview(data)

    def _shrunk(self, offset: int, size: int) -> FormatError:
        return FormatError(
            Rule.BLOB_SIZE,
            offset,
            self.name,
            f"{size} bytes",
            "fewer: the file has shrunk since it was opened",
        )

    def close(self) -> None:
        """Close the file; a mapping goes as soon as no view needs it."""
        if self._file is not None:
            self._file.close()
        self._file, self._map = None, None


def open_source(path: str | os.PathLike[str], *, mapped: bool, max_stream_bytes: int) -> Source:
    """The bytes of a file; of a pipe or the like they are read to their end and kept in memory.

    Raises OSError when it cannot be opened, LimitError for more than `max_stream_bytes` from a pipe.
    """
    name = os.fspath(path)
    if stat.S_ISREG(os.stat(path).st_mode):
        return FileSource(path, name, mapped=mapped)
    with open(path, "rb") as stream:
        return read_stream(stream, name, max_stream_bytes)


def read_stream(stream: BinaryIO, name: str, limit: int) -> MemorySource:
    """The bytes from where `stream` stands to its end; raises LimitError above `limit`."""
    data = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        data += chunk
        if len(data) > limit:
            raise LimitError(
                f"{name}: expected at most {limit} bytes from a stream, got more; "
                "raise Limits.max_stream_bytes, or parse a file, of which only structures are read"
            )
        if len(data) >= WORD_BYTES and not any(data[:WORD_BYTES]):
            break  # /dev/zero and its like: no message begins so, and the parser will say it
    return MemorySource(name, data)


def _closed(name: str) -> PopefError:
    return PopefError(f"{name}: expected an open reader, got a closed one; take the data before closing it")
