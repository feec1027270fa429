"""The values of structures: plain Python values that can also be called.

The real library has accessors, `anchor.name()`; Python programmers expect attributes,
`anchor.name`. Both work here: calling a value returns the value itself. This also removes a trap:
`if anchor.isPerReplica:` tests the value and not a method.
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
        """Return the value itself."""
        return self


class Number(int):
    """An integer; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> int:
        """Return the value itself."""
        return self


class Flag(int):
    """A truth value, because bool cannot be subclassed; `x()` is the bool."""

    __slots__ = ()

    def __call__(self) -> bool:
        """Return the value as a bool."""
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))

    __str__ = __repr__


FLAGS = (Flag(0), Flag(1))


class Sizes(tuple[int, ...]):
    """The sizes of a tensor's dimensions, outermost first; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> tuple[int, ...]:
        """Return the value itself."""
        return self


class Numbers(list[int]):
    """A live list of integers; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> list[int]:
        """Return the value itself."""
        return self


class Records(list[T]):
    """A live list of structures; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> list[T]:
        """Return the value itself."""
        return self


class Names(dict[int, str]):
    """A live dict from index to name; `x()` is `x`."""

    __slots__ = ()

    def __call__(self) -> dict[int, str]:
        """Return the value itself."""
        return self


def text(value: str) -> Text:
    """Return `value` as a Text; raises TypeError for anything but a str."""
    if not isinstance(value, str):
        raise TypeError(f"expected a str, got {value!r}")
    return Text(value)


def number(value: int) -> Number:
    """Return `value` as a Number; raises TypeError for anything but an integer."""
    return Number(operator.index(value))


def flag(value: bool) -> Flag:
    """Return the truth of `value` as a Flag."""
    return FLAGS[bool(value)]


def numbers(value: Iterable[int]) -> Numbers:
    """Return a new list of the integers in `value`."""
    return Numbers(map(operator.index, value))


def sizes(value: Iterable[int]) -> Sizes:
    """Return `value` as a shape; raises ValueError for a negative size."""
    result = Sizes(map(operator.index, value))
    if any(size < 0 for size in result):
        raise ValueError(
            f"expected sizes of 0 and above, got {tuple(result)}; name every dimension"
        )
    return result
