"""What the chip's types do to values: `lower` makes the computed graph of a placed one, which ONNX Runtime
computes exactly so. No cycles here."""

from simipu.numerics.lowering import Numerics, lower

__all__ = ["Numerics", "lower"]
