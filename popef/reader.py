"""Reading PopEF files: what a program asks of the blobs that `scan.py` found."""

from __future__ import annotations

import os
import stat
from typing import Any, BinaryIO

import numpy as np

from .compression import Codec, detect, inflate
from .dtypes import storage_dtype
from .enums import BlobType
from .errors import LimitError, Limits, UnsupportedError
from .scan import Blob, iter_blobs
from .source import FileSource, MemorySource, Source
from .types import FeedDataInfo, Metadata, TensorDataInfo, TensorInfo

_MAX_ARRAY_BYTES = (1 << 63) - 1


class ExecutableReader:
    """One executable; the payload is read when asked for."""

    def __init__(self, blob: Blob, limits: Limits) -> None:
        self._blob = blob
        self._limits = limits
        self.name: str = blob.structure.name()
        self.uncompressedSize: int = blob.structure.uncompressedSize()
        """Bytes after decompression; 0 when the file does not say, which means raw."""

    @property
    def compressed(self) -> bool:
        """Whether the payload is compressed.

        Raises UnsupportedError when it is announced as compressed in no codec this package knows.
        """
        return self._codec() is not Codec.RAW

    def executable(self) -> memoryview:
        """The executable, read-only: a view of the file when raw, else decompressed anew on every call.

        Raises FormatError when it does not inflate to `uncompressedSize`, LimitError above
        `Limits.max_executable_bytes`, UnsupportedError for a codec that is not available.
        """
        payload, codec = self._blob.payload(), self._codec()
        if codec is Codec.RAW:
            return payload
        limit = self._limits.max_executable_bytes
        if self.uncompressedSize > limit:
            raise LimitError(
                f"{self._blob.label} ({self.name}): expected at most {limit} bytes after decompression, "
                f"got {self.uncompressedSize}; raise Limits.max_executable_bytes if you trust the file"
            )
        return inflate(payload, codec, self.uncompressedSize, self._blob.payload_start, self._blob.label)

    def _codec(self) -> Codec:
        codec = detect(self._blob.payload(), self.uncompressedSize)
        if codec is None:
            raise UnsupportedError(
                f"{self._blob.label} ({self.name}): expected zlib, gzip, zstd or {self.uncompressedSize} raw bytes, "
                "got something else; write the executable again with a known codec"
            )
        return codec

    def __repr__(self) -> str:
        return f"ExecutableReader(name={self.name!r}, uncompressedSize={self.uncompressedSize})"


class TensorReader:
    """One tensor's data."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.info: TensorDataInfo = blob.structure

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor, a read-only view of the file; F8 and, without ml_dtypes, F8143 and F8152 come as uint8."""
        info = self.info.tensorInfo()
        return _array(self._blob, info, info.shape())

    def __repr__(self) -> str:
        return f"TensorReader(info={self.info!r})"


class FeedReader:
    """One feed's data."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.info: FeedDataInfo = blob.structure

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """All tensors along a leading dimension of `info.numTensors()`, a read-only view of the file."""
        info = self.info.tensorInfo()
        return _array(self._blob, info, (self.info.numTensors(), *info.shape()))

    def __repr__(self) -> str:
        return f"FeedReader(info={self.info!r})"


class OpaqueReader:
    """One opaque blob."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.name: str = blob.structure.name()
        self.executable: str = blob.structure.executable()
        """Name of the executable it belongs to."""

    def data(self) -> memoryview:
        """The bytes, a read-only view of the file."""
        return self._blob.payload()

    def __repr__(self) -> str:
        return f"OpaqueReader(name={self.name!r}, executable={self.executable!r})"


def _array(blob: Blob, info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    dtype = storage_dtype(info.dataType())
    # numpy refuses such shapes even when another dimension is zero and no byte is needed.
    if np.prod([size for size in shape if size], dtype=object) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise LimitError(f"{blob.label}: expected a shape numpy can hold, got {shape}; read the blob's payload instead")
    return np.frombuffer(blob.payload(), dtype).reshape(shape)


class Reader:
    """Reads any number of files and streams as if they were one; opening touches headers and structures only.

    A file that turns out to be wrong adds nothing. Views and arrays handed out stay valid after `close`.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self._sources: list[Source] = []
        self._blobs: list[Blob] = []

    def parseFile(self, path: str | os.PathLike[str]) -> None:
        """Add the blobs of a file.

        Raises OSError when it cannot be opened and a PopefError for anything wrong with its bytes.
        """
        name = os.fspath(path)
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                self._add(MemorySource(name, file.read()))
                return
            source = FileSource(file, name, status.st_size)
            blobs = list(iter_blobs(source, self.limits))
            source.release()
        self._sources.append(source)
        self._blobs += blobs

    def parseStream(self, stream: BinaryIO) -> None:
        """Add the blobs of a binary stream, read from where it stands to its end and kept in memory."""
        self._add(MemorySource(str(getattr(stream, "name", "stream")), stream.read()))

    def _add(self, source: Source) -> None:
        blobs = list(iter_blobs(source, self.limits))
        self._sources.append(source)
        self._blobs += blobs

    def blobs(self) -> list[Blob]:
        """Every blob in file order, files in the order they were parsed."""
        return list(self._blobs)

    def executables(self) -> list[ExecutableReader]:
        """The executables."""
        return [ExecutableReader(blob, self.limits) for blob in self._of(BlobType.POPLAR_EXECUTABLE)]

    def metadata(self) -> list[Metadata]:
        """The metadata."""
        return [blob.structure for blob in self._of(BlobType.METADATA)]

    def tensors(self) -> list[TensorReader]:
        """The tensor data."""
        return [TensorReader(blob) for blob in self._of(BlobType.DATA_TENSOR)]

    def feeds(self) -> list[FeedReader]:
        """The feed data."""
        return [FeedReader(blob) for blob in self._of(BlobType.DATA_FEED)]

    def opaqueBlobs(self) -> list[OpaqueReader]:
        """The opaque blobs."""
        return [OpaqueReader(blob) for blob in self._of(BlobType.OPAQUE)]

    def _of(self, kind: BlobType) -> list[Blob]:
        return [blob for blob in self._blobs if blob.header.type() is kind]

    def close(self) -> None:
        """Let go of all files; the lists are empty afterwards."""
        for source in self._sources:
            source.close()
        self._sources, self._blobs = [], []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
