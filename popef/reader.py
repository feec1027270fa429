"""Reads PopEF files: maps them, hops from header to header, and hands out payloads as views.

Opening touches headers and structures only. A payload is checked when it is asked for.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from popef.codec import Values, decode_message
from popef.dtypes import storage_dtype
from popef.enums import BlobType, enumerant
from popef.errors import FormatError, LimitError, Limits, PopefError, UnsupportedError
from popef.schema import BLOB_HEADER, PAYLOAD_STRUCTURE
from popef.types import FeedDataInfo, Metadata, TensorDataInfo, TensorInfo, from_values

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob as it lies in its source: header, structure and payload one after the other, up to `end`."""

    source: str
    start: int
    structure_start: int
    payload_start: int
    end: int
    version: str
    type: BlobType
    values: Values
    payload: memoryview


class ExecutableReader:
    """A Poplar executable of the file."""

    def __init__(self, blob: Blob, limits: Limits) -> None:
        self._blob = blob
        self._limits = limits
        self.name: str = blob.values["name"]
        self.uncompressedSize: int = blob.values["uncompressedSize"]

    @property
    def compressed(self) -> bool:
        return self.uncompressedSize > 0

    def executable(self) -> memoryview:
        """The executable's bytes: a view of the file, or inflated where it is compressed.

        Raises FormatError for data that does not inflate to `uncompressedSize`, LimitError beyond the reader's limit,
        UnsupportedError for a codec that is not to be had.
        """
        payload = self._blob.payload
        if not self.compressed:
            return payload
        limit = self._limits.max_executable_bytes
        if self.uncompressedSize > limit:
            raise LimitError(
                f"{self._blob.source}: executable {self.name!r}: expected at most {limit} bytes uncompressed, got "
                f"{self.uncompressedSize}; raise Limits.max_executable_bytes if you trust the file"
            )
        return memoryview(self._inflate(payload))

    def _inflate(self, payload: memoryview) -> bytes:
        if bytes(payload[:4]) == ZSTD_MAGIC:
            raise UnsupportedError(
                f"{self._blob.source}: executable {self.name!r} is compressed with zstd; recompress it with zlib"
            )
        try:
            inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: zlib or gzip, after the magic
            data = inflater.decompress(payload, self.uncompressedSize + 1)
        except zlib.error as error:
            raise self._broken("zlib or gzip data", str(error)) from error
        if len(data) != self.uncompressedSize or not inflater.eof:
            size = f"{len(data)} bytes" + ("" if inflater.eof else " and no end")
            raise self._broken(f"{self.uncompressedSize} bytes", size)
        return data

    def _broken(self, expected: str, got: str) -> FormatError:
        label = f"{self._blob.source}: executable {self.name!r}"
        return FormatError(self._blob.payload_start, label, expected, got)


class TensorReader:
    """The data of one tensor, usually a weight."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.info: TensorDataInfo = from_values(TensorDataInfo.SCHEMA, blob.values)

    def data(self) -> npt.NDArray[Any]:
        """A read-only view of the file in the tensor's shape and dtype; FormatError if the payload has another size."""
        info = self.info.tensorInfo()
        return _view(self._blob, info, info.sizeInBytes()).reshape(info.shape())


class FeedReader:
    """Many tensors for one input anchor."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.info: FeedDataInfo = from_values(FeedDataInfo.SCHEMA, blob.values)

    def data(self) -> npt.NDArray[Any]:
        """A read-only view of shape (numTensors, *shape)."""
        info = self.info.tensorInfo()
        count = self.info.numTensors()
        return _view(self._blob, info, count * info.sizeInBytes()).reshape(count, *info.shape())


class OpaqueReader:
    """Private data of a framework, linked to an executable by name."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self.name: str = blob.values["name"]
        self.executable: str = blob.values["executable"]

    def data(self) -> memoryview:
        """The payload, a view of the file."""
        return self._blob.payload


