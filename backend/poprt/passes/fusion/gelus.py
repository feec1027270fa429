"""Passes that find GELUs written out by exporters and replace them by the chip's operator."""

from __future__ import annotations

import math
from typing import ClassVar

from onnx import TensorProto

from poprt.rewrite.base import Stage, register
from poprt.rewrite.names import NodeBuilder
from poprt.rewrite.patterns import Match, Once, Op, Pattern, PatternRule, Times, Var

_TANH_FACTOR, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
"""Constants of the tanh formula (Hendrycks and Gimpel): x / 2 (1 + tanh(factor (x + cube x^3)))."""


def _write_out(function: Pattern) -> Pattern:
    """Return the pattern x / 2 (1 + f) of a GELU, where `function` is f."""
    return Times(0.5, Once(Once(function) + 1.0), _X)


_X = Var("x")
_TANH_GELU = _write_out(
    Op("Tanh", Times(_TANH_FACTOR, _X + Times(_TANH_CUBE, _X, _X, _X)))
    | Op("Tanh", Times(_TANH_FACTOR, Times(_TANH_CUBE, _X, _X) + 1.0, _X))
)
_ERF_GELU = _write_out(Op("Erf", Times(math.sqrt(0.5), _X)))


class _GeluPass(PatternRule):
    """Base class for both forms of GELU, written out or the standard's operator."""

    op_types = frozenset(("Div", "Gelu", "Mul"))
    prefix = "gelu"
    attributes: ClassVar[dict[str, str]] = {}
    """Attributes of the chip's operator."""

    def fits(self, found: Match, result: str) -> bool:
        """Return whether the types and shapes are those that the chip's operator takes."""
        view, shape = found.view, found.view.shape(result)
        is_float = view.type(found["x"]) in (TensorProto.FLOAT, TensorProto.FLOAT16)
        return is_float and shape is not None and shape == view.shape(found["x"])

    def build(self, found: Match, result: str, made: NodeBuilder) -> None:
        """Add the chip's operator."""
        made.chip(result, "Gelu", found["x"], **self.attributes)


@register("gelu_pattern", stage=Stage.PATTERNS, default=True)
class GeluPattern(_GeluPass):
    """Give GELUs in the tanh form, written out or the standard's, the chip's Gelu, which computes
    that form."""

    pattern = _TANH_GELU | Op("Gelu", _X, approximate=b"tanh")


@register("erf_gelu_pattern", stage=Stage.PATTERNS, option="enable_erf_gelu")
class ErfGeluPattern(_GeluPass):
    """Give GELUs in the exact form, of the error function, written out or the standard's, the
    chip's Gelu.

    The chip has the tanh form only; here the answer stays the exact form's, which the attribute
    `approximate` (none) says.
    """

    pattern = _ERF_GELU | Op("Gelu", _X, approximate=b"none") | Op("Gelu", _X, approximate=None)
    attributes: ClassVar[dict[str, str]] = {"approximate": "none"}
