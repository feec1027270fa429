"""The decorator `dataclass` with the meaning of the standard library's, at a tenth of its cost.

The standard library writes the source of five or six methods for each class and compiles it, at
every import: with Python 3.11 that is half of the time of importing this project. Here the methods
are shared by all classes, and a class's constructor is written when it is first called.

Fields, slots and `__match_args__` are the standard library's, and so are `field`, `fields`,
`replace` and `asdict`, which work on these classes. Type checkers see its decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn


class _Absent:
    """Default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


class _Constructor:
    """The `__init__` of a class until it is used for the first time, which replaces it."""

    def __init__(self, owner: type, *, frozen: bool) -> None:
        self._owner, self._frozen = owner, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        written = _write_constructor(self._owner, frozen=self._frozen)
        self._owner.__init__ = written  # type: ignore[misc]
        return written.__get__(instance, owner)


def _write_constructor(made: Any, *, frozen: bool) -> Callable[..., None]:
    """Return a function that sets each field to its argument or its default."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_absent": _Absent()}
    positional, by_name, lines = ["self"], ["*"], []
    for each in fields(made):
        default, value = _write_field(each, scope)
        if each.init:
            listed = by_name if each.kw_only is True else positional
            listed.append(f"{each.name}={default}" if default else each.name)
        # Without slots a plain default is an attribute of the class.
        elif each.default_factory is MISSING and "__slots__" not in vars(made):
            continue
        if value:
            setting = f"_set(self, {each.name!r}, {value})"
            lines.append(setting if frozen else f"self.{each.name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(positional + (by_name if by_name[1:] else []))
    source = f"def __init__({parameters}):\n " + "\n ".join(lines or ["pass"])
    exec(source, scope)  # noqa: S102  names of fields, which are identifiers
    written: Callable[..., None] = scope["__init__"]
    written.__qualname__ = f"{made.__qualname__}.__init__"
    written.__module__ = made.__module__
    types = {each.name: each.type for each in fields(made) if each.init}
    written.__annotations__ = {**types, "return": None}
    return written


def _write_field(each: Field[Any], scope: dict[str, Any]) -> tuple[str, str]:
    """Return the source of a field's default and of its value, "" for none, and add to `scope` what
    they name."""
    name, default = each.name, f"_default_{each.name}"
    if each.default_factory is not MISSING:
        scope[default] = each.default_factory
        made = f"{default}()"
        return "_absent", f"{made} if {name} is _absent else {name}" if each.init else made
    if each.default is not MISSING:
        scope[default] = each.default
        return default, name if each.init else default
    return "", name if each.init else ""


@cache
def _find_key(made: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values by which objects of a class are compared."""
    names = [each.name for each in fields(made) if each.compare]
    if not names:
        return lambda _: ()
    get: Callable[[Any], Any] = attrgetter(*names)
    return get if names[1:] else lambda value: (get(value),)


def _compare(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    key = _find_key(other.__class__)
    return key(self) == key(other)


def _hash(self: Any) -> int:
    made: Any = self.__class__
    return hash(_find_key(made)(self))


@recursive_repr()
def _describe(self: Any) -> str:
    values = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _refuse_change(_: Any, name: str, value: object) -> NoReturn:  # noqa: ARG001
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_removal(_: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def _choose_methods(made: type, *, frozen: bool, slots: bool, flags: dict[str, bool]) -> Any:
    """Return the methods to add to a class that does not define them itself."""
    chosen: dict[str, Any] = {"__init__": _Constructor(made, frozen=frozen)}
    if flags.get("repr", True):
        chosen["__repr__"] = _describe
    if flags.get("eq", True):
        chosen |= {"__eq__": _compare, "__hash__": _hash if frozen else None}
    if frozen:
        chosen |= {"__setattr__": _refuse_change, "__delattr__": _refuse_removal}
        if slots:
            chosen |= {"__getstate__": _get_state, "__setstate__": _set_state}
    return chosen


def _decorate(cls: Any, *, frozen: bool = False, slots: bool = False, **flags: bool) -> Any:
    if flags.keys() - {"repr", "eq"}:
        return dataclasses.dataclass(frozen=frozen, slots=slots, **flags)(cls)
    own = set(vars(cls))
    if "__eq__" in own and vars(cls)["__hash__"] is None:  # as Python sets it beside `__eq__`
        own.remove("__hash__")
    # Otherwise the standard library makes a text of the signature, slowly.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    chosen = _choose_methods(made, frozen=frozen, slots=slots, flags=flags)
    for name, method in chosen.items():
        if name not in own:
            setattr(made, name, method)
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, /, **flags: bool) -> Any:
        """Return a class with the methods of a data class, or a decorator that does so."""
        if cls is None:
            return lambda decorated: _decorate(decorated, **flags)
        return _decorate(cls, **flags)