def _view(blob: Blob, info: TensorInfo, expected: int) -> npt.NDArray[Any]:
    if len(blob.payload) != expected:
        label = f"{blob.source}: {enumerant(blob.type)} {blob.values['name']!r}"
        wanted = f"a payload of {expected} bytes for {info.dataType().name} of shape {list(info.shape())}"
        raise FormatError(blob.payload_start, label, wanted, f"{len(blob.payload)} bytes")
    array = np.frombuffer(blob.payload, dtype=storage_dtype(info.dataType()))
    array.flags.writeable = False
    return array


class Reader:
    """All blobs of one or several files or streams. Payload views stay valid as long as they are referenced.

    `limits` bounds the time and memory that a file may cost.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._blobs: list[Blob] = []

    def parseFile(self, path: str | os.PathLike[str]) -> None:
        """Add the blobs of a file. OSError if it cannot be opened, PopefError naming it if it is no PopEF."""
        name = os.fspath(path)
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise FormatError(0, name, "at least one blob", "an empty file")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._add(memoryview(mapped), name)

    def parseStream(self, stream: BinaryIO) -> None:
        """Add the blobs of a binary stream, read to its end."""
        data = stream.read()
        self._add(memoryview(data), str(getattr(stream, "name", "stream")))

    def blobs(self) -> list[Blob]:
        """Every blob in the order of its source."""
        return list(self._blobs)

    def executables(self) -> list[ExecutableReader]:
        return [ExecutableReader(blob, self._limits) for blob in self._of(BlobType.POPLAR_EXECUTABLE)]

    def metadata(self) -> list[Metadata]:
        return [from_values(Metadata.SCHEMA, blob.values) for blob in self._of(BlobType.METADATA)]

    def tensors(self) -> list[TensorReader]:
        return [TensorReader(blob) for blob in self._of(BlobType.DATA_TENSOR)]

    def feeds(self) -> list[FeedReader]:
        return [FeedReader(blob) for blob in self._of(BlobType.DATA_FEED)]

    def opaqueBlobs(self) -> list[OpaqueReader]:
        return [OpaqueReader(blob) for blob in self._of(BlobType.OPAQUE)]

    def close(self) -> None:
        """Forget all blobs; the mappings go with the last view."""
        self._blobs = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _of(self, kind: BlobType) -> Iterator[Blob]:
        return (blob for blob in self._blobs if blob.type is kind)

    def _add(self, data: memoryview, source: str) -> None:
        try:
            self._blobs += list(iter_blobs(data, source, self._limits))
        except PopefError as error:
            error.args = (f"{source}: {error}",)
            raise


def iter_blobs(data: memoryview, source: str, limits: Limits) -> Iterator[Blob]:
    """The blobs of `data`, one after the other. Raises FormatError where the chain of headers breaks."""
    start = 0
    count = 0
    while start < len(data):
        count += 1
        if count > limits.max_blobs:
            raise LimitError(
                f"expected at most {limits.max_blobs} blobs, got more; raise Limits.max_blobs if you trust the file"
            )
        blob = _parse_blob(data, start, source, limits)
        yield blob
        start = blob.end


def _parse_blob(data: memoryview, start: int, source: str, limits: Limits) -> Blob:
    def read(offset: int, size: int) -> bytes:
        return bytes(data[offset : offset + size])

    header, structure_start = decode_message(read, start, len(data), "blob header", limits, BLOB_HEADER)
    kind: BlobType = header["type"]
    label = f"{enumerant(kind)} blob"
    end = start + header["size"]
    if not structure_start <= end <= len(data):
        expected = f"a size of {structure_start - start} to {len(data) - start} bytes in the header"
        raise FormatError(start, label, expected, str(header["size"]))
    structure = PAYLOAD_STRUCTURE[kind]
    values, payload_start = decode_message(read, structure_start, end, label, limits, structure)
    return Blob(source, start, structure_start, payload_start, end, header["version"], kind, values, data[payload_start:end])
