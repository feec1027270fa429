"""What the chip was told of half precision, and by what its arithmetic is computed here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the chip was told of half precision, by the names of the real options.

    half_partials: partials_type half, not float: sums of MatMul, Gemm and Conv are kept in half.
    nan_on_overflow: the engine option debug.nanOverflowException: a result too large for half is NaN;
    otherwise it is the largest half, with its sign.
    raises: the engine option debug.floatPointOpException: the first result in half that is too large or NaN
    ends the run with an error.
    """

    half_partials: bool = True
    nan_on_overflow: bool = False
    raises: bool = False

    def quiet(self) -> Numerics:
        """The same without exceptions."""
        return replace(self, raises=False)


class KernelUse(Enum):
    """Whether the computed graph has nodes of the kernels' domain."""

    NONE = auto()
    FUSED = auto()
    """And what is computed on the way to a result that somebody takes is not there."""
    APART = auto()
    """For products and rounding only; every tensor of the placed graph is there."""
