"""Writer of PopEF files: payloads are streamed, headers are corrected afterwards, and files appear
atomically."""

from __future__ import annotations

import copy
import os
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum, auto
from functools import partial
from typing import Any, BinaryIO, TypeVar

import numpy as np

from .codec import encode
from .enums import BlobType
from .errors import PopefError
from .reader import Reader
from .record import Record
from .scan import Blob
from .sink import Sink
from .types import BlobHeader, Executable, FeedDataInfo, Metadata, OpaqueBlob, TensorDataInfo

AnyPartWriter = TypeVar("AnyPartWriter", bound="_PartWriter")

_HEADER_BYTES = len(encode(BlobHeader()))
_COPY_BYTES = 1 << 20
"""Bytes that are copied at a time."""


class _PartWriter(ABC):
    """Part of a file that a `Writer` is writing; an exception in its with statement spoils the
    file."""

    _sink: Sink

    @abstractmethod
    def close(self) -> None:
        """Finish the part."""

    def __enter__(self: AnyPartWriter) -> AnyPartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._sink.spoil()


class BlobWriter(_PartWriter):
    """Writer of the payload of one blob; made by a `Writer`, whose next call finishes it."""

    def __init__(
        self, sink: Sink, kind: BlobType, structure: Record, *, compress: bool = False
    ) -> None:
        self._sink = sink
        self._kind = kind
        self._structure = structure
        self._compressor = zlib.compressobj() if compress else None
        self._expected_bytes = _payload_bytes(structure)
        self._raw_bytes = 0
        self._payload_bytes = 0
        # A head whose sizes are known is written once. Otherwise it is written again when the blob
        # is finished.
        self._final = self._expected_bytes is not None
        head = _head(kind, structure, self._expected_bytes or 0)
        sink.begin(self)
        self._start = sink.put_head(head, final=self._final)

    @property
    def stream(self) -> BlobWriter:
        """Stream for the payload, by its name in C++; functions that take a binary file, such as
        pickle.dump, accept it."""
        return self

    def write(self, data: Any, length: int | None = None) -> int:
        """Append the first `length` bytes of `data`.

        Args:
            data: bytes-like, or a numpy array.
            length: number of bytes to write; None means all.

        Returns:
            The number of bytes that were appended.

        Raises:
            PopefError: if the blob is closed, or would exceed the size that its info announces.
        """
        self._sink.require(self)
        raw = _as_bytes(data)
        if length is not None:
            if not 0 <= length <= len(raw):
                raise PopefError(
                    f"write: expected a length of 0 to {len(raw)}, got {length}; pass that much "
                    "data"
                )
            raw = raw[:length]
        self._check(self._raw_bytes + len(raw), whole=False)
        if not len(raw):
            return 0  # compressing no bytes would still emit a codec's header
        self._raw_bytes += len(raw)
        self._put(raw if self._compressor is None else self._compressor.compress(raw))
        return len(raw)

    def close(self) -> None:
        """Finish the blob; do nothing if it is already finished.

        Raises:
            PopefError: if the payload does not have the size that the info announces. The file is
                then spoiled.
        """
        if not self._sink.is_writing(self):
            return
        if self._final:
            self._check(self._raw_bytes, whole=True)
            self._sink.finish()
            return
        # An empty executable stays raw: an uncompressedSize of 0 means "not compressed".
        if self._compressor is not None and self._raw_bytes:
            self._put(self._compressor.flush())
        self._settle_structure()
        self._sink.replace_head(
            self._start, _head(self._kind, self._structure, self._payload_bytes)
        )

    def _put(self, data: bytes | memoryview) -> None:
        self._sink.put(data)
        self._payload_bytes += len(data)

    def _check(self, size: int, *, whole: bool) -> None:
        expected = self._expected_bytes
        if expected is None or size == expected or (size < expected and not whole):
            return
        self._sink.spoil()
        raise PopefError(
            f"{_name(self._structure)}: expected {expected} bytes of data, got {size}; write what "
            "its info announces"
        )

    def _settle_structure(self) -> None:
        structure = self._structure
        if isinstance(structure, Executable) and self._compressor is not None:
            structure.uncompressedSize = self._raw_bytes
        if isinstance(structure, FeedDataInfo) and self._raw_bytes:
            item = structure.tensorInfo.sizeInBytes()
            if item == 0 or self._raw_bytes % item:
                self._sink.spoil()
                raise PopefError(
                    f"{_name(structure)}: expected a multiple of {item} bytes, got "
                    f"{self._raw_bytes}; write whole tensors"
                )
            structure.numTensors = self._raw_bytes // item


