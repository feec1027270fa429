"""Outlined functions: one copy of the code on the real chip, whatever the number of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Return a function whose calls share their code on the real chip.

    The simulated IPU computes each call where it stands; poprt outlines equal parts itself.

    Args:
        func: Function of positional arguments that are tensors; it returns tensors.
        unique_sharding: Accepted; the function lies on the IPU of its caller.
        keep_input_layouts: Accepted; layouts are the compiler's.
        name: Name of the function's scope.

    Returns:
        The function, or a decorator if `func` is None.
    """
    del unique_sharding, keep_input_layouts

    def decorate(inner: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            return inline(inner, args, name or "function")

        return wrapper

    return decorate if func is None else decorate(func)


def inline(function: Callable[..., Any], args: Sequence[Any], scope: str) -> Any:
    """Call a function within a name scope.

    Args:
        function: Function of tensors.
        args: Its arguments, tensors or what becomes one.
        scope: Name of the scope.

    Returns:
        Its results as tensors, in their structure.
    """
    tensors = [
        argument if _is_kept(argument) else tf.convert_to_tensor(argument) for argument in args
    ]
    with tf.name_scope(scope):
        result = function(*tensors)
        return tf.nest.map_structure(_to_tensor, result, expand_composites=True)


def _is_kept(argument: Any) -> bool:
    return tf.is_tensor(argument) or isinstance(argument, tf.Variable)


def _to_tensor(value: Any) -> Any:
    if value is None or isinstance(value, tf.Operation):
        return value
    return tf.convert_to_tensor(value)
