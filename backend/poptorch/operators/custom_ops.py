"""Operators that torch does not have: PopART's own, and those of users' libraries by a table.

A library for the IPU holds machine code, which is not run here. What it computes is defined once,
in torch, in the table; `register_custom_op_body` adds to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnxgraph import CHIP_DOMAIN

from poptorch.errors import Error
from poptorch.operators.tracing import isRunningOnIpu, leave_node

_FLOAT_MAX = float(np.finfo(np.float32).max)
_bodies: dict[tuple[str, str], Callable[..., Any]] = {}


def register_custom_op_body(
    name: str, domain: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that defines what a custom operator computes.

    The function gets the input tensors and the attributes by name, and returns a tensor or a
    sequence of tensors.

    Args:
        name: Type of the operator.
        domain: Its domain.

    Example:
        >>> @register_custom_op_body("Cube", "custom.ops")
        ... def cube(x):
        ...     return x**3
    """

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        _bodies[domain, name] = body
        return body

    return register


def custom_op(
    inputs: Sequence[Any],
    name: str,
    domain: str,
    domain_version: int,  # noqa: ARG001
    example_outputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Call an operator of PopART or of a library.

    Args:
        inputs: Input tensors.
        name: Type of the operator.
        domain: Its domain.
        domain_version: Version of the domain.
        example_outputs: Tensors with the types and shapes of the results.
        attributes: Attributes: numbers, strings, or lists of one of them.

    Returns:
        The results.

    Raises:
        ValueError: If an attribute has a type that PopART does not have.
        Error: If nothing defines what the operator computes, or a number is no float of 32 bits.
    """
    checked = {key: _check_attribute(key, value) for key, value in (attributes or {}).items()}
    body = _bodies.get((domain, name))
    if body is not None:
        result = body(*inputs, **checked)
        return list(result) if isinstance(result, (tuple, list)) else [result]
    if domain == CHIP_DOMAIN:
        return call_popart(list(inputs), name, list(example_outputs), checked)
    defined = ", ".join(sorted(map(".".join, _bodies))) or "none"
    raise Error(
        f"custom operator {domain}.{name}: libraries for the IPU hold machine code, which is not "
        "run here. Define what the operator computes with poptorch.register_custom_op_body "
        f"(defined: {defined})"
    )


def _check_attribute(name: str, value: Any) -> Any:
    """Return an attribute's value; raise what PopTorch raises of it."""
    if not isinstance(name, str):
        raise ValueError(f"All attribute keys must be strings. Found {name!r}")
    _check_ascii(name)
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        raise ValueError(f"attribute {name}: inconsistent attribute types in list: {value}")
    if not kinds:
        raise ValueError(f"attribute {name}: empty lists are not supported")
    if kinds - {int, float, str, bool}:
        raise ValueError(
            f"Invalid attribute type: {name} is {kinds.pop().__name__}; expected int, float, str "
            "or a list of one of them"
        )
    for item in items:
        if isinstance(item, str):
            _check_ascii(item)
        elif isinstance(item, float) and math.isfinite(item) and abs(item) > _FLOAT_MAX:
            side = "low" if item < 0 else "high"
            raise Error(f"{item:g} is too {side} for a Popart float attribute.")
    return value


def _check_ascii(text: str) -> None:
    if not text.isascii():
        raise ValueError(f"{text} contains non-ASCII characters.")


def call_popart(
    inputs: list[Any], op_type: str, examples: Sequence[Any], attributes: Mapping[str, Any]
) -> list[Any]:
    """Call an operator of PopART's domain ai.graphcore.

    Args:
        inputs: Input tensors.
        op_type: Type of the operator.
        examples: Tensors with the types and shapes of the results.
        attributes: Attributes of the operator.

    Returns:
        The results.

    Raises:
        Error: Outside of a capture: only the IPU computes such operators.
    """
    if not isRunningOnIpu():
        raise Error(f"{op_type} is an operator of the IPU, and not defined on the CPU")
    return leave_node(CHIP_DOMAIN, op_type, inputs, examples, attributes)
