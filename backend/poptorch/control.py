"""Control flow with values that are known at run time only: cond and for_loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch.errors import Error
from poptorch.tracing import isRunningOnIpu

MAX_TURNS = 10_000
"""Maximum number of turns of a loop, which is unrolled in the graph."""


def cond(
    condition: Any,
    then_body: Callable[..., Any],
    then_inputs: Sequence[Any],
    else_body: Callable[..., Any],
    else_inputs: Sequence[Any],
) -> list[Any]:
    """Return the results of one of two functions.

    On the IPU both are computed and one result is taken. Functions get copies of their inputs.

    Args:
        condition: Tensor of one element.
        then_body: Function for a true condition.
        then_inputs: Its inputs.
        else_body: Function for a false condition.
        else_inputs: Its inputs.

    Returns:
        The results as a list.

    Raises:
        Error: If the functions do not return the same numbers, shapes and types of tensors.
    """
    if not isRunningOnIpu():
        body, inputs = (then_body, then_inputs) if condition else (else_body, else_inputs)
        return _as_list(body(*inputs))
    then, other = (
        _as_list(body(*(_copy(each) for each in inputs)))
        for body, inputs in ((then_body, then_inputs), (else_body, else_inputs))
    )
    if len(then) != len(other):
        raise Error(
            f"poptorch.cond: then_body returns {len(then)} tensors and else_body {len(other)}"
        )
    flag = condition.reshape(()).to(torch.bool)
    return [_select(flag, *pair, place) for place, pair in enumerate(zip(then, other, strict=True))]


def _select(flag: Any, then: Any, other: Any, place: int) -> Any:
    if then.shape != other.shape or then.dtype != other.dtype:
        raise Error(
            f"poptorch.cond: result {place} is {then.dtype} {list(then.shape)} from then_body and "
            f"{other.dtype} {list(other.shape)} from else_body"
        )
    return torch.where(flag, then, other)


def for_loop(count: int, body: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """Call a function a number of times, each time with the results of the time before.

    Args:
        count: Number of calls.
        body: Function of as many tensors as it returns.
        inputs: Inputs of the first call, which are copied.

    Returns:
        Results of the last call.

    Raises:
        ValueError: If the inputs are no list of tensors.
        Error: If the function returns another number of tensors, or tensors of other shapes.
    """
    if not isinstance(inputs, list):
        raise ValueError(
            "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. "
            "(Object is not list)"
        )
    for index, each in enumerate(inputs):
        if not isinstance(each, torch.Tensor):
            raise ValueError(
                "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. "
                f"(Object contained in list at index {index} is not torch.tensor)"
            )
    if count > MAX_TURNS:
        raise Error(f"poptorch.for_loop: {count} turns are more than {MAX_TURNS}")
    values = [_copy(each) for each in inputs]
    for _ in range(count):
        made = _as_list(body(*values))
        _check_results(values, made)
        values = [_copy(each) for each in made]
    return values


def _check_results(before: Sequence[Any], after: Sequence[Any]) -> None:
    if len(before) != len(after):
        raise Error(
            f"poptorch.for_loop: the body has {len(before)} inputs and returns {len(after)} "
            "tensors; expected as many"
        )
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.shape != new.shape:
            raise Error(
                f"poptorch.for_loop: input {place} of the body has shape {list(old.shape)}, and "
                f"its result {list(new.shape)}; expected the same"
            )


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]
