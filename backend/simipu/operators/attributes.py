"""Domain of the chip's own operators, and validated reading of their attributes and shapes; nodes
may come from unknown sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnxgraph import attribute

from simipu.errors import CompileError

LARGEST = 2**31 - 1
"""Maximum of a size: the chip counts in 32 bits."""


def refuse(node: onnx.NodeProto, fault: str) -> CompileError:
    """Return the error that names a node and its operator."""
    return CompileError(
        f"node {node.name or next(iter(node.output), '')!r} ({node.op_type}): {fault}"
    )


def read_size(node: onnx.NodeProto, name: str, default: int | None = None, least: int = 1) -> int:
    """Return a whole number. Raises CompileError for another value, and for a missing one without a
    default."""
    return _check(node, name, attribute(node, name, default), least)


def read_sizes(node: onnx.NodeProto, name: str) -> list[int]:
    """Return one or several whole numbers as a list. Raises CompileError for other values."""
    value = attribute(node, name)
    listed = (
        list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else [value]
    )
    if not listed:
        raise refuse(node, f"attribute {name!r}: expected one or several sizes, found none")
    return [_check(node, name, size) for size in listed]


def read_choice(node: onnx.NodeProto, name: str, choices: Sequence[str]) -> str:
    """Return one of several words, the first of which is the default. Raises CompileError for
    another word."""
    value = attribute(node, name, choices[0])
    choice = value.decode(errors="replace") if isinstance(value, bytes) else value
    if choice not in choices:
        raise refuse(node, f"attribute {name!r}: expected {' or '.join(choices)}, found {choice!r}")
    return str(choice)


def read_axis(node: onnx.NodeProto, name: str, default: int, rank: int) -> int:
    """Return an axis of a tensor of that rank, counted from the front. Raises CompileError for an
    axis that the tensor does not have."""
    axis = _check(node, name, attribute(node, name, default), -rank)
    if axis >= rank:
        raise refuse(node, f"attribute {name!r}: expected an axis of {rank}, found {axis}")
    return axis % rank


def _check(node: onnx.NodeProto, name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or not least <= value <= LARGEST:
        shown = "nothing" if value is None else f"{value!r}"
        raise refuse(
            node, f"attribute {name!r}: expected a whole number of at least {least}, found {shown}"
        )
    return value
