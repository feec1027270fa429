"""Properties of operators on the simulated IPU: one table, with one entry for each operator of the
ONNX standard and for those of the chip's own compiler.

`entry` defines the fields of an entry, `rules` the places of rows, `formulas` the cost on the chip,
`counts` the cost on the machine that computes. `table` and `graphcore_domain` contain the entries,
`facts` the differences within a family. Nothing here walks a graph: `simipu.rows`, `simipu.cost`
and `simipu.numerics` do, and do not depend on each other.
"""

from simipu.operators.attributes import CHIP_DOMAIN
from simipu.operators.entry import Family, Operator, Rounding
from simipu.operators.formulas.work import Layer
from simipu.operators.graphcore_domain import CHIP_OPERATORS, TYPED, has_past
from simipu.operators.table import IPU_COPY, OPERATORS, find_operator, names_where, operator_of

__all__ = [
    "CHIP_DOMAIN",
    "CHIP_OPERATORS",
    "IPU_COPY",
    "OPERATORS",
    "TYPED",
    "Family",
    "Layer",
    "Operator",
    "Rounding",
    "find_operator",
    "has_past",
    "names_where",
    "operator_of",
]
