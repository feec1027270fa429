"""Reader of PopEF files: access to the blobs that `scan.py` finds."""

from __future__ import annotations

import io
import logging
import os
from collections import Counter
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np

from ._tools.file_state import FileState
from .compression import BUFFER_BYTES, MAGIC_BYTES, Codec, Inflater, detect, inflate, open_view
from .enums import BlobType, storage_dtype
from .errors import LimitError, Limits, UnsupportedError
from .scan import Blob, describe_blob, iter_blobs
from .source import Source, open_source, read_stream
from .types import FeedDataInfo, Metadata, TensorDataInfo
from .values import Number, Text

AnyInfo = TypeVar("AnyInfo", bound=TensorDataInfo | FeedDataInfo)
_MAX_ARRAY_BYTES = (1 << 63) - 1
"""Maximum bytes of an array: numpy counts in signed words (npy_intp)."""

_log = logging.getLogger("popef")


class ExecutableReader:
    """Reader of one executable; the payload is read on demand."""

    __slots__ = ("_limits", "blob", "name", "uncompressedSize")

    def __init__(self, blob: Blob, limits: Limits) -> None:
        self.blob = blob
        self._limits = limits
        self.name: Text = blob.structure.name
        self.uncompressedSize: Number = blob.structure.uncompressedSize
        """Bytes after decompression; 0 if the file does not say, which means raw."""

    @property
    def compressed(self) -> bool:
        """True if the payload is compressed.

        Raises:
            UnsupportedError: if it is announced as compressed in a codec that this package does not
                know.
        """
        return self.codec() is not Codec.RAW

    def codec(self) -> Codec:
        """Return the codec of the payload.

        Returns:
            The codec, `Codec.RAW` if the payload is not compressed.

        Raises:
            UnsupportedError: as `compressed` does.
        """
        blob = self.blob
        head = bytes(blob.source.view(blob.payload_start, min(MAGIC_BYTES, blob.payload_bytes)))
        codec = detect(head, blob.payload_bytes, self.uncompressedSize)
        if codec is None:
            raise UnsupportedError(
                f"{blob.label} ({self.name!r}): expected zlib, gzip, zstd or "
                f"{self.uncompressedSize} raw "
                "bytes, got something else; write the executable again with a known codec"
            )
        return codec

    def executable(self) -> memoryview:
        """Return the executable: a view of the file if raw, otherwise decompressed on every call.

        Returns:
            The bytes, read-only.

        Raises:
            FormatError: if they do not inflate to `uncompressedSize`.
            LimitError: above `Limits.max_executable_bytes`.
            UnsupportedError: for a codec that is not available.
        """
        codec = self.codec()
        return self.blob.payload() if codec is Codec.RAW else inflate(self._inflater(codec))

    def getStandaloneExecutableStream(self) -> io.BufferedReader:
        """Return the executable as a stream that outlives the reader.

        It is decompressed while it is read, with the errors of `executable`.
        """
        codec = self.codec()
        if codec is Codec.RAW:
            return open_view(self.blob.payload())
        return io.BufferedReader(self._inflater(codec), BUFFER_BYTES)

    def _inflater(self, codec: Codec) -> Inflater:
        limit = self._limits.max_executable_bytes
        if self.uncompressedSize > limit:
            raise LimitError(
                f"{self.blob.label} ({self.name!r}): expected at most {limit} bytes after "
                f"decompression, got {self.uncompressedSize}; raise Limits.max_executable_bytes if "
                "you trust the file"
            )
        blob = self.blob
        return Inflater(
            blob.payload(), codec, self.uncompressedSize, blob.payload_start, blob.label
        )

    def __repr__(self) -> str:
        return f"ExecutableReader(name={self.name!r}, uncompressedSize={self.uncompressedSize})"


class _DataReader(Generic[AnyInfo]):
    """Reader of the data that one tensor or feed blob holds."""

    __slots__ = ("blob", "info")

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.info: AnyInfo = blob.structure

    def getStandaloneDataStream(self) -> io.BufferedReader:
        """Return the raw data as a stream that outlives the reader."""
        return open_view(self.blob.payload())

    def _array(self, *leading: int) -> np.ndarray[Any, np.dtype[Any]]:
        info = self.info.tensorInfo
        shape, dtype = (*leading, *info.shape), storage_dtype(info.dataType())
        # numpy refuses such shapes even when another dimension is zero and no byte is needed.
        count = np.prod([size for size in shape if size], dtype=object)
        if count * dtype.itemsize > _MAX_ARRAY_BYTES:
            raise LimitError(
                f"{self.blob.label}: expected a shape numpy can hold, got {shape}; read the "
                "blob's payload instead"
            )
        return np.frombuffer(self.blob.payload(), dtype).reshape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(info={self.info!r})"


