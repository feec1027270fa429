"""What the chip's types do to values, written as a graph that ONNX Runtime computes exactly so. No cycles
here."""

from simipu.numerics.lowering import Numerics, lower

__all__ = ["Numerics", "lower"]
