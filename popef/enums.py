"""The enumerations of the format and their names in text; the ordinals are those of FORMAT.md."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

Member = TypeVar("Member", bound="Enumerant")

MAX_ENUMERANT = (1 << 16) - 1


class Enumerant(IntEnum):
    """Enumeration of 16 bits. An ordinal of a newer SDK becomes a member called
    UNKNOWN_<ordinal>."""

    @classmethod
    def _missing_(cls: type[Member], value: object) -> Member | None:
        if not isinstance(value, int) or not 0 <= value <= MAX_ENUMERANT:
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"UNKNOWN_{value}", value
        return cls._value2member_map_.setdefault(value, member)  # type: ignore[return-value]

    def __call__(self: Member) -> Member:
        """Return the member itself, so that `info.dataType()` is `info.dataType`."""
        return self

    @property
    def known(self) -> bool:
        """True if this package knows the meaning of the ordinal."""
        return self.name in type(self).__members__


class BlobType(Enumerant):
    """Type of the content of a blob."""

    POPLAR_EXECUTABLE = 0
    METADATA = 1
    DATA_TENSOR = 2
    DATA_FEED = 3
    OPAQUE = 4


class DataType(Enumerant):
    """Element type of a tensor; F8 leaves the 8-bit float format open, F8143 and F8152 name it."""

    BOOL = 0
    F8 = 1
    F16 = 2
    F32 = 3
    F64 = 4
    S8 = 5
    U8 = 6
    S16 = 7
    U16 = 8
    S32 = 9
    U32 = 10
    S64 = 11
    U64 = 12
    F8143 = 13
    F8152 = 14


class TensorType(Enumerant):
    """Direction of an anchor seen from the program."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2


ITEM_BYTES: dict[DataType, int] = {
    DataType.BOOL: 1,
    DataType.F8: 1,
    DataType.F16: 2,
    DataType.F32: 4,
    DataType.F64: 8,
    DataType.S8: 1,
    DataType.U8: 1,
    DataType.S16: 2,
    DataType.U16: 2,
    DataType.S32: 4,
    DataType.U32: 4,
    DataType.S64: 8,
    DataType.U64: 8,
    DataType.F8143: 1,
    DataType.F8152: 1,
}


def enumerant(value: Enumerant) -> str:
    """Return the schema's spelling of an enumerator, such as poplarExecutable for
    POPLAR_EXECUTABLE.

    An unknown enumerator is spelled as its ordinal.
    """
    if not value.known:
        return str(int(value))
    first, *rest = value.name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)
