"""Scan of a file for its blobs, from header to header, with a check of every blob against its
structure. Payloads are not read.

Tensor blobs in the layout of this package and the known frameworks are recognised fast. A weights
file has hundreds of such blobs, which differ only in name, type and sizes. A template is the
constant part of the head of such a blob. A blob whose constant part is equal has the same pointers,
so the result of the general decoder is known. If the type and all sizes are equal, too, only the
name is new: such a blob is the twin of an earlier one. All other blobs, and all invalid ones, are
left to the general decoder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ._tools.file_kinds import HEAD_BYTES as KIND_BYTES
from ._tools.file_kinds import POPEF, recognize
from .codec import Warn, decode_message, encode, log_warning
from .enums import ITEM_BYTES, BlobType, DataType
from .errors import FormatError, LimitError, Limits, Rule
from .source import CHUNK_BYTES, Source
from .types import (
    STRUCTURE_OF_BLOB,
    BlobHeader,
    Executable,
    FeedDataInfo,
    Metadata,
    TensorDataInfo,
    TensorInfo,
)
from .values import Sizes, Text
from .wire import BYTE_LIST, WORD_BYTES, WORD_LIST, ReadBytes

_HEADER = encode(BlobHeader(type=BlobType.DATA_TENSOR))
_STRUCTURE_START = len(_HEADER)
_SIZE = 24
"""Offset of the blob's size in the header."""
_NAME = len(_HEADER) + 4 * WORD_BYTES
"""Offset of the name: after frame, root pointer, and the pointers of TensorDataInfo."""
_KEY = slice(_SIZE + WORD_BYTES, _NAME)
"""Slice of the rest of the header and those pointers, which give the length of the name and the
number of dimensions."""
_FIXED_WORDS = 6
"""Words of the structure without sizes and name: the root pointer, two pointers, one of the name, a
word and a pointer."""
_MAX_NAME = 256
"""Maximum length of a name in a template; a longer one is parsed in full."""
_MAX_TEMPLATES = 1024
"""Maximum number of templates, and of twins, that are kept, because a file may have a new layout in
every blob."""
_DATA_TYPES = tuple((data_type, ITEM_BYTES[data_type]) for data_type in DataType)


class _Template(NamedTuple):
    """Head of a blob: constant bytes, its size, the name, constant bytes, the type, constant bytes,
    the sizes."""

    layout: struct.Struct
    before_size: bytes
    after_name: bytes
    after_type: bytes


class _Twin(NamedTuple):
    """Blob of which another may differ by its name and payload only."""

    name_end: int
    payload_start: int
    size: int
    after_name: bytes
    """Everything between the name and the payload."""
    data_type: DataType
    shape: Sizes


Seen = tuple[Text, DataType, Sizes]
"""Name, type and sizes of a tensor; its structure is made from them on demand."""


def tensor_data_info(seen: Seen) -> TensorDataInfo:
    """Return the structure of a blob that a template has recognised."""
    name, data_type, shape = seen
    tensor_info, info = object.__new__(TensorInfo), object.__new__(TensorDataInfo)
    values = tensor_info.__dict__
    values["shape"], values["dataType"] = shape, data_type
    values = info.__dict__
    values["name"], values["tensorInfo"] = name, tensor_info
    return info


