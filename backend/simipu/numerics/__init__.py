"""Effects of the chip's types on values: `lower` converts a placed graph to the computed graph,
which ONNX Runtime runs with exactly these effects, using `simipu.kernels` if they are available.
This package knows nothing of cycles."""

from simipu.numerics.lowering import lower
from simipu.numerics.options import KernelUse, Numerics

__all__ = ["KernelUse", "Numerics", "lower"]
