"""Typed options: one entry says what an option is called, which values it takes, its default, what
it changes, and what it means.

Every room with options makes its tables of these parts. A `Kind` reads a value, from Python or from
a text. An `Option` holds the facts. A `Wording` holds the error texts, which are those of the tool
whose options they are. A table is used in one of three forms: `read_values` reads a mapping,
`Settings` has the options as attributes, and `option_field` makes fields of a dataclass.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from .text import escape, find_near

_MAX_QUOTED: Final = 200
"""Maximum number of characters of a value in an error."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")
"""Whole number; more digits are beyond every bound, and Python does not read 5,000 of them."""


class _Unset(Enum):
    """Marks a missing value; an enumeration, so that its copies are the same object."""

    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Default of an option that has no value until it is set."""


def quote(value: object) -> str:
    """Return a value as Python writes it, for an error: short, and in one line."""
    try:
        return escape(repr(value), _MAX_QUOTED)
    except ValueError:  # Python does not print numbers with thousands of digits
        return "a number that is too long to be written"


class MismatchError(TypeError):
    """A value that an option cannot have.

    Args:
        expected: what the option takes.
        found: what it got in its place; by default the whole value.
        text: what follows the option's name in the error, if it is no sentence of these two.
    """

    def __init__(self, expected: str = "", found: object = UNSET, text: str = "") -> None:
        super().__init__(text or f"expected {expected}, found {quote(found)}")
        self._expected, self._found, self._text = expected, found, text

    def describe(self, value: object) -> str:
        """Return what follows the option's name in the error about a value."""
        shown = value if self._found is UNSET else self._found
        return self._text or f": expected {self._expected}, found {quote(shown)}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Values that an option takes."""

    name: str
    """What documents call these values."""
    read: Callable[[Any], Any] = lambda value: value
    """Return a value in the form that the room uses; raise MismatchError if it has no such form."""
    base: type = object
    """Class of the values, or of their items, where the kind is of one."""


def instance(kind: type | tuple[type, ...], *others: type, name: str = "") -> Kind:
    """Return the kind of the instances of a class, or of one of several classes. Values of `others`
    are converted to it."""
    shown = name or (kind.__name__ if isinstance(kind, type) else str(kind))

    def read(value: Any) -> Any:
        if others and isinstance(kind, type) and isinstance(value, others):
            return kind(value)
        if not isinstance(value, kind):
            raise MismatchError(shown, value)
        return value

    return Kind(shown, read, kind if isinstance(kind, type) else object)


def function(name: str) -> Kind:
    """Return the kind of functions, or None."""

    def read(value: Any) -> Any:
        if not (value is None or callable(value)):
            raise MismatchError(name, value)
        return value

    return Kind(name, read)


def read_integer(text: str) -> int | None:
    """Return a whole number in ASCII digits, or None; `int` reads 1_000 and the digits of other
    scripts, too."""
    return int(text) if _INTEGER.fullmatch(text.strip()) else None


def whole_number(least: int, most: int) -> Kind:
    """Return the kind of texts of a whole number within bounds, both included."""
    expected = f"a whole number from {least} to {most}"

    def read(text: str) -> int:
        value = read_integer(text)
        if value is None or not least <= value <= most:
            raise MismatchError(expected)
        return value

    return Kind(expected, read)


def word_of(words: Mapping[str, Any], expected: str = "") -> Kind:
    """Return the kind of some words, in any case; each stands for its value."""
    values = {word.lower(): value for word, value in words.items()}

    def read(text: str) -> Any:
        word = text.strip().lower()
        if word not in values:
            raise MismatchError(expected or " or ".join(words))
        return values[word]

    return Kind(", ".join(words), read)