class MultiFeedWriter(_PartWriter):
    """Writer of several feeds at once, one tensor of each at a time, the way data sets are read;
    made by a `Writer`.

    A feed is one blob, so the tensors wait in temporary files beside the file until `close` writes
    feed after feed.
    """

    def __init__(self, sink: Sink, infos: Iterable[FeedDataInfo]) -> None:
        self._sink = sink
        self._infos = [copy.deepcopy(info) for info in infos]
        self._spools = [sink.make_spool() for _ in self._infos]
        sink.begin(self)

    def write(self, *tensors: Any) -> None:
        """Append one tensor to each feed, in the order of the infos.

        Args:
            tensors: anything bytes-like, or numpy arrays.

        Raises:
            PopefError: before anything is written, for another number of tensors or another size.
        """
        self._sink.require(self)
        if len(tensors) != len(self._infos):
            raise PopefError(
                f"write: expected {len(self._infos)} tensors, one for each feed, got "
                f"{len(tensors)}; pass them all"
            )
        views = [_as_bytes(tensor) for tensor in tensors]
        for info, view in zip(self._infos, views, strict=True):
            if len(view) != info.tensorInfo.sizeInBytes():
                expected = f"{info.tensorInfo.sizeInBytes()} bytes per tensor"
                raise PopefError(
                    f"{_name(info)}: expected {expected}, got {len(view)}; write what its info "
                    "announces"
                )
        for spool, view in zip(self._spools, views, strict=True):
            spool.write(view)

    def close(self) -> None:
        """Write the feeds; do nothing if that is already done.

        Raises PopefError, and spoils the file, if a feed has fewer or more tensors than its info
        announces.
        """
        if not self._sink.is_writing(self):
            return
        self._sink.finish()
        for info, spool in zip(self._infos, self._spools, strict=True):
            with BlobWriter(self._sink, BlobType.DATA_FEED, info) as blob, spool:
                spool.seek(0)
                shutil.copyfileobj(spool, blob, _COPY_BYTES)


