"""Errors of pva. They are a RuntimeError, which pybind11 makes of the C++ library's exceptions."""

from __future__ import annotations

from typing import Any


class Error(RuntimeError):
    """A profile cannot be opened."""


class NotModelledError(Error):
    """The cost model does not know the figure that a property stands for."""


class NotModelled:
    """Property of a report that the cost model does not know.

    Args:
        reason: Why it is not known, as the end of a sentence.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        raise NotModelledError(f"{owner.__name__}.{self._name} is not known: {self.reason}")
