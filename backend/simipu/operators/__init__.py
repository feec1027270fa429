"""What the simulated IPU knows of operators: one table, with one entry for each operator of the ONNX standard
and for our own.

`entry` says what an entry holds, `rules` where rows go, `formulas` what the chip takes, `counts` what the
machine takes; `table` puts them together. Nothing here walks a graph: `simipu.rows`, `simipu.cost` and
`simipu.numerics` do, and know nothing of each other.
"""

from simipu.operators.entry import Operator, Rounding
from simipu.operators.table import IPU_COPY, OPERATORS, find_operator, names_where

__all__ = ["IPU_COPY", "OPERATORS", "Operator", "Rounding", "find_operator", "names_where"]
