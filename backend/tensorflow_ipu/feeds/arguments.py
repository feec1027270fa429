"""Arguments that an infeed's element stands for, and checks of the functions that get them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def to_list(values: Any) -> list[Any]:
    """Return a list or tuple as a list, and another value as a list of one."""
    return list(values) if isinstance(values, (list, tuple)) else [values]


def split_element(element: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments that an element stands for.

    Args:
        element: A tensor, or a structure of them. A dictionary with text keys, also one alone in a
            tuple, stands for named arguments.

    Returns:
        Both.
    """
    values = to_list(element)
    if (
        len(values) == 1
        and isinstance(values[0], dict)
        and all(isinstance(key, str) for key in values[0])
    ):
        return [], dict(values[0])
    return values, {}


def count_arguments(structure: Any) -> int:
    """Return the number of arguments that an element of a structure stands for."""
    positional, named = split_element(structure)
    return len(positional) + len(named)


def describe_mismatch(function: Callable[..., Any], num_arguments: int) -> str | None:
    """Return how many arguments a function needs, if it cannot be called with a number of them.

    Args:
        function: The function.
        num_arguments: The number.

    Returns:
        Words such as `at least 2 arguments`, or None if the number suits.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    named = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    plain = [parameter for parameter in parameters if parameter.kind in named]
    required = sum(parameter.default is kinds.empty for parameter in plain)
    takes_any = any(p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for p in parameters)
    if num_arguments < required:
        exact = required == len(plain) and not takes_any
        return _count(required, "exactly" if exact else "at least")
    if num_arguments > len(plain) and not takes_any:
        return _count(len(plain), "exactly" if required == len(plain) else "at most")
    return None


def _count(number: int, word: str) -> str:
    return f"{word} {number} argument{'s' if number != 1 else ''}"


def check_call(
    function: Callable[..., Any], role: str, inputs: Sequence[Any], infeed_queue: Any = None
) -> None:
    """Check that a function of a loop can be called.

    Args:
        function: The function.
        role: What it is: `body` or `condition`.
        inputs: The loop's values.
        infeed_queue: Queue whose element it gets, too.

    Raises:
        TypeError: If its number of arguments does not suit.
    """
    count = infeed_queue.number_of_tuple_elements if infeed_queue is not None else 0
    needed = describe_mismatch(function, len(inputs) + count)
    if needed is None:
        return
    given = f"You specified {len(inputs)} inputs: {list(inputs)}"
    if infeed_queue is None:
        what = f"{given}, but the loop {role} needs {needed}."
    else:
        what = f"{given} and {count} additional inputs from infeed, but the computation needs "
        what += f"{needed}."
    raise TypeError(
        f"Supplied loop {role} function cannot be called with the specified inputs. {what}"
    )
