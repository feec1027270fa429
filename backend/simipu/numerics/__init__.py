"""What the chip's types do to values, written as a graph that ONNX Runtime computes exactly so. No cycles
here."""

from simipu.numerics.graphs import iter_subgraphs, name_nodes
from simipu.numerics.lowering import Numerics, lower

__all__ = ["Numerics", "iter_subgraphs", "lower", "name_nodes"]
