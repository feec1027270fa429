"""The rules for PopEF files, the errors of popef, sorted by whose fault they are, and the limits of
a reader.

Errors cite the rules by name, `popef verify` reports them, and FORMAT.md lists them. Nothing here
reads or writes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """Severity of breaking a rule."""

    ERROR = "error"
    """A MUST: readers reject the file, or the part of it that the rule is about."""
    WARNING = "warning"
    """A SHOULD: readers accept the file; something about it is probably wrong."""


class Rule(Enum):
    """One rule; the value is its text, whose MUST or SHOULD says how severe it is to break it.

    The name, in lower case with hyphens, is how errors cite the rule.
    """

    BLOB_COUNT = "A file MUST hold at least one blob."
    BLOB_SIZE = (
        "A blob's `size` MUST count every byte from the first of its header to the last of its "
        "payload, and no byte MUST lie beyond the end of the file."
    )
    SEGMENT_TABLE = (
        "A message MUST begin with its segment table (number of segments minus one, words in each, "
        "padding to 8 bytes), MUST have 1 to 512 segments, and its first segment MUST hold at "
        "least the root pointer."
    )
    SEGMENT_BOUNDS = (
        "The segments of a message MUST lie back to back behind the table, inside the blob."
    )
    POINTER_BOUNDS = "What a pointer leads to MUST lie inside the segment it leads to."
    POINTER_KIND = (
        "A pointer MUST be null, or lead to what its field holds: a structure, a list, or either "
        "through a far pointer. Capability pointers MUST NOT occur."
    )
    FAR_POINTER = (
        "A far pointer MUST name a segment of its message and a landing pad inside it: one struct "
        "or list pointer; or, when double, a single far pointer to the content and then a struct "
        "or list tag."
    )
    STRUCT_LIST = (
        "The tag of a composite list MUST be a struct tag whose elements fit into the words that "
        "the list pointer announces. A list of bits, or of elements narrower than a word, MUST NOT "
        "stand for structures unless it is empty."
    )
    TEXT = (
        "A text MUST be a list of bytes that ends in one NUL, which is counted, and MUST be UTF-8."
    )
    INTEGERS = (
        "A list of integers MUST have elements of 1, 2, 4 or 8 bytes, or structures whose first "
        "word is the integer."
    )
    SHAPE = "The sizes in a shape MUST NOT be negative."
    METADATA_PAYLOAD = "A metadata blob MUST NOT have a payload."
    TENSOR_PAYLOAD = (
        "A tensor blob's payload MUST be exactly the tensor: the product of its shape times the "
        "bytes of its type."
    )
    FEED_PAYLOAD = "A feed blob's payload MUST be exactly `numTensors` such tensors, back to back."
    EXECUTABLE_NAME = "An executable MUST have a name that is not empty."
    EXECUTABLE_SIZE = (
        "A compressed executable MUST be one whole compressed stream of exactly `uncompressedSize` "
        "bytes."
    )
    EXECUTABLE_CODEC = (
        "A compressed executable MUST be a zlib, gzip or zstd stream, told by its magic."
    )
    EXECUTABLE_UNIQUE = "Two executables of a file MUST NOT have the same name."
    OPTIONAL_FIELD = (
        "The inferred fields `Anchor.programs`, `Metadata.programsMap` and "
        "`Metadata.deviceIterations` SHOULD decode: program indices of 0 to 2^32 - 1, each named "
        "once, and no negative iterations. Readers MUST ignore one that does not, with a warning."
    )
    ENUMERANT = (
        "A blob type, data type or tensor type SHOULD be one that FORMAT.md's tables name. Readers "
        "MUST skip a blob of an unknown type by its size, and MUST keep an unknown ordinal as it "
        "is."
    )
    CONTROL_CHARACTERS = (
        "Names and handles SHOULD NOT hold control characters. Tools MUST escape them."
    )
    METADATA_EXECUTABLE = (
        "The executable that a metadata or opaque blob names SHOULD stand in one of the files of "
        "its model."
    )
    METADATA_UNIQUE = "An executable SHOULD have one metadata blob."
    ANCHOR_UNIQUE = (
        "Two anchors of one metadata blob SHOULD NOT have the same name and programs in common."
    )
    ANCHOR_HANDLE = "An input or output anchor SHOULD have the handle of its stream."
    ANCHOR_REPLICAS = (
        "With a replication factor above 1 an anchor that is per replica SHOULD have that many "
        "replicas as its first size."
    )
    DATA_ANCHOR = "Tensor and feed data SHOULD have the name, shape and type of an anchor."
    DATA_UNIQUE = "Tensor data SHOULD stand in a model once for each name, and feed data likewise."
    PROGRAM_NAMES = (
        "Programs that the flow or an anchor names SHOULD have a name in a `programsMap` that is "
        "not empty."
    )

    @property
    def severity(self) -> Severity:
        """Severity of breaking the rule: error or warning."""
        return Severity.WARNING if "SHOULD" in self.value else Severity.ERROR

    @property
    def text(self) -> str:
        """Text of the rule."""
        return str(self.value)

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class PopefError(Exception):
    """Base of all errors of popef; raised directly if the library is used incorrectly."""


class FormatError(PopefError):
    """The bytes break a rule of FORMAT.md; `offset` counts from the start of the file."""

    def __init__(self, rule: Rule, offset: int, blob: str, expected: str, got: str) -> None:
        super().__init__(
            f"{blob}, byte {offset}: expected {expected}, got {got}; the file is damaged or not "
            f"PopEF ({rule})"
        )
        self.rule = rule
        self.offset = offset
        self.blob = blob
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type[FormatError], tuple[Rule, int, str, str, str]]:
        return FormatError, (self.rule, self.offset, self.blob, self.expected, self.got)


class UnsupportedError(PopefError):
    """The file or request is valid, but this installation does not support it."""


class LimitError(PopefError):
    """The file is larger or deeper than a `Limits` field allows; the message names the field to
    raise."""


def _limit(default: int, doc: str) -> int:
    limit: int = field(default=default, metadata={"doc": doc})
    return limit


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a reader spends on one file; the defaults are far above what known frameworks
    write."""

    max_structure_bytes: int = _limit(16 << 20, "Bytes of one message (a header, a Metadata, ...).")
    max_depth: int = _limit(
        16,
        "Pointers that a word dump follows from the root of a message; readers follow the 4 PopEF "
        "has.",
    )
    max_list_items: int = _limit(
        1 << 18, "Elements of one list in a structure (anchors, options, shape)."
    )
    max_rank: int = _limit(32, "Dimensions of a tensor; 32 is what every numpy can represent.")
    max_blobs: int = _limit(1_000_000, "Blobs in one file.")
    max_stream_bytes: int = _limit(
        16 << 30, "Bytes read from a stream or pipe, which are kept in memory."
    )
    max_executable_bytes: int = _limit(4 << 30, "Bytes of one executable after decompression.")
