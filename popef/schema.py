"""The one table of PopEF structures: reader, writer and dump are all driven by it.

The table is the schema `tests/popef/popef.capnp` after Cap'n Proto's layout algorithm; FORMAT.md says which
fields are confirmed and which are inferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from .enums import BlobType, DataType, Enumerant, TensorType


class Kind(Enum):
    """How a field is stored: in so many bits of the data section, or behind a pointer, which is 0 bits."""

    BOOL = ("bit", 1)
    ENUM = ("u16", 16)
    U64 = ("u64", 64)
    I64 = ("i64", 64)
    TEXT = ("text", 0)
    INTS = ("integers", 0)
    SIZES = ("sizes", 0)
    """A list of integers none of which is negative, a tuple in Python."""
    STRUCT = ("structure", 0)
    STRUCTS = ("structures", 0)
    MAP = ("map", 0)
    """A list of two-field structures, a dict in Python."""

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self.bits = bits


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `slot` is a bit offset for data kinds and a pointer index for the others."""

    name: str
    kind: Kind
    slot: int
    enum: type[Enumerant] | None = None
    struct: Struct | None = None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    """One structure; its fields stand in ordinal order, the order in which they are printed."""

    name: str
    fields: tuple[Field, ...]
    short: tuple[int, int] = field(init=False)
    """Words of data and number of pointers, without the inferred fields."""
    long: tuple[int, int] = field(init=False)
    """The same with them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", _size([each for each in self.fields if not each.inferred]))
        object.__setattr__(self, "long", _size(self.fields))


def _size(fields: Sequence[Field]) -> tuple[int, int]:
    data_bits = max((field.slot + field.kind.bits for field in fields if field.kind.bits), default=0)
    return (data_bits + 63) // 64, sum(not field.kind.bits for field in fields)


BLOB_HEADER = Struct(
    "BlobHeader",
    (
        Field("version", Kind.TEXT, 0),
        Field("type", Kind.ENUM, 0, enum=BlobType),
        Field("size", Kind.U64, 64),
    ),
)

EXECUTABLE = Struct("Executable", (Field("name", Kind.TEXT, 0), Field("uncompressedSize", Kind.U64, 0)))

OPAQUE_BLOB = Struct("OpaqueBlob", (Field("name", Kind.TEXT, 0), Field("executable", Kind.TEXT, 1)))

TENSOR_INFO = Struct(
    "TensorInfo", (Field("shape", Kind.SIZES, 0), Field("dataType", Kind.ENUM, 0, enum=DataType))
)

TENSOR_DATA_INFO = Struct(
    "TensorDataInfo", (Field("name", Kind.TEXT, 0), Field("tensorInfo", Kind.STRUCT, 1, struct=TENSOR_INFO))
)

FEED_DATA_INFO = Struct(
    "FeedDataInfo",
    (
        Field("name", Kind.TEXT, 0),
        Field("tensorInfo", Kind.STRUCT, 1, struct=TENSOR_INFO),
        Field("numTensors", Kind.U64, 0),
    ),
)

OPTION = Struct("Option", (Field("name", Kind.TEXT, 0), Field("value", Kind.TEXT, 1)))

PROGRAM_FLOW = Struct(
    "ProgramFlow",
    (Field("load", Kind.INTS, 0), Field("main", Kind.INTS, 1), Field("save", Kind.INTS, 2)),
)

PROGRAM_NAME = Struct("ProgramName", (Field("index", Kind.I64, 0), Field("name", Kind.TEXT, 0)))

ANCHOR = Struct(
    "Anchor",
    (
        Field("name", Kind.TEXT, 0),
        Field("handle", Kind.TEXT, 1),
        Field("tensorInfo", Kind.STRUCT, 2, struct=TENSOR_INFO),
        Field("type", Kind.ENUM, 0, enum=TensorType),
        Field("isPerReplica", Kind.BOOL, 16),
        Field("programs", Kind.INTS, 3, inferred=True),
    ),
)

METADATA = Struct(
    "Metadata",
    (
        Field("replicationFactor", Kind.I64, 0),
        Field("numIpus", Kind.I64, 64),
        Field("seedHandle", Kind.TEXT, 0),
        Field("anchors", Kind.STRUCTS, 1, struct=ANCHOR),
        Field("executable", Kind.TEXT, 2),
        Field("numProcesses", Kind.I64, 128),
        Field("ipuVersion", Kind.I64, 192),
        Field("isPOD", Kind.BOOL, 256),
        Field("isInference", Kind.BOOL, 257),
        Field("engineOptions", Kind.STRUCTS, 3, struct=OPTION),
        Field("deviceOptions", Kind.STRUCTS, 4, struct=OPTION),
        Field("programFlow", Kind.STRUCT, 5, struct=PROGRAM_FLOW),
        Field("programsMap", Kind.MAP, 6, struct=PROGRAM_NAME, inferred=True),
        Field("deviceIterations", Kind.I64, 320, inferred=True),
    ),
)

STRUCTURES = (
    BLOB_HEADER,
    EXECUTABLE,
    METADATA,
    TENSOR_DATA_INFO,
    FEED_DATA_INFO,
    OPAQUE_BLOB,
    TENSOR_INFO,
    ANCHOR,
    PROGRAM_FLOW,
    OPTION,
    PROGRAM_NAME,
)
"""All of them: the header, what may follow it, and what those hold."""
