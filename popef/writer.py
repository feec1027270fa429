"""Writes PopEF files: deterministic, streaming, and whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from popef.codec import Values, encode
from popef.enums import BlobType, enumerant
from popef.errors import PopefError
from popef.schema import BLOB_HEADER, PAYLOAD_STRUCTURE
from popef.types import FeedDataInfo, Metadata, TensorDataInfo

Buffer = bytes | bytearray | memoryview


class BlobWriter:
    """Streams the payload of one blob. Only the writer's newest is live; using an older one raises PopefError."""

    def __init__(
        self, sink: BinaryIO, kind: BlobType, values: Values, *, size: int | None = None, compress: bool = False
    ) -> None:
        self._sink = sink
        self._kind = kind
        self._values = values
        self._expected = size
        self._deflater = zlib.compressobj() if compress else None
        self._written = 0
        self._open = True
        self._start = sink.tell()
        self._write_head(0)

    def write(self, data: Buffer, length: int | None = None) -> None:
        """Append bytes (the first `length` of them) to the payload."""
        self._require_open()
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        view = view if length is None else view[:length]
        self._written += len(view)
        self._sink.write(self._deflater.compress(view) if self._deflater is not None else view)

    def close(self) -> None:
        """End the blob and fill in its size. PopefError if a tensor's payload has not the size its info says."""
        if not self._open:
            return
        self._open = False
        if self._expected is not None and self._written != self._expected:
            raise PopefError(
                f"{enumerant(self._kind)} blob {self._values.get('name', '')!r}: expected a payload of {self._expected} "
                f"bytes, {self._written} were written"
            )
        if self._deflater is not None:
            self._sink.write(self._deflater.flush())
            self._values = {**self._values, "uncompressedSize": self._written}
        end = self._sink.tell()
        self._sink.seek(self._start)
        self._write_head(end - self._start)
        self._sink.seek(end)

    @property
    def is_open(self) -> bool:
        return self._open

    def abandon(self) -> None:
        """End the blob without filling in anything: the file is thrown away."""
        self._open = False

    def _write_head(self, size: int) -> None:
        self._sink.write(encode(BLOB_HEADER, {"version": "", "type": self._kind, "size": size}))
        self._sink.write(encode(PAYLOAD_STRUCTURE[self._kind], self._values))

    def _require_open(self) -> None:
        if not self._open:
            raise PopefError(
                f"this {enumerant(self._kind)} blob writer is closed: only the newest blob writer of a file is live"
            )

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._require_open()
            self.close()
        else:
            self.abandon()


class Writer:
    """Writes the blobs of one file, in the order of the calls.

    `target` is a path, written as a temporary file beside it that takes its name on `close`, or a seekable binary file.
    Leaving a `with` block by an exception leaves an existing file as it was.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        self._path: Path | None = None
        self._live: BlobWriter | None = None
        if isinstance(target, str | os.PathLike):
            self._path = Path(target)
            descriptor, temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            self._temporary = Path(temporary)
            self._sink: Any = os.fdopen(descriptor, "w+b")
        else:
            self._sink = target
        self._closed = False

    def write(self, metadata: Metadata) -> None:
        """Write a metadata blob."""
        self._new(BlobType.METADATA, metadata.values(), size=0).close()

    writeMetadata = write

    def createExecutable(self, name: str, compress: bool = False) -> BlobWriter:
        """A blob for an executable; its name links it to metadata and must not be empty."""
        if not name:
            raise PopefError("an executable needs a name, by which metadata and opaque blobs refer to it")
        return self._new(BlobType.POPLAR_EXECUTABLE, {"name": name, "uncompressedSize": 0}, compress=compress)

    def createTensorData(self, info: TensorDataInfo) -> BlobWriter:
        """A blob for one tensor; its payload must have the size of its info."""
        return self._new(BlobType.DATA_TENSOR, info.values(), size=info.tensorInfo().sizeInBytes())

    def createFeedData(self, info: FeedDataInfo) -> BlobWriter:
        """A blob for `numTensors` tensors."""
        size = info.numTensors() * info.tensorInfo().sizeInBytes()
        return self._new(BlobType.DATA_FEED, info.values(), size=size)

    def createOpaqueBlob(self, name: str, executable: str) -> BlobWriter:
        """A blob of private data, linked to an executable by its name."""
        return self._new(BlobType.OPAQUE, {"name": name, "executable": executable})

    def close(self) -> None:
        """End the last blob and put the file in place."""
        if self._closed:
            return
        try:
            self._end_live()
        except PopefError:
            self.discard()
            raise
        self._closed = True
        if self._path is not None:
            self._sink.close()
            self._temporary.chmod(0o666 & ~_umask())
            self._temporary.replace(self._path)

    def discard(self) -> None:
        """Throw away what was written; an existing file stays as it was."""
        if not self._closed and self._path is not None:
            self._sink.close()
            self._temporary.unlink(missing_ok=True)
        self._closed = True

    def _new(self, kind: BlobType, values: Values, *, size: int | None = None, compress: bool = False) -> BlobWriter:
        if self._closed:
            raise PopefError("the writer is closed")
        self._end_live()
        self._live = BlobWriter(self._sink, kind, values, size=size, compress=compress)
        return self._live

    def _end_live(self) -> None:
        if self._live is not None and self._live.is_open:
            self._live.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
