"""The cost model: what a graph would take on the chip, in cycles and bytes of a tile. It knows shapes only,
never values.

`estimate` has the answer, `walk` costs node after node, `placed` reads which IPU runs what; what
an operator takes is said in `simipu.operators`.
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