_UNREADABLE: Final = (LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
"""Errors of functions that read values of unknown forms."""


def reading(read: Callable[[Any], Any], expected: str) -> Kind:
    """Return the kind of what a function reads; its errors say that it cannot read a value."""

    def read_or_refuse(value: Any) -> Any:
        try:
            return read(value)
        except _UNREADABLE:
            raise MismatchError(expected) from None

    return Kind(expected, read_or_refuse)


def list_of(item: Kind, *others: type) -> Kind:
    """Return the kind of lists of items; other sequences, and `others`, are converted."""
    return _collection_of(list, item, (Sequence, *others))


def set_of(item: Kind) -> Kind:
    """Return the kind of sets of items; sequences are converted."""
    return _collection_of(set, item, (AbstractSet, Sequence))


def _collection_of(kind: type, item: Kind, accepted: tuple[type[Any], ...]) -> Kind:
    name = f"{kind.__name__}[{item.name}]"

    def read(values: Any) -> Any:
        if isinstance(values, str) or not isinstance(values, accepted):
            raise MismatchError(name, values)
        return kind(map(item.read, values))

    return Kind(name, read, item.base)


def map_of(item: Kind) -> Kind:
    """Return the kind of dicts from texts to items, which are checked when they are set too."""
    name = f"dict[str, {item.name}]"

    def read(values: Any) -> CheckedDict:
        if not isinstance(values, Mapping):
            raise MismatchError(name, values)
        return CheckedDict(item, values)

    return Kind(name, read)


def maybe(item: Kind) -> Kind:
    """Return the kind of an item or None."""
    return Kind(f"{item.name} | None", lambda value: None if value is None else item.read(value))


TEXT: Final = instance(str)


class CheckedDict(dict[str, Any]):
    """A dict whose keys are texts and whose values have a kind; both are checked when they are set.

    Raises TypeError for others.
    """

    def __init__(self, item: Kind, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._item = item
        self.update(values)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(TEXT.read(key), self._item.read(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several values, each of which is checked."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def copy(self) -> CheckedDict:
        """Return an independent dict with the same values and checks."""
        return CheckedDict(self._item, self)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a dict; the settings that hold it check its values again."""
        return dict, (dict(self),)


@dataclass(frozen=True, slots=True)
class Option:
    """Facts about an option. Rooms add their own in a subclass."""

    name: str
    help: str = ""
    """What it means."""
    _: KW_ONLY
    kind: Kind = Kind("")
    default: Any = None
    effect: str = ""
    """What it changes in this implementation, where the table tells this; "" if it is accepted
    without effect."""

    def make_default(self) -> Any:
        """Return the value at first; those that can be changed are not shared."""
        return _copy(self.kind.read(self.default))


_Entry = TypeVar("_Entry", bound=Option)


def make_table(*entries: _Entry) -> dict[str, _Entry]:
    """Return entries by name."""
    return {entry.name: entry for entry in entries}


@dataclass(frozen=True, slots=True)
class Wording:
    """Errors about options in the words of the tool whose options they are.

    Templates may use {owner}, {name} and {kind} of the option, the value's {type}, and {why}, such
    as ": expected a name, found 3"; those of unknown names {owner}, {name}, {quoted}, {hint} and
    {known}.
    """

    error: type[Exception]
    wrong: str
    unknown_error: type[Exception]
    unknown: str
    hint: str = "; did you mean {near}?"

    def read(self, option: Option, value: Any, owner: str = "") -> Any:
        """Return the value of an option; raise `error` for one that it cannot have."""
        try:
            return option.kind.read(value)
        except MismatchError as mismatch:
            facts = {"name": option.name, "kind": option.kind.name, "type": type(value)}
            text = self.wrong.format(owner=owner, why=mismatch.describe(value), **facts)
            raise self.error(text) from None

    def refuse(self, name: str, known: Collection[str], owner: str = "") -> NoReturn:
        """Raise `unknown_error` for a name that no option has."""
        near = find_near(str(name), known)
        hint = self.hint.format(near=near) if near else ""
        facts = {"quoted": quote(name), "hint": hint, "known": ", ".join(known)}
        raise self.unknown_error(self.unknown.format(owner=owner, name=name, **facts))


def read_values(
    options: Mapping[str, Option], values: Mapping[str, Any], wording: Wording, owner: str = ""
) -> dict[str, Any]:
    """Return the values of a table's options, by name. Raise the errors of the wording for an
    unknown name and for a value that an option cannot have."""
    for name in sorted(values.keys() - options.keys(), key=str):
        wording.refuse(name, options, owner)
    return {name: wording.read(options[name], value, owner) for name, value in values.items()}


def option_field(
    kind: Kind, default: Any, help: str = "", make: type[Option] = Option, **facts: Any
) -> Any:
    """Return the field of a dataclass that is an option, of the class `make` with its `facts`. The
    field is required if the default is UNSET."""
    entry = make("", help, kind=kind, default=default, **facts)
    first: dict[str, Any] = {} if default is UNSET else {"default": default}
    if isinstance(default, (list, dict)):
        first = {"default_factory": lambda: _copy(default)}
    return dataclasses.field(metadata={"option": entry}, **first)


def options_of(record: Any) -> dict[str, Any]:
    """Return the options that are fields of a dataclass, by name."""
    return make_table(
        *(
            dataclasses.replace(field.metadata["option"], name=field.name)
            for field in dataclasses.fields(record)
        )
    )


class Settings:
    """Base of objects whose attributes are the options of a table.

    A subclass has the table OPTIONS and its WORDING. Its constructor takes the values by position
    or name.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {}
    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Older names of options."""
    WORDING: ClassVar[Wording]
    _values: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        owner = type(self).__name__
        if len(args) > len(self.OPTIONS):
            raise TypeError(
                f"{owner}(): incompatible constructor arguments: expected at most "
                f"{len(self.OPTIONS)}, found {len(args)}"
            )
        self.__dict__["_values"] = {
            name: entry.make_default()
            for name, entry in self.OPTIONS.items()
            if entry.default is not UNSET
        }
        for name, value in (dict(zip(self.OPTIONS, args, strict=False)) | kwargs).items():
            if name not in self.OPTIONS:
                raise TypeError(f"{owner}(): incompatible constructor arguments: {name!r}")
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        key = self.ALIASES.get(name, name)
        if key in values:
            return values[key]
        return self._refuse(name)

    def __setattr__(self, name: str, value: Any) -> None:
        key = self.ALIASES.get(name, name)
        if key not in self.OPTIONS:
            self._refuse(name)
        entry = dataclasses.replace(self.OPTIONS[key], name=name)
        self._values[key] = self.WORDING.read(entry, value, type(self).__name__)

    def _refuse(self, name: str) -> NoReturn:
        if name.startswith("__"):  # protocols of Python ask for names that there may be
            raise AttributeError(name)
        self.WORDING.refuse(name, [*self.OPTIONS, *self.ALIASES], type(self).__name__)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        for name, value in self._values.items():
            self._values[name] = self.OPTIONS[name].kind.read(value)

    def __dir__(self) -> Iterator[str]:
        yield from [*super().__dir__(), *self.OPTIONS, *self.ALIASES]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings) or type(other) is not type(self):
            return NotImplemented
        return other._values == self._values

    __hash__ = None  # type: ignore[assignment] # the values can be changed

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self._show(value)}" for name, value in self._values.items())
        return f"{type(self).__name__}({values})"

    def _show(self, value: Any) -> str:
        """Return how `repr` writes a value."""
        return repr(value)

    def changed(self) -> dict[str, Any]:
        """Return the values that are not those at first."""
        return {
            name: value
            for name, value in self._values.items()
            if value != self.OPTIONS[name].make_default()
        }

    def copy(self, **changes: Any) -> Any:
        """Return an independent copy with changes; lists, dicts and settings within are copied
        too."""
        clone = type(self).__new__(type(self))
        values = {name: _copy(value) for name, value in self._values.items()}
        clone.__dict__.update(self.__dict__, _values=values)
        for name, value in changes.items():
            setattr(clone, name, value)
        return clone

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (Settings, dict, list, set)) else value
