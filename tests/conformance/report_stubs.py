"""Stand-in for profile reports, and asserts that ignore it.

A test of Graphcore's TensorFlow checks values, and often also compute sets, tile memory or cycles
of Poplar's report. Those have no counterpart here. A `Neutral` takes the place of a report: all that
is read from it is a `Neutral`, too. An assert with a `Neutral` among its arguments is counted and
skipped; every other assert is counted and run, so that no wrong value can pass.
"""

from __future__ import annotations

import functools
import inspect
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, Final

from case_results import count_event

NEUTRALISED, CHECKED = "neutralised", "checked"
"""Events: an assert about a report, which is skipped, and any other assert."""
BUILTINS: Final[tuple[Callable[..., Any], ...]] = (len, abs, round)
"""Functions that test files call with parts of a report, and that Python lets return no stand-in."""


class Neutral:
    """A report, or anything that is read from one."""

    def __getattr__(self, name: str) -> Neutral:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Neutral:
        return self

    def __iter__(self) -> Iterator[Neutral]:
        yield self

    def __len__(self) -> int:
        return 1

    def __contains__(self, _: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(Neutral)

    def __repr__(self) -> str:
        return "Neutral()"

    def _ignore(self, *_: Any) -> Neutral:
        return self

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _ignore
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __neg__ = _ignore
    __lt__ = __le__ = __gt__ = __ge__ = _ignore
    __eq__ = __ne__ = _ignore  # type: ignore[assignment]


NEUTRAL: Final = Neutral()


def is_neutral(value: Any) -> bool:
    """Return whether a value is a `Neutral`, or a list or tuple that contains one."""
    if isinstance(value, (list, tuple)):
        return any(is_neutral(item) for item in value)
    return isinstance(value, Neutral)


def ignore_report(*_: Any, **__: Any) -> Neutral:
    """Count an assert about a report."""
    count_event(NEUTRALISED)
    return NEUTRAL


def watch_asserts(*classes: type[unittest.TestCase]) -> None:
    """Let the assert methods of classes of tests skip and count those about reports."""
    for kind in classes:
        for name, function in list(vars(kind).items()):
            if name.startswith("assert") and inspect.isfunction(function):
                setattr(kind, name, _watch(function))


def _watch(function: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(function, "watched_assert"):
        return function

    @functools.wraps(function)
    def check(*args: Any, **named: Any) -> Any:
        if is_neutral(args[1:]) or is_neutral(tuple(named.values())):
            return ignore_report()
        count_event(CHECKED)
        return function(*args, **named)

    vars(check)["watched_assert"] = True
    return check


def shadow_builtins(module: types.ModuleType) -> None:
    """Let `len` and others return a `Neutral` for a `Neutral` in the functions of a module."""
    for builtin in BUILTINS:
        vars(module).setdefault(builtin.__name__, _shadow(builtin))


def _shadow(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return NEUTRAL if is_neutral(args[:1]) else builtin(*args, **named)

    return call
