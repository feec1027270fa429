"""From bytes to blobs: hop from header to header and check that every blob is what its structure says.

Payloads are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .codec import decode_message
from .enums import BlobType
from .errors import FormatError, LimitError, Limits
from .rules import Rule
from .source import Source
from .templates import TensorTemplates
from .types import STRUCTURE_OF_BLOB, BlobHeader, Executable, FeedDataInfo, Metadata, TensorDataInfo
from .values import Text

HEAD_BYTES = 512
"""What is read of a blob at first: header and structure, unless names are long or it is metadata."""

_log = logging.getLogger("popef")


@dataclass(slots=True, eq=False)
class Blob:
    """One blob and where it stands; offsets count from the start of its file."""

    source: Source
    index: int
    start: int
    structure_start: int
    payload_start: int
    end: int
    version: Text
    type: BlobType
    structure: Any
    """Metadata, TensorDataInfo, FeedDataInfo, Executable or OpaqueBlob, by `type`; None for an unknown type."""

    @property
    def header(self) -> BlobHeader:
        """The blob's header."""
        return BlobHeader(version=self.version, type=self.type, size=self.end - self.start)

    @property
    def label(self) -> str:
        """How errors call the blob."""
        return f"{_label(self.source, self.index)} ({self.type.name})"

    @property
    def structure_bytes(self) -> int:
        """Bytes of the structure's message, framing included."""
        return self.payload_start - self.structure_start

    @property
    def payload_bytes(self) -> int:
        """Bytes after the structure."""
        return self.end - self.payload_start

    def payload(self) -> memoryview:
        """The raw payload, without copying.

        Raises FormatError when the file has become shorter since it was parsed.
        """
        return self.source.view(self.payload_start, self.payload_bytes)


def _label(source: Source, index: int) -> str:
    return f"{source.name}: blob {index}"


def iter_blobs(source: Source, limits: Limits) -> Iterator[Blob]:
    """The blobs of `source` in file order, at least one.

    Raises FormatError or LimitError at the first blob that is wrong.
    """
    if not source.size:
        raise FormatError(Rule.BLOB_COUNT, 0, source.name, "at least one blob", "an empty file")
    templates = TensorTemplates(limits)
    start, index = 0, 0
    while start < source.size:
        if index == limits.max_blobs:
            raise LimitError(
                f"{source.name}: expected at most {limits.max_blobs} blobs, got more; "
                "raise Limits.max_blobs if you trust the file"
            )
        head = source.read(start, HEAD_BYTES)
        found = templates.match(head, source.size - start)
        if found is None:
            blob = read_blob(source, index, start, head, limits)
        else:
            payload, size, info = found
            structure, payload, end = start + templates.STRUCTURE_START, start + payload, start + size
            blob = Blob(source, index, start, structure, payload, end, _NO_VERSION, BlobType.DATA_TENSOR, info)
        yield blob
        start, index = blob.end, index + 1


_NO_VERSION = Text()


def read_blob(source: Source, index: int, start: int, head: bytes, limits: Limits) -> Blob:
    """The blob at `start`, of which `head` is the beginning; raises as `iter_blobs` does."""

    def read(offset: int, size: int) -> bytes:
        first = offset - start
        return head[first : first + size] if first + size <= len(head) else source.read(offset, size)

    label = _label(source, index)
    header, structure_start = decode_message(read, start, source.size, f"{label} (header)", limits, BlobHeader)
    end = start + header.size
    if not structure_start <= end <= source.size:
        expected = f"a blob size of {structure_start - start} to {source.size - start}"
        raise FormatError(Rule.BLOB_SIZE, start, label, expected, str(header.size))
    label = f"{label} ({header.type.name})"
    kind = STRUCTURE_OF_BLOB.get(header.type)
    if kind is None:
        _log.warning("%s: skipped %d bytes of a blob of a type this package does not know", label, end - structure_start)
        return Blob(source, index, start, structure_start, structure_start, end, header.version, header.type, None)
    structure, payload_start = decode_message(read, structure_start, end, label, limits, kind)
    blob = Blob(source, index, start, structure_start, payload_start, end, header.version, header.type, structure)
    _check_payload(blob)
    return blob


def _check_payload(blob: Blob) -> None:
    structure = blob.structure
    if isinstance(structure, Executable) and not structure.name:
        expected, got = "an executable with a name", "an empty name"
        raise FormatError(Rule.EXECUTABLE_NAME, blob.structure_start, blob.label, expected, got)
    if isinstance(structure, Metadata):
        rule, expected_bytes = Rule.METADATA_PAYLOAD, 0
    elif isinstance(structure, TensorDataInfo) and structure.tensorInfo.dataType.known:
        rule, expected_bytes = Rule.TENSOR_PAYLOAD, structure.tensorInfo.sizeInBytes()
    elif isinstance(structure, FeedDataInfo) and structure.tensorInfo.dataType.known:
        rule, expected_bytes = Rule.FEED_PAYLOAD, structure.sizeInBytes()
    else:
        return
    if blob.payload_bytes != expected_bytes:
        expected, got = f"a payload of {expected_bytes} bytes", f"{blob.payload_bytes} bytes"
        raise FormatError(rule, blob.payload_start, blob.label, expected, got)
