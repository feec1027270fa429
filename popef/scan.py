"""Scan of a file for its blobs, from header to header, with a check of every blob against its
structure.

Payloads are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .codec import Warn, decode_message, log_warning
from .enums import BlobType
from .errors import FormatError, LimitError, Limits, Rule
from .source import CHUNK_BYTES, Source
from .templates import TensorTemplates, tensor_data_info
from .types import STRUCTURE_OF_BLOB, BlobHeader, Executable, FeedDataInfo, Metadata, TensorDataInfo
from .values import Text
from .wire import ReadBytes

HEAD_BYTES = 512
"""Number of bytes of a blob that are read first: header and structure, unless names are long or it
is metadata."""


@dataclass(slots=True, eq=False)
class Blob:
    """One blob and its place; offsets count from the start of its file."""

    source: Source
    index: int
    start: int
    structure_start: int
    payload_start: int
    end: int
    version: Text
    type: BlobType
    _structure: Any

    @property
    def structure(self) -> Any:
        """Metadata, TensorDataInfo, FeedDataInfo, Executable or OpaqueBlob, by `type`; None for an
        unknown type."""
        if type(self._structure) is tuple:
            self._structure = tensor_data_info(self._structure)
        return self._structure

    @property
    def header(self) -> BlobHeader:
        """Header of the blob."""
        return BlobHeader(version=self.version, type=self.type, size=self.end - self.start)

    @property
    def label(self) -> str:
        """Name of the blob in error messages."""
        return f"{_label(self.source, self.index)} ({self.type.name})"

    @property
    def structure_bytes(self) -> int:
        """Number of bytes of the structure's message, framing included."""
        return self.payload_start - self.structure_start

    @property
    def payload_bytes(self) -> int:
        """Number of bytes after the structure."""
        return self.end - self.payload_start

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole blob as it is in its file, chunk by chunk.

        Yields:
            The next bytes.

        Raises:
            FormatError: if the file has become shorter.
        """
        for offset in range(self.start, self.end, CHUNK_BYTES):
            size = min(CHUNK_BYTES, self.end - offset)
            chunk = self.source.read(offset, size)
            if len(chunk) != size:
                got = f"{len(chunk)}: the file has shrunk since it was opened"
                raise FormatError(Rule.BLOB_SIZE, offset, self.label, f"{size} bytes", got)
            yield chunk

    def payload(self) -> memoryview:
        """Return the raw payload, without copying.

        Raises FormatError if the file has become shorter since it was parsed.
        """
        return self.source.view(self.payload_start, self.payload_bytes)


def _label(source: Source, index: int) -> str:
    return f"{source.name}: blob {index}"


def iter_blobs(source: Source, limits: Limits) -> Iterator[Blob]:
    """Yield the blobs of `source` in file order, at least one.

    Args:
        source: the bytes of a file.
        limits: limits on what the file may cost.

    Yields:
        One blob after the other; payloads are not read.

    Raises:
        FormatError: at the first invalid blob.
        LimitError: at the first blob that exceeds a limit.
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
            payload, size, seen = found
            places = start, start + templates.STRUCTURE_START, start + payload, start + size
            blob = Blob(source, index, *places, _NO_VERSION, BlobType.DATA_TENSOR, seen)
        yield blob
        start, index = blob.end, index + 1


_NO_VERSION = Text()


def read_header(
    source: Source,
    index: int,
    start: int,
    limits: Limits,
    warn: Warn = log_warning,
    read: ReadBytes | None = None,
) -> tuple[BlobHeader, int]:
    """Return the header of the blob at `start`, with its size checked, and the offset after the
    header.

    Args:
        source: the bytes of the file.
        index: number of the blob.
        start: offset of the blob.
        limits: limits on what the file may cost.
        warn: function that receives broken rules of severity WARNING.
        read: function to read the bytes with; None means the source's own.

    Returns:
        The header and the offset after it.

    Raises:
        FormatError: if the header is invalid.
    """
    label = _label(source, index)
    header, structure_start = decode_message(
        read or source.read, start, source.size, f"{label} (header)", limits, BlobHeader, warn
    )
    if not structure_start - start <= header.size <= source.size - start:
        expected = f"a blob size of {structure_start - start} to {source.size - start}"
        raise FormatError(Rule.BLOB_SIZE, start, label, expected, str(header.size))
    return header, structure_start


def read_blob(
    source: Source, index: int, start: int, head: bytes, limits: Limits, warn: Warn = log_warning
) -> Blob:
    """Return the blob at `start`, which begins with the bytes `head`.

    Raises FormatError or LimitError as `iter_blobs` does.
    """

    def read(offset: int, size: int) -> bytes:
        first = offset - start
        return (
            head[first : first + size] if first + size <= len(head) else source.read(offset, size)
        )

    header, structure_start = read_header(source, index, start, limits, warn, read)
    end, label = start + header.size, f"{_label(source, index)} ({header.type.name})"
    kind = STRUCTURE_OF_BLOB.get(header.type)
    structure: Any = None
    payload_start = structure_start
    if kind is None:
        warn(
            Rule.ENUMERANT,
            f"{label}: skipped {end - structure_start} bytes of a blob of a type this package does "
            "not know",
        )
    else:
        structure, payload_start = decode_message(
            read, structure_start, end, label, limits, kind, warn
        )
    places = start, structure_start, payload_start, end
    blob = Blob(source, index, *places, header.version, header.type, structure)
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


# Listing 1.1 gives the words for the first three; tensor and feed data follow their pattern.
TITLES = {
    BlobType.OPAQUE: ("OpaqueBlob", "Structure size"),
    BlobType.POPLAR_EXECUTABLE: ("Executable", "header size"),
    BlobType.METADATA: ("Metadata", ""),
    BlobType.DATA_TENSOR: ("TensorData", "header size"),
    BlobType.DATA_FEED: ("FeedData", "header size"),
}


def describe_blob(blob: Blob) -> list[str]:
    """Return the lines that the real library logs when it reads a blob."""
    lines = [f"Read header: {blob.header}", f"start end: {blob.start} {blob.end}"]
    if blob.structure is None:
        skipped = f"Skipped blob of unknown type {int(blob.type)}: {blob.payload_bytes} bytes"
        return [*lines, skipped]
    title, size_name = TITLES[blob.type]
    size = f" {size_name}: {blob.structure_bytes}" if size_name else ""
    return [*lines, f"Read {title}: {blob.structure}{size}"]
