"""Search for the inputs that a tensor depends on, for messages that say which input to fix."""

from __future__ import annotations

import onnx
from onnxgraph import find_inputs, find_makers_anywhere, iter_bodies, used_names
from simipu.operators import names_where

OF_SHAPES = names_where(lambda entry: entry.reads_shape)
"""Operators that read only shapes, not values; all shapes are known."""


def find_source_inputs(graph: onnx.GraphProto, name: str) -> list[str]:
    """Return the main graph's inputs from which a tensor is computed.

    The tensor may be in the main graph `graph` or in a body.
    """
    makers = find_makers_anywhere(graph)
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name not in seen and node is not None and node.op_type not in OF_SHAPES:
            waiting += node.input
            waiting += [used for body in iter_bodies(node) for used in used_names(body)]
        seen.add(name)
    return [value.name for value in find_inputs(graph) if value.name in seen]


def describe_inputs(names: list[str]) -> str:
    """Return `input 'a'` or `inputs 'a', 'b'`.

    A value that is computed from no input must be a random number.
    """
    if not names:
        return "no input"
    return f"input{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
