"""Objects of named, typed fields: the base of SessionOptions and of the settings within it.

A field has a kind, which says what may be assigned to it. Other values raise TypeError and unknown
names AttributeError, as the real classes do.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from popef._tools.text import find_near


@dataclass(frozen=True, slots=True)
class ListOf:
    """Kind of a list whose items have the kind `item`."""

    item: Any


@dataclass(frozen=True, slots=True)
class SetOf:
    """Kind of a set whose items have the kind `item`."""

    item: Any


@dataclass(frozen=True, slots=True)
class MapOf:
    """Kind of a dict from texts to values of the kind `item`."""

    item: Any


@dataclass(frozen=True, slots=True)
class Maybe:
    """Kind of a value of the kind `item`, or None."""

    item: Any


class TypedDict(dict[str, Any]):
    """A dict whose values are checked when they are set."""

    def __init__(self, kind: MapOf, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._kind = kind
        self.update(values)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(convert(str, key), convert(self._kind.item, value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several values, each of which is checked."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle with the kind of the values."""
        return TypedDict, (self._kind, dict(self))


def convert(kind: Any, value: Any) -> Any:
    """Return a value in the form of a kind.

    Args:
        kind: bool, int, float, str, Callable, an enumeration, a class of settings, ListOf, SetOf,
            MapOf or Maybe.
        value: The value.

    Returns:
        The value, converted if it is of a compatible type.

    Raises:
        TypeError: If the value does not fit.
    """
    if kind is Callable and (value is None or callable(value)):
        return value
    match kind:
        case ListOf() if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
            return [convert(kind.item, item) for item in value]
        case SetOf() if isinstance(value, (AbstractSet, Sequence)) and not isinstance(value, str):
            return {convert(kind.item, item) for item in value}
        case MapOf() if isinstance(value, Mapping):
            return TypedDict(kind, value)
        case Maybe():
            return None if value is None else convert(kind.item, value)
        case type():
            return _convert_plain(kind, value)
    raise TypeError(f"expected {describe(kind)}, found {value!r}")


def _convert_plain(kind: type, value: Any) -> Any:
    is_number = isinstance(value, (numbers.Real, np.bool_))
    if kind is bool and is_number:
        return bool(value)
    if kind is int and isinstance(value, (numbers.Integral, np.bool_)):
        return int(value)
    if kind is float and is_number:
        return float(value)
    if kind not in (bool, int, float) and isinstance(value, kind):
        return value
    raise TypeError(f"expected {describe(kind)}, found {value!r}")


def describe(kind: Any) -> str:
    """Return a kind as Python writes a type, as `list[int]`."""
    match kind:
        case ListOf():
            return f"list[{describe(kind.item)}]"
        case SetOf():
            return f"set[{describe(kind.item)}]"
        case MapOf():
            return f"dict[str, {describe(kind.item)}]"
        case Maybe():
            return f"{describe(kind.item)} | None"
    if kind is Callable:
        return "Callable[[int, int], Any] | None"
    return str(kind.__name__)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of settings: what it may hold, and its value at first."""

    kind: Any
    default: Any = None
    """Value at first, or a function without arguments that makes it."""
    effect: str = ""
    """What the field changes in this implementation; empty if it is accepted without effect."""

    def make_default(self) -> Any:
        """Return the value at first; mutable ones are not shared."""
        made = self.default() if callable(self.default) else self.default
        return convert(self.kind, made)


class Settings:
    """Base of objects with typed fields.

    A subclass has the table FIELDS. Its constructor takes the fields' values by position or name.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = {}
    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Older names of fields."""
    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(self.FIELDS):
            raise TypeError(
                f"{type(self).__name__}(): incompatible constructor arguments: expected at most "
                f"{len(self.FIELDS)}, found {len(args)}"
            )
        given = dict(zip(self.FIELDS, args, strict=False)) | kwargs
        values = {name: field.make_default() for name, field in self.FIELDS.items()}
        object.__setattr__(self, "_values", values)
        for name, value in given.items():
            if name not in self.FIELDS:
                raise TypeError(
                    f"{type(self).__name__}(): incompatible constructor arguments: {name!r}"
                )
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_values":
            raise AttributeError(name)
        return self._values[self._find_field(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._find_field(name)
        try:
            self._values[field] = convert(self.FIELDS[field].kind, value)
        except TypeError as error:
            raise TypeError(
                f"{name}: incompatible function arguments. The following argument types are "
                f"supported: {describe(self.FIELDS[field].kind)}. {type(self).__name__}.{name}: "
                f"{error}"
            ) from None

    def _find_field(self, name: str) -> str:
        found = self.ALIASES.get(name, name)
        if found in self.FIELDS:
            return found
        near = find_near(name, [*self.FIELDS, *self.ALIASES])
        hint = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __dir__(self) -> Iterator[str]:
        yield from [*super().__dir__(), *self.FIELDS, *self.ALIASES]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings) or type(other) is not type(self):
            return NotImplemented
        return other._values == self._values

    __hash__ = None  # type: ignore[assignment] # the fields can be changed

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_show(value)}" for name, value in self._values.items())
        return f"{type(self).__name__}({values})"

    def changed(self) -> dict[str, Any]:
        """Return the fields whose value is not that at first."""
        return {
            name: value
            for name, value in self._values.items()
            if value != self.FIELDS[name].make_default()
        }

    def copy(self) -> Any:
        """Return an independent copy; lists, dicts and settings within are copied too."""
        made = type(self).__new__(type(self))
        values = {name: _copy(value) for name, value in self._values.items()}
        object.__setattr__(made, "_values", values)
        return made

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()


def _copy(value: Any) -> Any:
    match value:
        case Settings():
            return value.copy()
        case TypedDict():
            return TypedDict(value._kind, value)  # noqa: SLF001
        case list() | set():
            return type(value)(value)
    return value


def _show(value: Any) -> str:
    return str(value) if isinstance(value, Enum) else repr(value)
