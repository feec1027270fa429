"""Proves that a compiled batch is a stack of independent rows, and rewrites the graph to compute any number
of them.

`proof` walks the placed graph; where an operator's rows go is said in `simipu.operators`. No cost and no
arithmetic in here.
"""

from simipu.operators.rules.places import NotIndependent
from simipu.rows.proof import make_row_independent, note_dependence, take_rows, trace_rows

__all__ = ["NotIndependent", "make_row_independent", "note_dependence", "take_rows", "trace_rows"]
