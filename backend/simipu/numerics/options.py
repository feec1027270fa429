"""Options of half precision on the chip, and of the kernels that compute its arithmetic here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Numerics:
    """Options of half precision on the chip, with the names of the real options.

    half_partials: partials_type half, not float: sums of MatMul, Gemm and Conv are kept in half.
    nan_on_overflow: the engine option debug.nanOverflowException: a result too large for half is
        NaN; otherwise it is the largest half, with its sign.
    raises: the engine option debug.floatPointOpException: the first result that is too large
        for its type or NaN ends the run with an error.
    """

    half_partials: bool = True
    nan_on_overflow: bool = False
    raises: bool = False

    def quiet(self) -> Numerics:
        """Return the same options without exceptions."""
        return replace(self, raises=False)


class KernelUse(Enum):
    """Use of the kernels' domain in the computed graph."""

    NONE = auto()
    FUSED = auto()
    """Use kernels for everything they support, and omit intermediate tensors."""
    APART = auto()
    """Use kernels for products and rounding only, and keep every tensor of the placed graph."""
