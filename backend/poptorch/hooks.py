"""Hooks that are called before and after a compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Hook = Callable[[], Any]


class HookHandle:
    """Handle of a registered hook."""

    def __init__(self, hooks: dict[int, _Hook], number: int) -> None:
        self._hooks = hooks
        self._number = number

    def remove(self) -> None:
        """Remove the hook; again has no effect."""
        self._hooks.pop(self._number, None)


class Hooks:
    """Functions that are called in the order of their registration."""

    def __init__(self) -> None:
        self._hooks: dict[int, _Hook] = {}
        self._next = 0

    def register(self, hook: _Hook) -> HookHandle:
        """Register a function.

        Args:
            hook: A function without arguments.

        Returns:
            A handle, whose `remove` undoes it.

        Raises:
            RuntimeError: If it is not callable.
        """
        if not callable(hook):
            raise RuntimeError(f"a hook must be callable, found {type(hook).__name__}")
        number, self._next = self._next, self._next + 1
        self._hooks[number] = hook
        return HookHandle(self._hooks, number)

    def call(self) -> None:
        """Call the functions; one may remove itself."""
        for hook in list(self._hooks.values()):
            hook()


PRE_COMPILE, POST_COMPILE = Hooks(), Hooks()


def registerPreCompileHook(hook: _Hook) -> HookHandle:
    """Register a function that each compilation calls before it begins.

    Args:
        hook: A function without arguments.

    Returns:
        A handle, whose `remove` undoes it.
    """
    return PRE_COMPILE.register(hook)


def registerPostCompileHook(hook: _Hook) -> HookHandle:
    """Register a function that each compilation calls when it has ended.

    Args:
        hook: A function without arguments.

    Returns:
        A handle, whose `remove` undoes it.
    """
    return POST_COMPILE.register(hook)
