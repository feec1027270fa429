"""Vocabulary that describes structures: kinds of fields, a constructor for each, and their base.

The descriptions are the classes of `types.py`. Attributes check the values assigned to them;
`values.py` says why a value can be called. Structures have equality and a text form, in the layout
of Cap'n Proto's JSON, as in Listing 1.1 of the backend guide. `codec.py` and `words.py` read and
write fields by their kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from . import values
from .enums import Enumerant, enumerant

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Return a decorator that does nothing; Python 3.10 lacks the real one, which only type
        checkers need."""
        return lambda decorated: decorated


WORD_BITS = 64

Get = TypeVar("Get")
Set = TypeVar("Set")


class Storage(Enum):
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
        kind: Storage,
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


@dataclass(frozen=True)
class Struct:
    """One structure; its fields are in ordinal order, the order in which they are printed."""

    name: str
    fields: tuple[Field[Any, Any], ...]

    @cached_property
    def short(self) -> tuple[int, int]:
        """Words of data and number of pointers, without the inferred fields."""
        return _size([field for field in self.fields if not field.inferred])

    @cached_property
    def long(self) -> tuple[int, int]:
        """Words of data and number of pointers, with the inferred fields."""
        return _size(self.fields)


def _size(fields: Sequence[Field[Any, Any]]) -> tuple[int, int]:
    data_bits = max(
        (field.slot + field.kind.bits for field in fields if field.kind.bits), default=0
    )
    return -(-data_bits // WORD_BITS), sum(not field.kind.bits for field in fields)


AnyRecord = TypeVar("AnyRecord", bound="Record")
AnyEnumerant = TypeVar("AnyEnumerant", bound=Enumerant)


def flag(doc: str, *, bit: int, default: bool = False) -> Field[values.Flag, bool]:
    """Describe a truth value."""
    return Field(Storage.BOOL, bit, doc, values.flag, lambda: values.FLAGS[default])


def enumeration(doc: str, default: AnyEnumerant, *, bit: int) -> Field[AnyEnumerant, AnyEnumerant]:
    """Describe an enumerator."""
    return Field(Storage.ENUM, bit, doc, type(default), lambda: default, enum=type(default))


def number(
    doc: str, default: int = 0, *, bit: int, signed: bool = False, inferred: bool = False
) -> Field[values.Number, int]:
    """Describe an integer of 64 bits."""
    kind = Storage.I64 if signed else Storage.U64
    return Field(kind, bit, doc, values.number, lambda: values.Number(default), inferred=inferred)


def text(doc: str, *, pointer: int) -> Field[values.Text, str]:
    """Describe a text, "" by default."""
    return Field(Storage.TEXT, pointer, doc, values.text, values.Text)


def integers(
    doc: str, *, pointer: int, inferred: bool = False
) -> Field[values.Numbers, Iterable[int]]:
    """Describe a list of integers."""
    return Field(Storage.INTS, pointer, doc, values.numbers, values.Numbers, inferred=inferred)


def sizes(doc: str, *, pointer: int) -> Field[values.Sizes, Iterable[int]]:
    """Describe a shape."""
    return Field(Storage.SIZES, pointer, doc, values.sizes, values.Sizes)


def record(doc: str, kind: type[AnyRecord], *, pointer: int) -> Field[AnyRecord, AnyRecord | None]:
    """Describe a nested structure; None stands for one with all defaults."""

    def convert(value: AnyRecord | None) -> AnyRecord:
        return kind() if value is None else _checked(kind, value)

    return Field(Storage.STRUCT, pointer, doc, convert, kind, record=kind)


def records(
    doc: str, kind: type[AnyRecord], *, pointer: int
) -> Field[values.Records[AnyRecord], Iterable[AnyRecord]]:
    """Describe a list of structures."""

    def convert(value: Iterable[AnyRecord]) -> values.Records[AnyRecord]:
        return values.Records(_checked(kind, item) for item in value)

    return Field(Storage.STRUCTS, pointer, doc, convert, values.Records, record=kind)


def names(
    doc: str, kind: type[Record], *, pointer: int
) -> Field[values.Names, Mapping[int, str] | None]:
    """Describe a map from index to name, stored as a list of structures; inferred."""

    def convert(value: Mapping[int, str] | None) -> values.Names:
        return values.Names(value or {})

    return Field(Storage.MAP, pointer, doc, convert, values.Names, record=kind, inferred=True)


def _checked(kind: type[AnyRecord], value: AnyRecord) -> AnyRecord:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def setter(field: Field[Get, Set]) -> Callable[[Any, Set], None]:
    """Return the real library's `setX` method for the attribute `x`."""

    def replace(self: Record, value: Set) -> None:
        setattr(self, field.name, value)

    replace.__doc__ = f"Replace the attribute of the same name: {field.__doc__}"
    return replace


@dataclass_transform(kw_only_default=True)
class Record:
    """Base of the structures. Instances are mutable and so not hashable; calling one returns
    itself.

    A subclass is the description of its structure: its fields, in ordinal order, with their places.
    """

    SCHEMA: ClassVar[Struct]
    _fields: ClassVar[dict[str, Field[Any, Any]]]

    def __init_subclass__(cls) -> None:
        fields = tuple(value for value in vars(cls).values() if isinstance(value, Field))
        cls.SCHEMA = Struct(cls.__name__, fields)
        cls._fields = {field.name: field for field in fields}

    def __init__(self, **fields: Any) -> None:
        for name, field in self._fields.items():
            self.__dict__[name] = field.default()
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._fields.get(name)
        if field is None:
            raise AttributeError(
                f"{type(self).__name__}.{name}: expected one of {', '.join(self._fields)}; correct "
                "the name"
            )
        try:
            self.__dict__[name] = field.convert(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(self).__name__}.{name}: {error}; correct the value") from None

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name}: cannot be deleted; set it to its default"
        )

    def __call__(self: AnyRecord) -> AnyRecord:
        """Return the structure itself, so that `anchor.tensorInfo()` is `anchor.tensorInfo`."""
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or self.SCHEMA is not other.SCHEMA:
            return NotImplemented
        return self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def __str__(self) -> str:
        """Return Cap'n Proto JSON in the layout of popef_dump."""
        return json_text(tree(self))


