"""Objects of named, typed fields: the base of SessionOptions and of the settings within it.

A class has a table as text, with a line for each field: its name, its kind, its value at first, and
behind a bar what it changes in this implementation. A field without an effect is accepted and
checked for its type. Errors are those of the real classes: TypeError for a value, and
AttributeError for a name.
"""

from __future__ import annotations

import ast
import numbers
from enum import Enum
from typing import Any, ClassVar, Final

import numpy as np

from popart import enums
from popef._tools import options
from popef._tools.options import TEXT, Kind, Option, Wording

_KINDS: Final = {
    "bool": options.instance(bool, numbers.Real, np.bool_),
    "int": options.instance(int, numbers.Integral, np.bool_),
    "float": options.instance(float, numbers.Real, np.bool_),
    "str": TEXT,
    "object": options.instance(object),
    "Callable": options.function("Callable[[int, int], Any] | None"),
}
"""Kinds by name, beside those of enumerations. Numbers convert as in the real classes."""


_DEFAULTS: Final[dict[str, Any]] = {"list": list, "set": set, "dict": dict, "str": str}
"""Functions that make the value at first where a row has none; it is None for other kinds."""


class Settings(options.Settings):
    """Base of objects with typed fields, which the text TABLE lists.

    The constructor takes the fields' values by position or name.
    """

    WORDING: ClassVar = Wording(
        TypeError,
        "{name}: incompatible function arguments. The following argument types are supported: "
        "{kind}. {owner}.{name}{why}",
        AttributeError,
        "{owner!r} object has no attribute {name!r}{hint}",
        "; did you mean {near!r}?",
    )
    TABLE: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.__name__] = options.instance(cls)
        _DEFAULTS[cls.__name__] = cls
        lines = map(str.strip, cls.TABLE.splitlines())
        rows = [line for line in lines if line and not line.startswith("#")]
        cls.OPTIONS = options.make_table(*map(_read_row, rows))

    def _show(self, value: Any) -> str:
        return str(value) if isinstance(value, Enum) else repr(value)


def _read_row(row: str) -> Option:
    """Return the field of a row, such as `numIOTiles int 0 | tiles that only transfer`."""
    facts, _, effect = row.partition("|")
    name, kind, *default = facts.split()
    value = _read_default(kind, *default)
    return Option(name, kind=_find_kind(kind), default=value, effect=" ".join(effect.split()))


def _find_kind(name: str) -> Kind:
    """Return the kind of a name: a type, `list[...]`, `set[...]`, `dict[...]` from texts, or with a
    question mark at the end also None."""
    if name.endswith("?"):
        return options.maybe(_find_kind(name.removesuffix("?")))
    outer, _, inner = name.removesuffix("]").partition("[")
    match outer:
        case "list":
            return options.list_of(_find_kind(inner), np.ndarray)
        case "set":
            return options.set_of(_find_kind(inner))
        case "dict":
            return options.map_of(_find_kind(inner))
    return _KINDS.get(name) or options.instance(getattr(enums, name))


def _read_default(kind: str, text: str = "") -> Any:
    outer, _, inner = kind.removesuffix("]").partition("[")
    if not text:
        return None if kind.endswith("?") else _DEFAULTS.get(outer, lambda: None)()
    if outer == "set":
        return {_read_default(inner, text)}
    if hasattr(enums, kind):
        return getattr(enums, kind)[text]
    return text if kind == "str" else ast.literal_eval(text)
