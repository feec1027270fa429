"""The rules for PopEF files, by name: errors cite them, `popef verify` reports them, FORMAT.md
lists them."""

from __future__ import annotations

from enum import Enum


class Severity(Enum):
    """Severity of breaking a rule."""

    ERROR = "error"
    """A MUST: readers reject the file, or the part of it that the rule is about."""
    WARNING = "warning"
    """A SHOULD: readers accept the file; something about it is probably wrong."""


class Rule(Enum):
    """One rule; the value is its severity and its text.

    The name, in lower case with hyphens, is how errors cite the rule.
    """

    BLOB_COUNT = (Severity.ERROR, "A file MUST hold at least one blob.")
    BLOB_SIZE = (
        Severity.ERROR,
        "A blob's `size` MUST count every byte from the first of its header to the last of its "
        "payload, and no byte MUST lie beyond the end of the file.",
    )
    SEGMENT_TABLE = (
        Severity.ERROR,
        "A message MUST begin with its segment table (number of segments minus one, words in each, "
        "padding to 8 bytes), MUST have 1 to 512 segments, and its first segment MUST hold at "
        "least the root pointer.",
    )
    SEGMENT_BOUNDS = (
        Severity.ERROR,
        "The segments of a message MUST lie back to back behind the table, inside the blob.",
    )
    POINTER_BOUNDS = (
        Severity.ERROR,
        "What a pointer leads to MUST lie inside the segment it leads to.",
    )
    POINTER_KIND = (
        Severity.ERROR,
        "A pointer MUST be null, or lead to what its field holds: a structure, a list, or either "
        "through a far pointer. Capability pointers MUST NOT occur.",
    )
    FAR_POINTER = (
        Severity.ERROR,
        "A far pointer MUST name a segment of its message and a landing pad inside it: one struct "
        "or list pointer; or, when double, a single far pointer to the content and then a struct "
        "or list tag.",
    )
    STRUCT_LIST = (
        Severity.ERROR,
        "The tag of a composite list MUST be a struct tag whose elements fit into the words that "
        "the list pointer announces. A list of bits, or of elements narrower than a word, MUST NOT "
        "stand for structures unless it is empty.",
    )
    TEXT = (
        Severity.ERROR,
        "A text MUST be a list of bytes that ends in one NUL, which is counted, and MUST be UTF-8.",
    )
    INTEGERS = (
        Severity.ERROR,
        "A list of integers MUST have elements of 1, 2, 4 or 8 bytes, or structures whose first "
        "word is the integer.",
    )
    SHAPE = (Severity.ERROR, "The sizes in a shape MUST NOT be negative.")
    METADATA_PAYLOAD = (Severity.ERROR, "A metadata blob MUST NOT have a payload.")
    TENSOR_PAYLOAD = (
        Severity.ERROR,
        "A tensor blob's payload MUST be exactly the tensor: the product of its shape times the "
        "bytes of its type.",
    )
    FEED_PAYLOAD = (
        Severity.ERROR,
        "A feed blob's payload MUST be exactly `numTensors` such tensors, back to back.",
    )
    EXECUTABLE_NAME = (Severity.ERROR, "An executable MUST have a name that is not empty.")
    EXECUTABLE_SIZE = (
        Severity.ERROR,
        "A compressed executable MUST be one whole compressed stream of exactly `uncompressedSize` "
        "bytes.",
    )
    EXECUTABLE_CODEC = (
        Severity.ERROR,
        "A compressed executable MUST be a zlib, gzip or zstd stream, told by its magic.",
    )
    EXECUTABLE_UNIQUE = (Severity.ERROR, "Two executables of a file MUST NOT have the same name.")
    OPTIONAL_FIELD = (
        Severity.WARNING,
        "The inferred fields `Anchor.programs`, `Metadata.programsMap` and "
        "`Metadata.deviceIterations` SHOULD decode: program indices of 0 to 2^32 - 1, each named "
        "once, and no negative iterations. Readers MUST ignore one that does not, with a warning.",
    )
    ENUMERANT = (
        Severity.WARNING,
        "A blob type, data type or tensor type SHOULD be one that FORMAT.md's tables name. Readers "
        "MUST "
        "skip a blob of an unknown type by its size, and MUST keep an unknown ordinal as it is.",
    )
    CONTROL_CHARACTERS = (
        Severity.WARNING,
        "Names and handles SHOULD NOT hold control characters. Tools MUST escape them.",
    )
    METADATA_EXECUTABLE = (
        Severity.WARNING,
        "The executable that a metadata or opaque blob names SHOULD stand in one of the files of "
        "its model.",
    )
    METADATA_UNIQUE = (Severity.WARNING, "An executable SHOULD have one metadata blob.")
    ANCHOR_UNIQUE = (
        Severity.WARNING,
        "Two anchors of one metadata blob SHOULD NOT have the same name and programs in common.",
    )
    ANCHOR_HANDLE = (
        Severity.WARNING,
        "An input or output anchor SHOULD have the handle of its stream.",
    )
    ANCHOR_REPLICAS = (
        Severity.WARNING,
        "With a replication factor above 1 an anchor that is per replica SHOULD have that many "
        "replicas as its first size.",
    )
    DATA_ANCHOR = (
        Severity.WARNING,
        "Tensor and feed data SHOULD have the name, shape and type of an anchor.",
    )
    DATA_UNIQUE = (
        Severity.WARNING,
        "Tensor data SHOULD stand in a model once for each name, and feed data likewise.",
    )
    PROGRAM_NAMES = (
        Severity.WARNING,
        "Programs that the flow or an anchor names SHOULD have a name in a `programsMap` that is "
        "not empty.",
    )

    @property
    def severity(self) -> Severity:
        """Severity of breaking the rule: error or warning."""
        return self.value[0]

    @property
    def text(self) -> str:
        """Text of the rule."""
        return self.value[1]

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")
