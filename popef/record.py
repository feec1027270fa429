"""Base of the structures, and a constructor for each kind of attribute.

Attributes check the values assigned to them. Structures have equality and a text form. `values.py`
says why a value can be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import values
from .describe import json_text, tree
from .enums import Enumerant
from .schema import Field, Get, Kind, Set, Struct

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Return a decorator that does nothing; Python 3.10 lacks the real one, which only type
        checkers need."""
        return lambda decorated: decorated


AnyRecord = TypeVar("AnyRecord", bound="Record")
AnyEnumerant = TypeVar("AnyEnumerant", bound=Enumerant)


def flag(doc: str, *, bit: int, default: bool = False) -> Field[values.Flag, bool]:
    """Describe a truth value."""
    return Field(Kind.BOOL, bit, doc, values.flag, lambda: values.FLAGS[default])


def enumeration(doc: str, default: AnyEnumerant, *, bit: int) -> Field[AnyEnumerant, AnyEnumerant]:
    """Describe an enumerator."""
    return Field(Kind.ENUM, bit, doc, type(default), lambda: default, enum=type(default))


def number(
    doc: str, default: int = 0, *, bit: int, signed: bool = False, inferred: bool = False
) -> Field[values.Number, int]:
    """Describe an integer of 64 bits."""
    kind = Kind.I64 if signed else Kind.U64
    return Field(kind, bit, doc, values.number, lambda: values.Number(default), inferred=inferred)


def text(doc: str, *, pointer: int) -> Field[values.Text, str]:
    """Describe a text, "" by default."""
    return Field(Kind.TEXT, pointer, doc, values.text, values.Text)


def integers(
    doc: str, *, pointer: int, inferred: bool = False
) -> Field[values.Numbers, Iterable[int]]:
    """Describe a list of integers."""
    return Field(Kind.INTS, pointer, doc, values.numbers, values.Numbers, inferred=inferred)


def sizes(doc: str, *, pointer: int) -> Field[values.Sizes, Iterable[int]]:
    """Describe a shape."""
    return Field(Kind.SIZES, pointer, doc, values.sizes, values.Sizes)


def record(doc: str, kind: type[AnyRecord], *, pointer: int) -> Field[AnyRecord, AnyRecord | None]:
    """Describe a nested structure; None stands for one with all defaults."""

    def convert(value: AnyRecord | None) -> AnyRecord:
        return kind() if value is None else _checked(kind, value)

    return Field(Kind.STRUCT, pointer, doc, convert, kind, record=kind)


def records(
    doc: str, kind: type[AnyRecord], *, pointer: int
) -> Field[values.Records[AnyRecord], Iterable[AnyRecord]]:
    """Describe a list of structures."""

    def convert(value: Iterable[AnyRecord]) -> values.Records[AnyRecord]:
        return values.Records(_checked(kind, item) for item in value)

    return Field(Kind.STRUCTS, pointer, doc, convert, values.Records, record=kind)


def names(
    doc: str, kind: type[Record], *, pointer: int
) -> Field[values.Names, Mapping[int, str] | None]:
    """Describe a map from index to name, stored as a list of structures; inferred."""

    def convert(value: Mapping[int, str] | None) -> values.Names:
        return values.Names(value or {})

    return Field(Kind.MAP, pointer, doc, convert, values.Names, record=kind, inferred=True)


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
