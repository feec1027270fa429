"""Proof that a compiled batch is a stack of independent rows, and the rewriting of its graph to
compute any number of rows.

`proof` walks the placed graph and runs the row rule of each node, which is in
`simipu.operators`. This package contains no cost and no arithmetic.
"""

from simipu.operators.rules.places import Node, NotIndependent, Rows
from simipu.rows.proof import (
    find_noted_dependence,
    make_row_independent,
    note_dependence,
    place_rows,
    take_rows,
    trace_rows,
)

__all__ = [
    "Node",
    "NotIndependent",
    "Rows",
    "find_noted_dependence",
    "make_row_independent",
    "note_dependence",
    "place_rows",
    "take_rows",
    "trace_rows",
]
