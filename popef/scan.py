"""From bytes to blobs: hop from header to header and check that every blob is what its structure says.

Payloads are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import schema
from .codec import decode_message
from .enums import BlobType
from .errors import FormatError, LimitError, Limits
from .headers import BlobHeader, from_values
from .source import Source
from .types import FeedDataInfo, TensorDataInfo


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob and where it stands; offsets count from the start of its file."""

    source: Source
    index: int
    start: int
    structure_start: int
    payload_start: int
    end: int
    header: BlobHeader
    structure: Any
    """Metadata, TensorDataInfo, FeedDataInfo, Executable or OpaqueBlob, by `header.type()`."""

    @property
    def label(self) -> str:
        """How errors call the blob."""
        return _label(self.source, self.index)

    @property
    def structure_bytes(self) -> int:
        """Bytes of the structure's message, framing included."""
        return self.payload_start - self.structure_start

    @property
    def payload_bytes(self) -> int:
        """Bytes after the structure."""
        return self.end - self.payload_start

    def payload(self) -> memoryview:
        """The raw payload, without copying."""
        return self.source.view(self.payload_start, self.payload_bytes)


def _label(source: Source, index: int) -> str:
    return f"{source.name}: blob {index}"


def iter_blobs(source: Source, limits: Limits) -> Iterator[Blob]:
    """The blobs of `source` in file order, at least one.

    Raises FormatError, UnsupportedError or LimitError at the first blob that is wrong.
    """
    if not source.size:
        raise FormatError(0, source.name, "at least one blob", "an empty file")
    start, index = 0, 0
    while start < source.size:
        if index == limits.max_blobs:
            raise LimitError(
                f"{source.name}: expected at most {limits.max_blobs} blobs, got more; "
                "raise Limits.max_blobs if you trust the file"
            )
        blob = _read_blob(source, index, start, limits)
        yield blob
        start, index = blob.end, index + 1


def _read_blob(source: Source, index: int, start: int, limits: Limits) -> Blob:
    label = _label(source, index)
    values, structure_start = decode_message(source.read, start, source.size, f"{label} (header)", limits, schema.BLOB_HEADER)
    header = BlobHeader(**values)
    end = start + header.size()
    if not structure_start < end <= source.size:
        expected = f"a blob size of {structure_start - start + 1} to {source.size - start}"
        raise FormatError(start, label, expected, str(header.size()))
    label = f"{label} ({header.type().name})"
    table = schema.PAYLOAD_STRUCTURE[header.type()]
    values, payload_start = decode_message(source.read, structure_start, end, label, limits, table)
    blob = Blob(source, index, start, structure_start, payload_start, end, header, from_values(table, values))
    _check_payload(blob, label)
    return blob


def _check_payload(blob: Blob, label: str) -> None:
    structure = blob.structure
    if isinstance(structure, TensorDataInfo):
        expected = structure.tensorInfo().sizeInBytes()
    elif isinstance(structure, FeedDataInfo):
        expected = structure.sizeInBytes()
    elif blob.header.type() is BlobType.METADATA:
        expected = 0
    else:
        if blob.header.type() is BlobType.POPLAR_EXECUTABLE and not structure.name():
            raise FormatError(blob.structure_start, label, "an executable with a name", "an empty name")
        return
    if blob.payload_bytes != expected:
        raise FormatError(blob.payload_start, label, f"a payload of {expected} bytes", f"{blob.payload_bytes} bytes")
