"""The one table of PopEF structures: reader, writer and dump are all driven by it.

The table is the schema `tests/popef/popef.capnp` after Cap'n Proto's layout algorithm; FORMAT.md says which
fields are confirmed and which are inferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .enums import BlobType, DataType, Enumerant, TensorType


class Kind(Enum):
    """How a field is stored: the first four in the data section, the others behind a pointer."""

    BOOL = auto()
    ENUM = auto()
    U64 = auto()
    I64 = auto()
    TEXT = auto()
    INTS = auto()
    SIZES = auto()
    """A list of integers none of which is negative, a tuple in Python."""
    STRUCT = auto()
    STRUCTS = auto()
    MAP = auto()
    """A list of two-field structures, a dict in Python."""


DATA_BITS = {Kind.BOOL: 1, Kind.ENUM: 16, Kind.U64: 64, Kind.I64: 64}


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

    def size(self, *, long: bool) -> tuple[int, int]:
        """Words of data and number of pointers, with (`long`) or without the inferred fields."""
        fields = [field for field in self.fields if long or not field.inferred]
        data_bits = [field.slot + DATA_BITS[field.kind] for field in fields if field.kind in DATA_BITS]
        pointers = sum(field.kind not in DATA_BITS for field in fields)
        return (max(data_bits, default=0) + 63) // 64, pointers


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

TENSOR_INFO = Struct("TensorInfo", (Field("shape", Kind.SIZES, 0), Field("dataType", Kind.ENUM, 0, enum=DataType)))

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
