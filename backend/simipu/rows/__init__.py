"""Proof that a compiled batch is a stack of independent rows, and the rewriting of its graph to
compute any number of rows.

`proof` walks the placed graph; the row rules of operators are in `simipu.operators`. This package
contains no cost and no arithmetic.
"""

from simipu.operators.rules.places import NotIndependent
from simipu.rows.proof import make_row_independent, note_dependence, take_rows, trace_rows

__all__ = ["NotIndependent", "make_row_independent", "note_dependence", "take_rows", "trace_rows"]