class Writer:
    """Writer of one PopEF file, to a path or to a binary file object.

    A path appears, complete, at `close`. After an error, or if the writer is dropped, nothing has
    changed. Equal calls produce equal bytes.

    Args:
        file: path of the file to write, or a binary file object.

    Example:
        >>> import numpy as np
        >>> import popef
        >>> values = np.zeros((2, 3), np.float32)
        >>> shape = popef.TensorInfo(shape=values.shape, dataType=popef.DataType.F32)
        >>> info = popef.TensorDataInfo(name="w", tensorInfo=shape)
        >>> with popef.Writer("weights.popef") as writer:
        ...     with writer.createTensorData(info) as blob:
        ...         blob.write(values)
        24
    """

    def __init__(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        self._sink = Sink(file)
        self._executables: set[str] = set()

    def write(self, metadata: Metadata) -> None:
        """Append a metadata blob."""
        BlobWriter(self._sink, BlobType.METADATA, metadata).close()

    def writeMetadata(self, metadata: Metadata) -> None:
        """Append a metadata blob; the Python name of `write`."""
        self.write(metadata)

    def createExecutable(self, name: str, compress: bool = False) -> BlobWriter:
        """Begin an executable.

        Args:
            name: name of the executable; must not be empty or be used by another one in the file.
            compress: whether to compress the payload with zlib.

        Returns:
            The writer of the payload. Use it in a `with`, or let the next call finish it.

        Raises:
            PopefError: if the name is empty or used already.
        """
        if not name:
            raise PopefError(
                "createExecutable: expected a name, got an empty one; metadata refers to it by name"
            )
        self._take_name("createExecutable", name)
        return BlobWriter(
            self._sink, BlobType.POPLAR_EXECUTABLE, Executable(name=name), compress=compress
        )

    def createTensorData(self, info: TensorDataInfo) -> BlobWriter:
        """Begin a tensor; exactly `info.tensorInfo.sizeInBytes()` bytes must follow.

        Args:
            info: name, shape and type of the tensor.

        Returns:
            The writer of the data.
        """
        return BlobWriter(self._sink, BlobType.DATA_TENSOR, info)

    def createFeedData(self, info: FeedDataInfo) -> BlobWriter:
        """Begin a feed; `info.numTensors` tensors must follow, or any number if that is 0.

        Args:
            info: name, shape, type and number of the tensors.

        Returns:
            The writer of the data.
        """
        return BlobWriter(self._sink, BlobType.DATA_FEED, copy.deepcopy(info))

    def createMultiFeedData(self, infos: Iterable[FeedDataInfo]) -> MultiFeedWriter:
        """Begin several feeds that are written side by side.

        The method's name is this package's; the real one is not public.

        Args:
            infos: one entry for each feed, in the order of the tensors of `MultiFeedWriter.write`.

        Returns:
            The writer of all the feeds.
        """
        return MultiFeedWriter(self._sink, infos)

    def createOpaqueBlob(self, name: str, executable: str) -> BlobWriter:
        """Begin an opaque blob.

        Args:
            name: name that tells which framework wrote the data.
            executable: name of the executable that the blob belongs to.

        Returns:
            The writer of the data.
        """
        return BlobWriter(self._sink, BlobType.OPAQUE, OpaqueBlob(name=name, executable=executable))

    def copyBlob(self, blob: Blob) -> None:
        """Append a blob of a reader byte by byte.

        Args:
            blob: the blob to copy.

        Raises:
            PopefError: for an executable whose name is used already.
        """
        if isinstance(blob.structure, Executable):
            self._take_name("copyBlob", blob.structure.name)
        self._sink.copy(blob.chunks())

    def close(self) -> None:
        """Finish the current blob and make the file appear; do nothing on the second call.

        Raises:
            PopefError: if an earlier error spoiled the file, which then does not appear.
        """
        self._sink.close()

    def discard(self) -> None:
        """Cancel: a path stays unchanged; data already in a file object stays there."""
        self._sink.discard()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _take_name(self, call: str, name: str) -> None:
        if name in self._executables:
            raise PopefError(
                f"{call}: expected a new name, got {name!r} again; rename one of the executables"
            )
        self._executables.add(str(name))


class FileWriter(Writer):
    """A `Writer` for a path that can also append: the old file is copied, and replaced at
    `close`."""

    class Mode(Enum):
        """Treatment of a file that exists already."""

        APPEND = auto()
        TRUNCATE = auto()

    def __init__(self, filename: str | os.PathLike[str], mode: Mode = Mode.TRUNCATE) -> None:
        """Open `filename`; appending to a file that is not valid PopEF raises its PopefError."""
        names = set()
        append = mode is FileWriter.Mode.APPEND and os.path.exists(filename)
        if append:
            with Reader() as reader:
                reader.parseFile(filename)
                names = {str(executable.name) for executable in reader.executables()}
        super().__init__(filename)
        self._executables = names
        if append:
            with open(filename, "rb") as old:
                self._sink.copy(iter(partial(old.read, _COPY_BYTES), b""))


def _head(kind: BlobType, structure: Record, payload_bytes: int) -> bytes:
    message = encode(structure)
    return (
        encode(BlobHeader(type=kind, size=_HEADER_BYTES + len(message) + payload_bytes)) + message
    )


def _name(structure: Record) -> str:
    """Return the name of a structure for errors, escaped."""
    return repr(str(getattr(structure, "name", "")))


def _payload_bytes(structure: Record) -> int | None:
    if isinstance(structure, TensorDataInfo):
        return structure.tensorInfo.sizeInBytes()
    if isinstance(structure, FeedDataInfo) and structure.numTensors:
        return structure.sizeInBytes()
    return 0 if isinstance(structure, Metadata) else None


def _as_bytes(data: Any) -> memoryview:
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
