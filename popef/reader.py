"""Reading PopEF files: what a program asks of the blobs that `scan.py` found."""

from __future__ import annotations

import io
import logging
import os
from typing import Any, BinaryIO

import numpy as np

from .compression import MAGIC_BYTES, Codec, Inflater, detect, inflate
from .describe import describe_blob
from .dtypes import storage_dtype
from .enums import BlobType
from .errors import LimitError, Limits, UnsupportedError
from .payloads import open_inflated, open_view
from .scan import Blob, iter_blobs
from .source import Source, open_source, read_stream
from .types import FeedDataInfo, Metadata, TensorDataInfo, TensorInfo
from .values import Number, Text

_MAX_ARRAY_BYTES = (1 << 63) - 1
"""numpy counts in signed words (npy_intp)."""

_log = logging.getLogger("popef")


class ExecutableReader:
    """One executable; the payload is read when asked for."""

    __slots__ = ("_limits", "blob", "name", "uncompressedSize")

    def __init__(self, blob: Blob, limits: Limits) -> None:
        self.blob = blob
        self._limits = limits
        self.name: Text = blob.structure.name
        self.uncompressedSize: Number = blob.structure.uncompressedSize
        """Bytes after decompression; 0 when the file does not say, which means raw."""

    @property
    def compressed(self) -> bool:
        """Whether the payload is compressed.

        Raises UnsupportedError when it is announced as compressed in no codec this package knows.
        """
        return self.codec() is not Codec.RAW

    def codec(self) -> Codec:
        """How the payload is stored; raises UnsupportedError as `compressed` does."""
        blob = self.blob
        head = bytes(blob.source.view(blob.payload_start, min(MAGIC_BYTES, blob.payload_bytes)))
        codec = detect(head, blob.payload_bytes, self.uncompressedSize)
        if codec is None:
            raise UnsupportedError(
                f"{blob.label} ({self.name!r}): expected zlib, gzip, zstd or {self.uncompressedSize} raw "
                "bytes, got something else; write the executable again with a known codec"
            )
        return codec

    def executable(self) -> memoryview:
        """The executable, read-only: a view of the file when raw, else decompressed anew on every call.

        Raises FormatError when it does not inflate to `uncompressedSize`, LimitError above
        `Limits.max_executable_bytes`, UnsupportedError for a codec that is not available.
        """
        codec = self.codec()
        return self.blob.payload() if codec is Codec.RAW else inflate(self._inflater(codec))

    def getStandaloneExecutableStream(self) -> io.BufferedReader:
        """The executable as a stream that outlives the reader; decompressed as it is read, with the errors of
        `executable`."""
        codec = self.codec()
        return open_view(self.blob.payload()) if codec is Codec.RAW else open_inflated(self._inflater(codec))

    def _inflater(self, codec: Codec) -> Inflater:
        limit = self._limits.max_executable_bytes
        if self.uncompressedSize > limit:
            raise LimitError(
                f"{self.blob.label} ({self.name!r}): expected at most {limit} bytes after decompression, "
                f"got {self.uncompressedSize}; raise Limits.max_executable_bytes if you trust the file"
            )
        return Inflater(
            self.blob.payload(), codec, self.uncompressedSize, self.blob.payload_start, self.blob.label
        )

    def __repr__(self) -> str:
        return f"ExecutableReader(name={self.name!r}, uncompressedSize={self.uncompressedSize})"


class TensorReader:
    """One tensor's data."""

    __slots__ = ("blob", "info")

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.info: TensorDataInfo = blob.structure

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor, a read-only view of the file; F8 and, without ml_dtypes, F8143 and F8152 come as uint8.

        Raises UnsupportedError for an element type this package does not know.
        """
        info = self.info.tensorInfo
        return _array(self.blob, info, info.shape)

    def getStandaloneDataStream(self) -> io.BufferedReader:
        """The raw data as a stream that outlives the reader."""
        return open_view(self.blob.payload())

    def __repr__(self) -> str:
        return f"TensorReader(info={self.info!r})"


class FeedReader:
    """One feed's data."""

    __slots__ = ("blob", "info")

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.info: FeedDataInfo = blob.structure

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """All tensors along a leading dimension of `info.numTensors`, a read-only view of the file.

        Raises UnsupportedError for an element type this package does not know.
        """
        info = self.info.tensorInfo
        return _array(self.blob, info, (self.info.numTensors, *info.shape))

    def getStandaloneDataStream(self) -> io.BufferedReader:
        """The raw data as a stream that outlives the reader."""
        return open_view(self.blob.payload())

    def __repr__(self) -> str:
        return f"FeedReader(info={self.info!r})"


