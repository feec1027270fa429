"""Base of the structures: attributes that check what is put into them, equality and text, all from the table
of `schema.py`.

A value stands in the instance's dict, so reading one costs what reading any attribute costs; `values.py` says
why it can be called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from . import values
from .describe import json_text, tree
from .enums import Enumerant
from .schema import Struct

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Only type checkers need the real one, which Python 3.10 does not have."""
        return lambda decorated: decorated


Get = TypeVar("Get")
Set = TypeVar("Set")
AnyRecord = TypeVar("AnyRecord", bound="Record")
AnyEnumerant = TypeVar("AnyEnumerant", bound=Enumerant)

RECORDS: dict[str, type[Record]] = {}
"""The class of each structure that has one, by the structure's name."""


class Field(Generic[Get, Set]):
    """Declares one attribute of a Record: what it means, how a value is checked, and its default."""

    def __init__(self, doc: str, convert: Callable[[Set], Get], default: Callable[[], Get]) -> None:
        self.__doc__ = doc
        self.convert = convert
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

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


def text(doc: str) -> Field[values.Text, str]:
    """A text, "" by default."""
    return Field(doc, values.text, values.Text)


def number(doc: str, default: int = 0) -> Field[values.Number, int]:
    """An integer."""
    return Field(doc, values.number, lambda: values.Number(default))


def flag(doc: str, *, default: bool = False) -> Field[values.Flag, bool]:
    """A truth value."""
    return Field(doc, values.flag, lambda: values.FLAGS[default])


def enumeration(doc: str, default: AnyEnumerant) -> Field[AnyEnumerant, AnyEnumerant]:
    """An enumerator."""
    return Field(doc, type(default), lambda: default)


def record(doc: str, kind: type[AnyRecord]) -> Field[AnyRecord, AnyRecord | None]:
    """A structure; None stands for one with all defaults."""

    def convert(value: AnyRecord | None) -> AnyRecord:
        return kind() if value is None else _checked(kind, value)

    return Field(doc, convert, kind)


def records(doc: str, kind: type[AnyRecord]) -> Field[values.Records[AnyRecord], Any]:
    """A list of structures."""
    return Field(doc, lambda value: values.Records(_checked(kind, item) for item in value), values.Records)


def _checked(kind: type[AnyRecord], value: AnyRecord) -> AnyRecord:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def setter(field: Field[Get, Set]) -> Callable[[Any, Set], None]:
    """The real library's `setX` method for the attribute `x`."""

    def replace(self: Record, value: Set) -> None:
        setattr(self, field.name, value)

    replace.__doc__ = f"Replace the attribute of the same name: {field.__doc__}"
    return replace


@dataclass_transform(kw_only_default=True)
class Record:
    """Base of the structures. Instances can be changed and so are not hashable; calling one gives itself."""

    SCHEMA: ClassVar[Struct]
    _fields: ClassVar[dict[str, Field[Any, Any]]]

    def __init_subclass__(cls) -> None:
        cls._fields = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        assert list(cls._fields) == [field.name for field in cls.SCHEMA.fields]
        RECORDS[cls.SCHEMA.name] = cls

    def __init__(self, **fields: Any) -> None:
        for name, field in self._fields.items():
            self.__dict__[name] = field.default()
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._fields.get(name)
        if field is None:
            raise AttributeError(
                f"{type(self).__name__}.{name}: expected one of {', '.join(self._fields)}; correct the name"
            )
        try:
            self.__dict__[name] = field.convert(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(self).__name__}.{name}: {error}; correct the value") from None

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name}: expected to stay, got a deletion; set it to its default"
        )

    def __call__(self: AnyRecord) -> AnyRecord:
        """The structure itself, so that `anchor.tensorInfo()` is `anchor.tensorInfo`."""
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
        """Cap'n Proto JSON, laid out as popef_dump prints it."""
        return json_text(tree(self))
