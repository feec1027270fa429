"""The values of structures: plain Python values that can also be called.

The real library has accessors, `anchor.name()`; Python programmers expect attributes, `anchor.name`. Both are
the same thing here: a value that, called, gives itself. It also removes a trap: `if anchor.isPerReplica:`
means what it says.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Text(str):
    """A text; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> str:
        """The value itself."""
        return self


class Number(int):
    """An integer; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> int:
        """The value itself."""
        return self


class Flag(int):
    """A truth value, for bool cannot be subclassed; `x()` is the bool."""

    __slots__ = ()

    def __call__(self) -> bool:
        """The value itself."""
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))

    __str__ = __repr__


FLAGS = (Flag(0), Flag(1))


class Sizes(tuple[int, ...]):
    """The sizes of a tensor's dimensions, outermost first; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> tuple[int, ...]:
        """The value itself."""
        return self


class Numbers(list[int]):
    """A live list of integers; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> list[int]:
        """The value itself."""
        return self


class Records(list[T]):
    """A live list of structures; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> list[T]:
        """The value itself."""
        return self


class Names(dict[int, str]):
    """A live dict from index to name; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> dict[int, str]:
        """The value itself."""
        return self


def text(value: str) -> Text:
    """`value` as a Text; raises TypeError for anything but a str."""
    if not isinstance(value, str):
        raise TypeError(f"expected a str, got {value!r}")
    return Text(value)


def number(value: int) -> Number:
    """`value` as a Number; raises TypeError for what is no integer."""
    return Number(operator.index(value))


def flag(value: bool) -> Flag:
    """The truth of `value`."""
    return FLAGS[bool(value)]


def numbers(value: Iterable[int]) -> Numbers:
    """A new list of the integers in `value`."""
    return Numbers(map(operator.index, value))


def sizes(value: Iterable[int]) -> Sizes:
    """A shape; raises ValueError for a negative size."""
    result = Sizes(map(operator.index, value))
    if any(size < 0 for size in result):
        raise ValueError(f"expected sizes of 0 and above, got {tuple(result)}; name every dimension")
    return result
