"""Groups of options: typed values with setters, which can be frozen.

A group's table OPTIONS is the one place that says what an option is called, which values it takes,
and what it changes. The setters, `repr` and the documentation are made from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from popef._tools import options
from popef._tools.options import UNSET, Kind, Wording


def typed(kind: type | tuple[type, ...]) -> Kind:
    """Return the kind of the instances of a class, or of several, as Python writes it."""
    return options.instance(kind, name=str(kind))


INT, BOOL, TEXT, DICT = map(typed, (int, bool, str, dict))


@dataclass(frozen=True, slots=True)
class Option(options.Option):
    """An option. `name` is that under which it is read, and of the entry of `toDict`. Without a
    default it has no value until it is set."""

    setter: str = ""
    """Name of the method that sets it; "" if the group defines that method itself."""
    default: Any = UNSET
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
            raise TypeError(f"{option.setter}() needs a value: {option.help}")
        if option.convert is not None:
            value = option.convert(value)
        if option.popart:
            self.popart.set(option.name, self.WORDING.read(option, value))
        else:
            self.set(**{option.name: value})
        return self

    set_option.__name__ = option.setter
    set_option.__qualname__ = option.setter
    set_option.__doc__ = option.help
    return set_option


def _take_named(option: Option, named: dict[str, Any]) -> Any:
    """Return the argument of a setter that is passed by its name, that of the option."""
    if set(named) != {option.name}:
        raise TypeError(
            f"{option.setter}() got unexpected arguments {sorted(named)}: expected {option.name}"
        )
    return named[option.name]


class OptionGroup(options.Settings):
    """Base of Options and of its parts.

    Values are read as attributes. Attributes with public names may be assigned too; their types are
    checked. After `freeze` every change raises AttributeError.
    """

    WORDING: ClassVar = Wording(
        AssertionError,
        "Unexpected type {type} for option {name}. Expected {kind}",
        AttributeError,
        "Invalid attribute {name}.{hint}",
        " Did you mean {near!r}?",
    )
    _frozen: bool

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for option in cls.__dict__.get("OPTIONS", {}).values():
            if option.setter:
                setattr(cls, option.setter, make_setter(option))

    def __init__(self) -> None:
        super().__init__()
        self._frozen = False

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
        names = [name for name, option in self.OPTIONS.items() if not option.popart]
        for name, value in values.items():
            assert name in names, f"Invalid option {name}, valid options are {names}"
            super().__setattr__(name, value)

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

    def _refuse(self, name: str) -> NoReturn:
        names = () if name.startswith("_") else (*dir(type(self)), *self._values)
        self.WORDING.refuse(name, names)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            if name != "_frozen":
                self.check_frozen()
            object.__setattr__(self, name, value)
        elif name in self.OPTIONS:
            self.set(**{name: value})
        else:
            self.WORDING.refuse(name, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy that can be changed."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(
            {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        )
        copied.__dict__["_frozen"] = False
        return copied

    # Two groups with the same values are two groups, as in the real module.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment] # Settings can be compared
