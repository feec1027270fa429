"""Control flow with values that are known at run time only: cond and for_loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from poptorch.capture import bodies
from poptorch.errors import Error
from poptorch.operators.tracing import current_trace, isRunningOnIpu

MAX_UNROLLED = 16
"""Number of turns up to which a loop is unrolled; one of more turns is a Loop node."""


def cond(
    condition: Any,
    then_body: Callable[..., Any],
    then_inps: Sequence[Any],
    else_body: Callable[..., Any],
    else_inps: Sequence[Any],
) -> list[Any]:
    """Return the results of one of two functions.

    On the IPU the functions are the branches of an If node. They get copies of their inputs.

    Args:
        condition: Tensor of one element.
        then_body: Function for a true condition.
        then_inps: Its inputs.
        else_body: Function for a false condition.
        else_inps: Its inputs.

    Returns:
        The results as a list.

    Raises:
        ValueError: If the inputs are no lists.
        Error: If the functions do not return the same numbers, shapes and types of tensors, or
            change a tensor that is not an input.
    """
    if not (isinstance(then_inps, list) and isinstance(else_inps, list)):
        raise ValueError(
            "poptorch.cond expects then_inps and else_inps tensors to be a list of tensors. "
            "(Object is not list)"
        )
    if not isRunningOnIpu():
        body, inputs = (then_body, then_inps) if condition else (else_body, else_inps)
        return _as_list(body(*inputs))
    then, other = (
        _capture(name, body, [_copy(source) for source in inputs])
        for name, body, inputs in (
            ("cond: then_body", then_body, then_inps),
            ("cond: else_body", else_body, else_inps),
        )
    )
    if len(then) != len(other):
        raise Error(
            f"poptorch.cond: then_body returns {len(then)} tensors and else_body {len(other)}"
        )
    for place, (first, second) in enumerate(zip(then, other, strict=True)):
        if first.shape != second.shape or first.dtype != second.dtype:
            raise Error(
                f"poptorch.cond: result {place} is {first.dtype} {list(first.shape)} from "
                f"then_body and {second.dtype} {list(second.shape)} from else_body"
            )
    flag = condition.reshape(()).to(torch.bool)
    return bodies.mark(bodies.IF, [flag, *then, *other], then)


def _capture(name: str, body: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the results of a body; raise Error if it changes or prints what is not its own."""
    trace = current_trace()
    num_prints = len(trace.prints) if trace else 0
    with Watch(inputs) as watch:
        results = _as_list(body(*inputs))
    if watch.changed:
        raise Error(
            f"poptorch.{name} changes a tensor of shape {list(watch.changed[0].shape)} in place "
            "that is not one of its inputs. Give the tensor as an input and return its new value"
        )
    if trace and len(trace.prints) > num_prints:
        raise Error(
            f"poptorch.{name} prints a tensor. Print a result of poptorch.{name.partition(':')[0]} "
            "instead"
        )
    return results


class Watch(TorchFunctionMode):  # type: ignore[misc]  # mypy sees no torch
    """Notes the tensors that operators read, and which of them have changed.

    Args:
        own: Tensors that may change.
    """

    def __init__(self, own: Sequence[Any]) -> None:
        super().__init__()
        self._seen: dict[int, tuple[Any, int | None]] = {
            id(tensor): (tensor, None) for tensor in own
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        leaves = tree_leaves((args, kwargs))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                self._seen.setdefault(id(leaf), (leaf, leaf._version))  # noqa: SLF001
        result = func(*args, **(kwargs or {}))
        for leave in tree_leaves(result):
            if isinstance(leave, torch.Tensor):
                self._seen.setdefault(id(leave), (leave, None))
        return result

    @property
    def changed(self) -> list[Any]:
        """Tensors made outside that have changed since they were read first."""
        return [
            tensor
            for tensor, version in self._seen.values()
            if version is not None and tensor._version != version  # noqa: SLF001
        ]


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
        Error: If the function returns another number of tensors, or tensors of other shapes. If
            a loop of many turns prints, or changes a tensor that is not an input.
    """
    if not isinstance(inputs, list):
        raise ValueError(
            "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. "
            "(Object is not list)"
        )
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. "
                f"(Object contained in list at index {index} is not torch.tensor)"
            )
    values = [_copy(source) for source in inputs]
    if isRunningOnIpu() and count > MAX_UNROLLED and inputs:
        return _loop(count, body, values)
    for _ in range(count):
        results = _as_list(body(*values))
        _check_results(values, results)
        values = [_copy(tensor) for tensor in results]
    return values


def _loop(count: int, body: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Capture one turn of a loop between two marks."""
    trace = current_trace()
    assert trace is not None
    trace.num_loops += 1
    number = trace.num_loops
    before = bodies.mark(bodies.TURN, inputs, inputs, loop=number)
    results = _capture("for_loop: the body", body, before)
    _check_results(before, results)
    for place, (old, new) in enumerate(zip(before, results, strict=True)):
        if old.dtype != new.dtype:
            raise Error(
                f"poptorch.for_loop: input {place} of the body is {old.dtype}, and its result "
                f"{new.dtype}; expected the same"
            )
    return bodies.mark(bodies.LOOP, results, before, loop=number, turns=count)


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
