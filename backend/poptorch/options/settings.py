"""Groups of options: typed values with setters, which can be frozen.

A group's table OPTIONS is the one place that says what an option is called, which values it takes,
and what it changes. The setters, `repr` and the documentation are made from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from popef._tools.text import find_near


class _Unset:
    """Type of the marker for a value that is not there."""

    def __repr__(self) -> str:
        return "unset"

    def __deepcopy__(self, memo: Any) -> _Unset:
        return self


UNSET: Final = _Unset()
"""Default of options that do not exist until they are set."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: names, type, default and effect."""

    setter: str
    """Name of the method that sets it; "" if the group defines that method itself."""
    name: str
    """Name under which it is read, and of the entry of `toDict`."""
    kind: type | tuple[type, ...]
    default: Any = UNSET
    meaning: str = ""
    """What it is, in a sentence."""
    effect: str = ""
    """What it changes in this implementation; empty if it is accepted without effect."""
    argument: Any = UNSET
    """Default of the setter's argument."""
    popart: bool = False
    """Whether it is stored among PopART's options, `_Popart`."""
    convert: Callable[[Any], Any] | None = None
    """Check and conversion of the setter's argument."""


def make_setter(option: Option) -> Callable[..., Any]:
    """Return the method that sets an option and returns its group."""

    def set_option(self: OptionGroup, value: Any = option.argument, **named: Any) -> OptionGroup:
        if named:
            value = _take_named(option, named)
        if value is UNSET:
            raise TypeError(f"{option.setter}() needs a value: {option.meaning}")
        if option.convert is not None:
            value = option.convert(value)
        if option.popart:
            check_type(option, value)
            self.popart.set(option.name, value)
        else:
            self.set(**{option.name: value})
        return self

    set_option.__name__ = option.setter
    set_option.__qualname__ = option.setter
    set_option.__doc__ = option.meaning
    return set_option


def _take_named(option: Option, named: dict[str, Any]) -> Any:
    """Return the argument of a setter that is passed by its name, that of the option."""
    if set(named) != {option.name}:
        raise TypeError(
            f"{option.setter}() got unexpected arguments {sorted(named)}: expected {option.name}"
        )
    return named[option.name]


def check_type(option: Option, value: Any) -> None:
    """Raise AssertionError unless a value has an option's type."""
    if not isinstance(value, option.kind):
        raise AssertionError(
            f"Unexpected type {type(value)} for option {option.name}. Expected {option.kind}"
        )


class OptionGroup:
    """Base of Options and of its parts.

    Values are read as attributes. Attributes with public names may be assigned too; their types are
    checked. After `freeze` every change raises AttributeError.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    _values: dict[str, Any]
    _frozen: bool

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for option in cls.__dict__.get("OPTIONS", ()):
            if option.setter:
                setattr(cls, option.setter, make_setter(option))

    def __init__(self) -> None:
        self._frozen = False
        self._values = {
            option.name: copy.copy(option.default)
            for option in self.OPTIONS
            if option.default is not UNSET and not option.popart
        }

    @property
    def popart(self) -> Any:
        """PopART's options, for groups that set some of them."""
        raise AttributeError(f"{type(self).__name__} has no PopART options")

    def parts(self) -> tuple[OptionGroup, ...]:
        """Return the groups within this one."""
        return ()

    def exists(self, name: str) -> bool:
        """Return whether an option has a value."""
        return name in self._values

    def deleteIfExists(self, name: str) -> None:
        """Remove the value of an option that does not exist until it is set."""
        self.check_frozen()
        self._values.pop(name, None)

    def set(self, **values: Any) -> None:
        """Set options by name.

        Args:
            **values: Values by the options' names.
        """
        self.check_frozen()
        options = {option.name: option for option in self.OPTIONS if not option.popart}
        for name, value in values.items():
            assert name in options, f"Invalid option {name}, valid options are {list(options)}"
            check_type(options[name], value)
            self._values[name] = value

    def check_frozen(self) -> None:
        """Raise AttributeError if the options cannot be changed any more."""
        if self.__dict__.get("_frozen", False):
            raise AttributeError(
                "Can't modify frozen Options: a model or a DataLoader uses them; "
                "change a clone() of them instead"
            )

    def freeze(self) -> None:
        """Reject changes from now on, of the parts too."""
        self._frozen = True
        for part in self.parts():
            part.freeze()

    def toDict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        near = find_near(name, [*dir(type(self)), *values])
        hint = f" Did you mean {near!r}?" if near and not name.startswith("_") else ""
        raise AttributeError(f"Invalid attribute {name}.{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            if name != "_frozen":
                self.check_frozen()
            object.__setattr__(self, name, value)
        elif any(option.name == name for option in self.OPTIONS):
            self.set(**{name: value})
        else:
            raise AttributeError(f"Invalid attribute {name}.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy that can be changed."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(
            {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        )
        made.__dict__["_frozen"] = False
        return made

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{type(self).__name__}({values})"
