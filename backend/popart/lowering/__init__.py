"""From the model that a Builder writes to the one that poprt's compiler takes.

The given graph is translated node by node into a newer opset, in which shapes, types and values are
those that PopART means; then the anchors become the outputs, and what they do not need goes.
"""

from popart.lowering.chip_nodes import lower_chip_nodes
from popart.lowering.graph import Effect, EffectKind
from popart.lowering.replicas import (
    Joined,
    SplitWeight,
    drop_marks,
    has_collectives,
    join_replicas,
)
from popart.lowering.whole_model import LoweredModel, LoweringOptions, infer_tensors, lower

__all__ = [
    "Effect",
    "EffectKind",
    "Joined",
    "LoweredModel",
    "LoweringOptions",
    "SplitWeight",
    "drop_marks",
    "has_collectives",
    "infer_tensors",
    "join_replicas",
    "lower",
    "lower_chip_nodes",
]