class TensorReader(_DataReader[TensorDataInfo]):
    """Reader of one tensor's data."""

    __slots__ = ()

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the tensor as a read-only view of the file.

        Returns:
            An array of shape `info.tensorInfo.shape` and of the dtype of its data type. F8 and,
            without ml_dtypes, F8143 and F8152 are returned as uint8.

        Raises:
            UnsupportedError: for an element type that this package does not know.
            LimitError: for a shape that numpy cannot hold.
        """
        return self._array()


class FeedReader(_DataReader[FeedDataInfo]):
    """Reader of one feed's data."""

    __slots__ = ()

    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return all tensors along a leading dimension, as a read-only view of the file.

        Returns:
            An array of shape (`info.numTensors`, *tensor shape).

        Raises:
            UnsupportedError: for an element type that this package does not know.
            LimitError: for a shape that numpy cannot hold.
        """
        return self._array(self.info.numTensors)


class OpaqueReader:
    """Reader of one opaque blob."""

    __slots__ = ("blob", "executable", "name")

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.name: Text = blob.structure.name
        self.executable: Text = blob.structure.executable
        """Name of the executable that the blob belongs to."""

    def data(self) -> memoryview:
        """Return the bytes as a read-only view of the file."""
        return self.blob.payload()

    def getAvailableReadSize(self) -> int:
        """Return the number of bytes."""
        return self.blob.payload_bytes

    def getStandaloneDataStream(self) -> io.BufferedReader:
        """Return the bytes as a stream that outlives the reader."""
        return open_view(self.blob.payload())

    def __repr__(self) -> str:
        return f"OpaqueReader(name={self.name!r}, executable={self.executable!r})"


class Reader:
    """Reader of any number of files and streams as if they were one.

    Opening a file reads headers and structures only. An invalid file adds nothing. Views and arrays
    that were returned stay valid after `close`.

    Args:
        limits: limits on what one file may cost; None means the defaults of `Limits`.
        mapped: whether payloads are views of the mapped file, which must not be shortened or
            overwritten while they are in use. If False, each payload is copied into memory on
            demand: slower, but right for files that others write to.

    Example:
        >>> import popef
        >>> with popef.Reader() as reader:
        ...     reader.parseFile("model.popef")
        ...     for anchor in popef.ModelBuilder(reader).createModel().metadata.anchors:
        ...         print(anchor.name, anchor.type.name, anchor.tensorInfo.shape)
        x INPUT (2, 4)
        y OUTPUT (2, 4)
    """

    def __init__(self, limits: Limits | None = None, *, mapped: bool = True) -> None:
        self.limits = Limits() if limits is None else limits
        self._mapped = mapped
        self._sources: list[Source] = []
        self._blobs: list[Blob] = []

    def __repr__(self) -> str:
        kinds = Counter(blob.type.name.lower() for blob in self._blobs)
        counts = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "nothing"
        return f"<{type(self).__name__} of {len(self._sources)} file(s) with {counts}>"

    def parseFile(self, path: str | os.PathLike[str]) -> None:
        """Add the blobs of a file; a pipe or the like is read to its end and kept in memory.

        Args:
            path: path of the PopEF file.

        Raises:
            OSError: if the file cannot be opened.
            PopefError: for anything wrong with its bytes.
        """
        self._add(
            open_source(path, mapped=self._mapped, max_stream_bytes=self.limits.max_stream_bytes)
        )

    def parseStream(self, stream: BinaryIO) -> None:
        """Add the blobs of a binary stream, read from its position to its end and kept in memory.

        Args:
            stream: the open binary stream.

        Raises:
            PopefError: for anything wrong with its bytes.
        """
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

    def fileStates(self) -> list[FileState | None]:
        """Return the states of the files, in their order, when they were opened; None for a stream.

        A program that opens a file again compares them to see whether it is the same one.

        Returns:
            The state of each file or stream.
        """
        return [source.state for source in self._sources]

    def blobs(self) -> list[Blob]:
        """Return all blobs in file order, files in the order in which they were parsed."""
        return list(self._blobs)

    def executables(self) -> list[ExecutableReader]:
        """Return a reader for each executable."""
        blobs = self._of(BlobType.POPLAR_EXECUTABLE)
        return [ExecutableReader(blob, self.limits) for blob in blobs]

    def metadata(self) -> list[Metadata]:
        """Return the metadata of each metadata blob."""
        return [blob.structure for blob in self._of(BlobType.METADATA)]

    def tensors(self) -> list[TensorReader]:
        """Return a reader for each tensor data blob."""
        return [TensorReader(blob) for blob in self._of(BlobType.DATA_TENSOR)]

    def feeds(self) -> list[FeedReader]:
        """Return a reader for each feed data blob."""
        return [FeedReader(blob) for blob in self._of(BlobType.DATA_FEED)]

    def opaqueBlobs(self) -> list[OpaqueReader]:
        """Return a reader for each opaque blob."""
        return [OpaqueReader(blob) for blob in self._of(BlobType.OPAQUE)]

    def _of(self, kind: BlobType) -> list[Blob]:
        return [blob for blob in self._blobs if blob.type is kind]

    def close(self) -> None:
        """Close all files; the lists are empty afterwards."""
        for source in self._sources:
            source.close()
        self._sources, self._blobs = [], []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
