"""What structures are described with: the kinds of fields, one field, one structure. The descriptions are the
classes of `types.py`.

Nothing here knows how a field is read or written; `codec.py`, `describe.py` and `words.py` ask its kind.
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


class Field(Generic[Get, Set]):
    """One field of a structure, and the attribute that it is in Python.

    As a class attribute it describes the field; an instance has the value itself in its dict, so that reading
    one costs what reading any attribute costs.
    """

    name: str
    path: str
    """Name of the structure and of the field, as errors have it."""

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
        """A bit offset for data kinds, a pointer index for the others."""
        self.place = divmod(slot, WORD_BITS)
        """Of a data kind: its word, and its first bit there."""
        self.__doc__ = doc
        self.convert = convert
        """Checks a value that is put into the attribute, and makes it what the attribute holds."""
        self.default = default
        self.enum = enum
        """What the ordinal of an ENUM names."""
        self.record = record
        """The structure behind a pointer, or each of those behind it."""
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
    """One structure; its fields stand in ordinal order, the order in which they are printed."""

    name: str
    fields: tuple[Field[Any, Any], ...]
    short: tuple[int, int] = field(init=False)
    """Words of data and number of pointers, without the inferred fields."""
    long: tuple[int, int] = field(init=False)
    """The same with them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", _size([each for each in self.fields if not each.inferred]))
        object.__setattr__(self, "long", _size(self.fields))


def _size(fields: Sequence[Field[Any, Any]]) -> tuple[int, int]:
    data_bits = max((field.slot + field.kind.bits for field in fields if field.kind.bits), default=0)
    return -(-data_bits // WORD_BITS), sum(not field.kind.bits for field in fields)
