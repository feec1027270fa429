"""State of a capture: whether forward is being captured, and what the operators record in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Print:
    """A tensor that is printed after each run.

    Attributes:
        title: Text in front of the value.
        attributes: Format, by the names of PopART's PrintTensor.
    """

    title: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class Trace:
    """What operators record while forward is captured.

    Attributes:
        prints: Printed tensors.
        num_loops: Number of loops so far.
        multi_conv: Number of convolutions so far of the MultiConv that is being captured, or None.
    """

    prints: list[tuple[Any, Print]] = field(default_factory=list)
    num_loops: int = 0
    multi_conv: int | None = None


_trace: ContextVar[Trace | None] = ContextVar("poptorch_trace", default=None)


def isRunningOnIpu() -> bool:
    """Return whether forward is being captured for the IPU, and does not run on the CPU."""
    return _trace.get() is not None


def current_trace() -> Trace | None:
    """Return the running capture's trace, or None outside of a capture."""
    return _trace.get()


@contextmanager
def tracing() -> Iterator[Trace]:
    """Enter a capture, and yield its trace."""
    trace = Trace()
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs as it does outside of a capture."""

    def run(*args: Any, **keywords: Any) -> Any:
        token = _trace.set(None)
        try:
            return function(*args, **keywords)
        finally:
            _trace.reset(token)

    return run


def leave_node(
    domain: str,
    op_type: str,
    inputs: Sequence[Any],
    examples: Sequence[Any],
    attributes: Mapping[str, Any],
) -> list[Any]:
    """Leave a node in the capture that torch has no operator for.

    Args:
        domain: Domain of its operator.
        op_type: Its operator.
        inputs: Tensors that it reads.
        examples: Tensors with the types and shapes of its results.
        attributes: Its attributes.

    Returns:
        Its results.
    """
    return list(
        torch.onnx.ops.symbolic_multi_out(
            f"{domain}::{op_type}",
            list(inputs),
            dict(attributes),
            dtypes=[example.dtype for example in examples],
            shapes=[list(example.shape) for example in examples],
            version=1,
        )
    )
