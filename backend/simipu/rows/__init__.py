"""Proves that a compiled batch is a stack of independent rows, and rewrites the graph to compute any number
of them.

`proof` walks the graph, `rules` and `moves` say for each operator where its rows go, `places` is what they
are said in. No cost and no arithmetic in here.
"""

from simipu.rows.places import NotIndependent
from simipu.rows.proof import make_row_independent, take_rows

__all__ = ["NotIndependent", "make_row_independent", "take_rows"]
