"""What the chip's types do to values: `lower` makes the computed graph of a placed one, which ONNX Runtime
computes exactly so, with `simipu.kernels` where these are there. No cycles here."""

from simipu.numerics.lowering import lower
from simipu.numerics.options import KernelUse, Numerics

__all__ = ["KernelUse", "Numerics", "lower"]
