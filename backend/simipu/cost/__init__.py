"""Cost model: cycles and tile memory that a graph would take on the chip. It reads shapes; of
values it reads only constants of one element: trip counts, exponents, steps of slices.

`estimate` has the result. `walk` computes the cost of each node and follows layouts. `liveness`
says which tensors a tile holds, `outlining` which layers repeat. The cost of an operator is in
`simipu.operators`. Sections that comments name are those of docs/ipu-performance.md.
"""

from simipu.cost.estimate import Estimate, IpuCost, Peak, estimate, node_cycles
from simipu.cost.variables import Origin, TileKnowledge, Variable, iter_printed
from simipu.cost.walk import CostOptions, OperatorCost, code_of_all
from simipu.operators.formulas.calibration import CALIBRATION, Calibration
from simipu.operators.formulas.code import Code
from simipu.operators.formulas.spread import Spread, count_elements, describe_spread, list_levels

__all__ = [
    "CALIBRATION",
    "Calibration",
    "Code",
    "CostOptions",
    "Estimate",
    "IpuCost",
    "OperatorCost",
    "Origin",
    "Peak",
    "Spread",
    "TileKnowledge",
    "Variable",
    "code_of_all",
    "count_elements",
    "describe_spread",
    "estimate",
    "iter_printed",
    "list_levels",
    "node_cycles",
]