class TensorTemplates:
    """Templates and twins found so far in one file."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._templates: dict[bytes, _Template | None] = {}
        self._twins: dict[bytes, _Twin] = {}
        """The last blob with each beginning: the bytes in front of the name, with the blob's
        size."""

    def match(self, head: bytes, available: int) -> tuple[int, int, Seen] | None:
        """Return the start of the payload of the blob that begins with `head`, its size and its
        content.

        Returns None if the blob is no tensor, has another layout, is empty, or does not fit into
        the `available` bytes.
        """
        twin = self._twins.get(head[:_NAME]) or self._match_template(head)
        if twin is None:
            return None
        name_end, payload_start, size, after_name, data_type, shape = twin
        if head[name_end:payload_start] != after_name:
            twin = self._match_template(head)
            if twin is None:
                return None
            name_end, payload_start, size, _, data_type, shape = twin
        if size > available:
            return None
        try:
            return payload_start, size, (Text(head[_NAME:name_end], "utf-8"), data_type, shape)
        except UnicodeDecodeError:
            return None

    def _match_template(self, head: bytes) -> _Twin | None:
        """Return the blob that begins with `head` as the twin of later ones, by its template."""
        key = head[_KEY]
        template = self._templates.get(key) or self._add(key)
        if template is None:
            return None
        layout, before_size, after_name, after_type = template
        if len(head) < layout.size:
            return None
        first, size, raw_name, second, ordinal, third, *shape = layout.unpack_from(head)
        if (
            first != before_size
            or second != after_name
            or third != after_type
            or ordinal >= len(_DATA_TYPES)
        ):
            return None
        data_type, item_bytes = _DATA_TYPES[ordinal]
        # Sizes are read as unsigned: a negative one makes the product too large, unless one is 0.
        payload_bytes = math.prod(shape) * item_bytes
        if size != layout.size + payload_bytes or payload_bytes == 0:
            return None
        name_end = _NAME + len(raw_name)
        rest = head[name_end : layout.size]
        twin = _Twin(name_end, layout.size, size, rest, data_type, Sizes(shape))
        if len(self._twins) < _MAX_TEMPLATES:
            self._twins[head[:_NAME]] = twin
        return twin

    def _add(self, key: bytes) -> _Template | None:
        if (
            key in self._templates
            or len(key) != _KEY.stop - _KEY.start
            or len(self._templates) == _MAX_TEMPLATES
        ):
            return None
        # Rest of the header and segment count (20 bytes), words of the segment, root, name pointer,
        # tensorInfo pointer. The upper 29 bits of a text's pointer are its bytes with the NUL.
        words, pointer = struct.unpack("<20x I 8x Q 8x", key)
        name_bytes = (pointer >> 35) - 1
        rank = words - _FIXED_WORDS - (name_bytes >> 3)
        template = None
        if 0 <= name_bytes < _MAX_NAME and 0 <= rank <= self._limits.max_rank:
            head = tensor_head(name_bytes, rank)
            template = _template(head, name_bytes, rank) if head[_KEY] == key else None
        self._templates[key] = template
        return template


def tensor_head(name_bytes: int, rank: int) -> bytes:
    """Return the head of a tensor blob as `encode` makes it, with zeros for its size, name, type
    and sizes."""
    # Words after the header's message and the frame, as `encode` lays them out in preorder. Offsets
    # count from the word after the pointer (the pointers' bits are drawn in `wire.py`):
    #
    #     0  root         -> 1: TensorDataInfo of 0 data words and 2 pointers
    #     1  name         -> 3: text of name_bytes + 1 bytes, its NUL included
    #     2  tensorInfo   -> behind the text: TensorInfo of 1 data word and 1 pointer
    #     3  the text, name_words words
    #        the data word: the type in its low 16 bits
    #        shape        -> the next word: rank sizes of a word each
    name_words = (name_bytes >> 3) + 1
    pointers = (
        2 << 48,
        1 | 1 << 2 | BYTE_LIST << 32 | name_bytes + 1 << 35,
        name_words << 2 | 1 << 32 | 1 << 48,
        *[0] * (name_words + 1),
        1 | WORD_LIST << 32 | rank << 35,
        *[0] * rank,
    )
    return _HEADER + struct.pack(f"<II{len(pointers)}Q", 0, len(pointers), *pointers)


def _template(head: bytes, name_bytes: int, rank: int) -> _Template:
    # 0           _SIZE                    _NAME  name_end    data_type             shape
    # +-----------+------+-----------------+------+-----------+------+--------------+-------+
    # | constant  | size | key (not read)  | name | NUL, pad  | type | pad, pointer | sizes |
    # +-----------+------+-----------------+------+-----------+------+--------------+-------+
    name_end = _NAME + name_bytes
    data_type = name_end + 1 + -(name_end + 1) % WORD_BYTES
    shape = len(head) - rank * WORD_BYTES
    between = _NAME - _SIZE - WORD_BYTES
    layout = (
        f"<{_SIZE}sQ{between}x{name_bytes}s{data_type - name_end}sH{shape - data_type - 2}s{rank}Q"
    )
    return _Template(
        struct.Struct(layout), head[:_SIZE], head[name_end:data_type], head[data_type + 2 : shape]
    )


_SHOWN_BYTES = 8
"""Number of bytes of a file of an unknown kind that an error shows."""
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
    def name(self) -> str:
        """Name of the content, for metadata that of the executable; "" if it has none."""
        attribute = "executable" if self.type is BlobType.METADATA else "name"
        return str(getattr(self.structure, attribute, ""))

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
    file_bytes, max_blobs, read, match = source.size, limits.max_blobs, source.read, templates.match
    kind = BlobType.DATA_TENSOR  # to look it up takes as long as a third of a blob
    start, index = 0, 0
    while start < file_bytes:
        if index == max_blobs:
            raise LimitError(
                f"{source.name}: expected at most {limits.max_blobs} blobs, got more; "
                "raise Limits.max_blobs if you trust the file"
            )
        head = read(start, HEAD_BYTES)
        template_match = match(head, file_bytes - start)
        if template_match is None:
            blob = read_blob(source, index, start, head, limits)
        else:
            payload, size, seen = template_match
            blob = Blob(
                source,
                index,
                start,
                start + _STRUCTURE_START,
                start + payload,
                start + size,
                _NO_VERSION,
                kind,
                seen,
            )
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
    try:
        header, structure_start = decode_message(
            read or source.read, start, source.size, f"{label} (header)", limits, BlobHeader, warn
        )
    except FormatError as error:
        if start:
            raise
        head = source.read(0, KIND_BYTES)
        kind = recognize(head)
        if kind == POPEF:
            raise
        got = f"{error.got}, and begins with {head[:_SHOWN_BYTES]!r}" if kind is None else str(kind)
        expected = POPEF.name if kind else f"{POPEF.name}, {error.expected}"
        raise FormatError(error.rule, 0, error.blob, expected, got) from error
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
