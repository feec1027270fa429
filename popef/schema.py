"""Vocabulary that describes structures: kinds of fields, one field, one structure.

The descriptions are the classes of `types.py`. Nothing here reads or writes a field; `codec.py`,
`describe.py` and `words.py` do so by its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .enums import Enumerant

if TYPE_CHECKING:
    from typing_extensions import Self

    from .record import Record

WORD_BITS = 64

Get = TypeVar("Get")
Set = TypeVar("Set")


class Kind(Enum):
    """Storage of a field: a number of bits of the data section, or 0 bits for a field behind a
    pointer."""

    BOOL = ("bit", 1)
    ENUM = ("u16", 16)
    U64 = ("u64", 64)
    I64 = ("i64", 64)
    TEXT = ("text", 0)
    INTS = ("integers", 0)
    SIZES = ("sizes", 0)
    """A list of integers without negative ones; a tuple in Python."""
    STRUCT = ("structure", 0)
    STRUCTS = ("structures", 0)
    MAP = ("map", 0)
    """A list of structures with two fields; a dict in Python."""

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self.bits = bits


class Field(Generic[Get, Set]):
    """One field of a structure, and its attribute in Python.

    As a class attribute it describes the field. An instance holds the value itself in its dict, so
    reading it costs the same as reading any attribute.
    """

    name: str
    path: str
    """Name of the structure and of the field, as used in errors."""

    def __init__(
        self,
        kind: Kind,
        slot: int,
        doc: str,
        convert: Callable[[Set], Get],
        default: Callable[[], Get],
        *,
        enum: type[Enumerant] | None = None,
        record: type[Record] | None = None,
        inferred: bool = False,
    ) -> None:
        self.kind = kind
        self.slot = slot
        """Bit offset for data kinds, pointer index for the others."""
        self.place = divmod(slot, WORD_BITS)
        """Place of a data kind: its word, and its first bit in that word."""
        self.__doc__ = doc
        self.convert = convert
        """Function that checks an assigned value and converts it to the type that the attribute
        holds."""
        self.default = default
        self.enum = enum
        """Enumeration that the ordinal of an ENUM belongs to."""
        self.record = record
        """Structure behind a pointer, or of each element behind it."""
        self.inferred = inferred

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.path = f"{owner.__name__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Record, owner: type) -> Get: ...
    def __get__(self, instance: Record | None, owner: type) -> Self | Get:
        assert instance is None, "every attribute stands in the instance's dict"
        return self

    if TYPE_CHECKING:
        # At run time this must not exist: with it, reading an attribute would call __get__ first.
        def __set__(self, instance: Record, value: Set) -> None: ...


@dataclass(frozen=True, slots=True)
class Struct:
    """One structure; its fields are in ordinal order, the order in which they are printed."""

    name: str
    fields: tuple[Field[Any, Any], ...]
    short: tuple[int, int] = field(init=False)
    """Words of data and number of pointers, without the inferred fields."""
    long: tuple[int, int] = field(init=False)
    """Words of data and number of pointers, with the inferred fields."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "short", _size([each for each in self.fields if not each.inferred])
        )
        object.__setattr__(self, "long", _size(self.fields))


def _size(fields: Sequence[Field[Any, Any]]) -> tuple[int, int]:
    data_bits = max(
        (field.slot + field.kind.bits for field in fields if field.kind.bits), default=0
    )
    return -(-data_bits // WORD_BITS), sum(not field.kind.bits for field in fields)