INDENT = "    "
LONG_ELEMENT = 50
"""Number of characters above which an element gets a separate line (capnp/compat/json.c++; Listing
1.1 agrees)."""


# In JSON 64-bit integers are strings, narrower ones and booleans bare, and enumerants names.
def tree(record: Record) -> dict[str, Any]:
    """Return the JSON object of a structure; inferred fields appear only if set, as older readers
    print it."""
    values = ((field, getattr(record, field.name)) for field in record.SCHEMA.fields)
    return {
        field.name: _field_tree(field, value)
        for field, value in values
        if value or not field.inferred
    }


def _field_tree(field: Field[Any, Any], value: Any) -> Any:
    if field.kind is Storage.ENUM:
        return enumerant(value)
    if field.kind is Storage.BOOL:
        return bool(value)
    if field.kind in (Storage.U64, Storage.I64):
        return str(value)
    if field.kind in (Storage.INTS, Storage.SIZES):
        return [str(number) for number in value]
    if field.kind is Storage.STRUCT:
        return tree(value)
    if field.kind is Storage.STRUCTS:
        return [tree(item) for item in value]
    if field.kind is Storage.MAP:
        return [{"index": str(index), "name": name} for index, name in sorted(value.items())]
    return value


def json_text(value: Any) -> str:
    """Return `value` as JSON: on one line if its elements are short, otherwise one element a
    line."""
    return _layout(value, 0, after_name=False)[0]


def _layout(value: Any, depth: int, *, after_name: bool) -> tuple[str, bool]:
    if isinstance(value, dict):
        elements = []
        for name, item in value.items():
            text, split = _layout(item, depth + 1, after_name=True)
            elements.append((f"{json.dumps(name)}: {text}", split))
        text, split = _join(elements, depth, after_name=False)
        return f"{{{text}}}", split
    if isinstance(value, list):
        items = [_layout(item, depth + 1, after_name=False) for item in value]
        text, split = _join(items, depth, after_name=after_name)
        return f"[{text}]", split
    return json.dumps(value), False


def _join(elements: list[tuple[str, bool]], depth: int, *, after_name: bool) -> tuple[str, bool]:
    """Join the elements; the second value says if each has a separate line."""
    texts = [text for text, _ in elements]
    long = any(split or len(text) > LONG_ELEMENT for text, split in elements)
    if len(elements) <= 1 or not long:
        return ", ".join(texts), False
    newline = "\n" + INDENT * (depth + 1)
    return (newline if after_name else " ") + f",{newline}".join(texts) + " ", True
