"""Sources of a file's bytes: a file, mapped or read in chunks, or bytes already in memory."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import BinaryIO, Protocol

from ._tools.file_state import FileState
from .errors import FormatError, LimitError, PopefError, Rule
from .wire import WORD_BYTES

CHUNK_BYTES = 1 << 20
"""Bytes that are read at a time from a stream without a size."""


class Source(Protocol):
    """Random access to the bytes of one file or stream."""

    name: str
    size: int
    state: FileState | None
    """State of the file when it was opened; None for bytes that are in no file."""

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of at most `size` bytes; fewer if the file has shrunk."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return read-only bytes that stay valid after `close`.

        Raises FormatError if the file no longer has them.
        """

    def settle(self) -> None:
        """Prepare for the phase in which only payloads are read."""

    def check(self) -> None:
        """Raise PopefError if views show other bytes than those that were read, because the file
        was written to.

        The check reads none of the bytes.
        """

    def release_pages(self) -> None:
        """Take the bytes out of this process's memory; views read them again when they are used."""

    def close(self) -> None:
        """Release the bytes; existing views keep theirs alive."""


class MemorySource:
    """Bytes in memory, such as those read from a stream."""

    def __init__(self, name: str, data: bytes | bytearray) -> None:
        self.name = name
        self.size = len(data)
        self.state: FileState | None = None
        self._data: memoryview | None = memoryview(data).toreadonly()

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of at most `size` bytes."""
        return bytes(self.view(offset, size))

    def view(self, offset: int, size: int) -> memoryview:
        """Return a view without copying."""
        if self._data is None:
            raise _closed(self.name)
        return self._data[offset : offset + size]

    def settle(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def release_pages(self) -> None:
        """Do nothing: there is no file to read them from again."""

    def close(self) -> None:
        """Release the bytes."""
        self._data = None


class FileSource:
    """A regular file. Structures are copied with pread, which cannot fault; payloads are copied
    too, or are views of a mapping.

    A mapped file that shrinks is rejected when the next payload is read. Touching a payload
    returned earlier then faults, as with every mapping. Replace files by renaming, as `Writer`
    does; readers then keep the old file. Callers that keep payloads for long call `check` before
    each use.
    """

    def __init__(self, path: str | os.PathLike[str], name: str, *, mapped: bool) -> None:
        self.name = name
        self._file: BinaryIO | None = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._descriptor = self._file.fileno()
        self.state: FileState | None = FileState.of(self._descriptor)
        self.size = self.state.size
        self._mapped = mapped
        self._kept: int | None = None
        """Descriptor of the mapped file."""
        self._map: mmap.mmap | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of at most `size` bytes."""
        if self._file is None:
            return bytes(self.view(offset, size))
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        # A single pread gives at most 2 GiB, and less at the end of a file.
        return data + self.read(offset + len(data), size - len(data))

    def settle(self) -> None:
        """Map the file, if requested, and close the descriptor."""
        if self._mapped and self.size and self._file is not None:
            if os.fstat(self._descriptor).st_size < self.size:
                raise self._shrunk(0, self.size)
            self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            self._kept = os.dup(self._descriptor)
            self._release = weakref.finalize(self, os.close, self._kept)
            self._release.atexit = False  # code that runs at exit may still call check
            self._file.close()
            self._file = None

    def check(self) -> None:
        """Raise PopefError if the size or the time of the last change differs from that at opening.

        Copies stay valid. See Source.
        """
        if self._kept is None:
            return
        current, state = os.fstat(self._kept), self.state
        assert state is not None
        if current.st_mtime_ns != state.modified_ns or current.st_size != state.size:
            changed = FileState.of(self._kept)
            raise PopefError(
                f"{self.name}: expected the file as it was opened ({state}), found that it was "
                f"modified in place ({changed}); replace files by renaming, and load "
                "the model again"
            )

    def release_pages(self) -> None:
        """Let go of the mapping's pages, which the system keeps as long as it has the memory."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def view(self, offset: int, size: int) -> memoryview:
        """Return a view of the mapping, or a copy."""
        if self._map is not None:
            if self._map.size() < offset + size:  # size of the file, not of the mapping
                raise self._shrunk(offset, size)
            return memoryview(self._map)[offset : offset + size]
        if self._file is None:
            raise _closed(self.name)
        data = self.read(offset, size)
        if len(data) != size:
            raise self._shrunk(offset, size)
        return memoryview(data)

    def _shrunk(self, offset: int, size: int) -> FormatError:
        got = "fewer: the file has shrunk since it was opened"
        return FormatError(Rule.BLOB_SIZE, offset, self.name, f"{size} bytes", got)

    def close(self) -> None:
        """Close the file; a mapping is released when no view needs it."""
        if self._file is not None:
            self._file.close()
        if self._kept is not None:
            self._release()
        self._file, self._map, self._kept = None, None, None


def open_source(path: str | os.PathLike[str], *, mapped: bool, max_stream_bytes: int) -> Source:
    """Open the bytes of a file; a pipe or the like is read to its end and kept in memory.

    Raises OSError if it cannot be opened, and LimitError for more than `max_stream_bytes` from a
    pipe.
    """
    name = os.fspath(path)
    if stat.S_ISREG(os.stat(path).st_mode):
        return FileSource(path, name, mapped=mapped)
    with open(path, "rb") as stream:
        return read_stream(stream, name, max_stream_bytes)


def read_stream(stream: BinaryIO, name: str, limit: int) -> MemorySource:
    """Read `stream` from its position to its end; raises LimitError above `limit`."""
    data = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        data += chunk
        if len(data) > limit:
            raise LimitError(
                f"{name}: expected at most {limit} bytes from a stream, got more; "
                "raise Limits.max_stream_bytes, or parse a file, of which only structures are read"
            )
        if len(data) >= WORD_BYTES and not any(data[:WORD_BYTES]):
            break  # such as /dev/zero: no message begins with zeros, and the parser raises
    return MemorySource(name, data)


def _closed(name: str) -> PopefError:
    return PopefError(
        f"{name}: expected an open reader, got a closed one; take the data before closing it"
    )
