"""The cost model: what a graph would take on the chip, in cycles and bytes of a tile. It knows shapes only,
never values."""

from simipu.cost.estimate import CostOptions, Estimate, IpuCost, OperatorCost, estimate, node_cycles

__all__ = ["CostOptions", "Estimate", "IpuCost", "OperatorCost", "estimate", "node_cycles"]
