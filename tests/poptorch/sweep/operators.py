"""All operators of the sweep, by the names of PopTorch's list "IPU supported operations"."""

from __future__ import annotations

from fnmatch import fnmatch

from tests.poptorch.sweep.layers import LAYERS
from tests.poptorch.sweep.pointwise import BLAS, POINTWISE, REDUCTIONS, Table
from tests.poptorch.sweep.shapes import SHAPES

OPERATORS: Table = {**POINTWISE, **REDUCTIONS, **BLAS, **SHAPES, **LAYERS}

KNOWN: dict[str, str] = {
    "torch.a??in: special*": "the engine's ReduceMin and ArgMin skip NaN, depending on its place",
    "torch.a??ax: special*": "likewise ReduceMax and ArgMax",
    "torch.m??: special*": "likewise the extremes along an axis, and their places",
    "nn.MaxPool?d: special": "the engine's MaxPool skips NaN",
    "torch.clamp: *": "ONNX's Clip without a bound has the largest float as one: infinity is clipped",
    "nn.GELU: special float*": "PyTorch on the CPU computes NaN for infinity",
}
"""Cases that differ, as OPERATOR: CASE, and why."""


def is_known(operator: str, case: str) -> bool:
    """Return whether a case is known to differ."""
    return any(fnmatch(f"{operator}: {case}", pattern) for pattern in KNOWN)
