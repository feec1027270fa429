"""What the simulated IPU knows of operators: one table, with one entry for each operator of the ONNX standard
and for those of the chip's own compiler.

`entry` says what an entry holds, `rules` where rows go, `formulas` what the chip takes, `counts` what the
machine takes; `chip` and `table` put them together. Nothing here walks a graph: `simipu.rows`,
`simipu.cost` and `simipu.numerics` do, and know nothing of each other.
"""

from simipu.operators.chip import CHIP_OPERATORS
from simipu.operators.domain import CHIP_DOMAIN
from simipu.operators.entry import Operator, Rounding
from simipu.operators.table import IPU_COPY, OPERATORS, find_operator, names_where, operator_of

__all__ = [
    "CHIP_DOMAIN",
    "CHIP_OPERATORS",
    "IPU_COPY",
    "OPERATORS",
    "Operator",
    "Rounding",
    "find_operator",
    "names_where",
    "operator_of",
]
