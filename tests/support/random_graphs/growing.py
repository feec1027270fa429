"""Growing a graph, or a body, by steps that are drawn."""

from __future__ import annotations

from random_graphs.drawing import Drawing, UnfitError
from random_graphs.elementwise import Builder

BUILDERS: dict[str, Builder] = {}
"""Functions that add an operator, by its name; the package fills this."""
_MAX_TRIES = 200


def grow(drawing: Drawing, steps: int) -> None:
    """Add `count` steps that fit."""
    names = sorted(BUILDERS)
    for _ in range(_MAX_TRIES):
        if steps <= 0:
            break
        op_type = str(drawing.choice(names))
        if not drawing.has(op_type):
            continue
        before = len(drawing.nodes)
        try:
            BUILDERS[op_type](drawing, op_type)
        except (
            UnfitError,
            ValueError,
        ):  # numpy draws no number below zero, as of tensors without elements
            continue
        steps -= len(drawing.nodes) > before
