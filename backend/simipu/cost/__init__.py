"""The cost model: what a graph would take on the chip, in cycles and bytes of a tile. It knows shapes; of
values only constants of one element: trip counts, exponents, steps of slices.

`estimate` has the answer, `walk` costs node after node and follows layouts, `liveness` and `memory` say what
a tile holds, `outlining` which layers repeat, `placed` which IPU runs what; what an operator takes is said in
`simipu.operators`.
"""

from simipu.cost.estimate import Estimate, estimate, node_cycles
from simipu.cost.memory import IpuCost, Peak
from simipu.cost.options import CostOptions
from simipu.cost.walk import OperatorCost
from simipu.operators.formulas.calibration import CALIBRATION, Calibration

__all__ = [
    "CALIBRATION",
    "Calibration",
    "CostOptions",
    "Estimate",
    "IpuCost",
    "OperatorCost",
    "Peak",
    "estimate",
    "node_cycles",
]
