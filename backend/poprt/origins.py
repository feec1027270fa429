"""Where a tensor's values come from, for messages that say which input to fix."""

from __future__ import annotations

import onnx
from onnxgraph import find_inputs, find_makers_anywhere, iter_bodies, used_names

OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators that look at no value: shapes are all known."""


def find_source_inputs(graph: onnx.GraphProto, name: str) -> list[str]:
    """The inputs of the main graph `graph` that a tensor is computed of, be it made in the graph or in a
    body."""
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
    """`input 'a'` or `inputs 'a', 'b'`; what is computed of no input has to be a random number."""
    if not names:
        return "no input"
    return f"input{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
