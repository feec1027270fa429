"""Effects of the chip's types on values: `lower` converts a placed graph to the computed graph,
which ONNX Runtime runs with exactly these effects, using `simipu.kernels` if they are available.
This package knows nothing of cycles."""

from simipu.numerics.convolution import Convolution
from simipu.numerics.half import HALVES, narrow_to_half
from simipu.numerics.lowering import OLDEST_OPSET, lower
from simipu.numerics.options import KernelUse, Numerics
from simipu.numerics.quarter import FORMATS, QUARTERS, QuarterFormat, decode, encode
from simipu.numerics.rounding import HALF_MAX, unrounded_results

__all__ = [
    "FORMATS",
    "HALF_MAX",
    "HALVES",
    "OLDEST_OPSET",
    "QUARTERS",
    "Convolution",
    "KernelUse",
    "Numerics",
    "QuarterFormat",
    "decode",
    "encode",
    "lower",
    "narrow_to_half",
    "unrounded_results",
]