class OpaqueReader:
    """One opaque blob."""

    __slots__ = ("blob", "executable", "name")

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.name: Text = blob.structure.name
        self.executable: Text = blob.structure.executable
        """Name of the executable it belongs to."""

    def data(self) -> memoryview:
        """The bytes, a read-only view of the file."""
        return self.blob.payload()

    def getAvailableReadSize(self) -> int:
        """Number of bytes."""
        return self.blob.payload_bytes

    def getStandaloneDataStream(self) -> io.BufferedReader:
        """The bytes as a stream that outlives the reader."""
        return open_view(self.blob.payload())

    def __repr__(self) -> str:
        return f"OpaqueReader(name={self.name!r}, executable={self.executable!r})"


def _array(blob: Blob, info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    dtype = storage_dtype(info.dataType())
    # numpy refuses such shapes even when another dimension is zero and no byte is needed.
    if np.prod([size for size in shape if size], dtype=object) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise LimitError(
            f"{blob.label}: expected a shape numpy can hold, got {shape}; read the blob's payload instead"
        )
    return np.frombuffer(blob.payload(), dtype).reshape(shape)


class Reader:
    """Reads any number of files and streams as if they were one; opening touches headers and structures only.

    A file that turns out to be wrong adds nothing. Views and arrays handed out stay valid after `close`.
    """

    def __init__(self, limits: Limits | None = None, *, mapped: bool = True) -> None:
        """With `mapped` payloads are views of the mapped file, which nobody may shorten or overwrite while
        they are used.

        Without, each payload is copied into memory when it is asked for: slower, and right for files that
        others write to.
        """
        self.limits = Limits() if limits is None else limits
        self._mapped = mapped
        self._sources: list[Source] = []
        self._blobs: list[Blob] = []

    def parseFile(self, path: str | os.PathLike[str]) -> None:
        """Add the blobs of a file; of a pipe or the like, which is read to its end and kept in memory.

        Raises OSError when it cannot be opened and a PopefError for anything wrong with its bytes.
        """
        self._add(open_source(path, mapped=self._mapped, max_stream_bytes=self.limits.max_stream_bytes))

    def parseStream(self, stream: BinaryIO) -> None:
        """Add the blobs of a binary stream, read from where it stands to its end and kept in memory."""
        name = str(getattr(stream, "name", "stream"))
        self._add(read_stream(stream, name, self.limits.max_stream_bytes))

    def _add(self, source: Source) -> None:
        try:
            blobs = list(iter_blobs(source, self.limits))
            source.settle()
        except BaseException:
            source.close()
            raise
        if _log.isEnabledFor(logging.DEBUG):
            for blob in blobs:
                for line in describe_blob(blob):
                    _log.debug("%s", line)
        self._sources.append(source)
        self._blobs += blobs

    def blobs(self) -> list[Blob]:
        """Every blob in file order, files in the order they were parsed."""
        return list(self._blobs)

    def executables(self) -> list[ExecutableReader]:
        """The executables."""
        return [
            ExecutableReader(blob, self.limits)
            for blob in self._blobs
            if blob.type is BlobType.POPLAR_EXECUTABLE
        ]

    def metadata(self) -> list[Metadata]:
        """The metadata."""
        return [blob.structure for blob in self._blobs if blob.type is BlobType.METADATA]

    def tensors(self) -> list[TensorReader]:
        """The tensor data."""
        return [TensorReader(blob) for blob in self._blobs if blob.type is BlobType.DATA_TENSOR]

    def feeds(self) -> list[FeedReader]:
        """The feed data."""
        return [FeedReader(blob) for blob in self._blobs if blob.type is BlobType.DATA_FEED]

    def opaqueBlobs(self) -> list[OpaqueReader]:
        """The opaque blobs."""
        return [OpaqueReader(blob) for blob in self._blobs if blob.type is BlobType.OPAQUE]

    def close(self) -> None:
        """Let go of all files; the lists are empty afterwards."""
        for source in self._sources:
            source.close()
        self._sources, self._blobs = [], []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
