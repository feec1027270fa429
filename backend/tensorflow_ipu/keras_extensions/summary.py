"""The table of a model's pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

_HEADERS: Final = ("Layer (type) (node index)", "Input Layers", "Pipeline Stage")
_WIDTHS: Final = (0.4, 0.8, 1.0)
_SEQUENTIAL_HEADERS: Final = ("Layer (type)", "Pipeline Stage")
_SEQUENTIAL_WIDTHS: Final = (0.5, 1.0)
_LINE_LENGTH, _SEQUENTIAL_LINE_LENGTH = 89, 60


def print_summary(
    model: Any, line_length: int | None, print_fn: Callable[[str], None] | None
) -> None:
    """Print the stages of the calls of a model's layers.

    Args:
        model: The extended model.
        line_length: Length of lines, in characters.
        print_fn: Called with each line.
    """
    sequential = not hasattr(model.layer_assignment, "node_index")
    length = line_length or (_SEQUENTIAL_LINE_LENGTH if sequential else _LINE_LENGTH)
    widths = _SEQUENTIAL_WIDTHS if sequential else _WIDTHS
    write = print_fn or print
    table = _Table(write, length, [int(length * width) for width in widths])
    write(f'Model: "{model.name}"')
    write("_" * length)
    table.write_row(_SEQUENTIAL_HEADERS if sequential else _HEADERS)
    write("=" * length)
    table.write_assignments(model.get_pipeline_stage_assignment())


class _Table:
    def __init__(self, write: Callable[[str], None], length: int, ends: list[int]) -> None:
        self._write, self._length, self._ends = write, length, ends

    def write_row(self, fields: Sequence[str]) -> None:
        line = ""
        for number, (text, end) in enumerate(zip(fields, self._ends, strict=False)):
            line = (line[:-1] + " " if number else "") + text
            line = line[:end].ljust(end)
        self._write(line.ljust(self._length))

    def write_assignments(self, assignments: list[Any]) -> None:
        for number, assignment in enumerate(assignments):
            if assignment.is_nested_model:
                self._write(f'Nested Model: "{assignment.nested_model.name}"')
                self._write("-" * self._length)
                self.write_assignments(assignment.pipeline_stage_assignments)
                continue
            self._write_assignment(assignment)
            is_last = number + 1 == len(assignments) or assignments[number + 1].is_nested_model
            self._write(("=" if is_last else "_") * self._length)

    def _write_assignment(self, assignment: Any) -> None:
        layer, stage = assignment.layer, str(assignment.pipeline_stage)
        title = f"{layer.name} ({type(layer).__name__})"
        if len(self._ends) == len(_SEQUENTIAL_WIDTHS):
            self.write_row((title, stage))
            return
        index = getattr(assignment, "node_index", 0)
        names = [inbound.name for inbound in tf.nest.flatten(_find_inbound(assignment))]
        self.write_row((f"{title} ({index})", names[0] if names else "", stage))
        for name in names[1:]:
            self.write_row(("", name, ""))


def _find_inbound(assignment: Any) -> list[Any]:
    if hasattr(assignment, "inbound_layers"):
        return list(assignment.inbound_layers)
    return [
        getattr(node, "operation", None) or node.layer
        for node in assignment.layer._inbound_nodes[0].parent_nodes
    ]
