"""Patterns: PopART's graph transformations by name. None of them changes results here.

Names and defaults are the real module's (graphcore/popart, willow/src/patterns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx
from onnxgraph import find_opset, iter_nodes

from popart.builder.opsets import DEFAULT_VERSION, find_schemas
from popart.enums import PatternsLevel
from popart.errors import popart_exception


@dataclass(frozen=True, slots=True)
class _Facts:
    by_default: bool = True
    mandatory: bool = False


_OPTIONAL, _MANDATORY, _OFF = _Facts(), _Facts(mandatory=True), _Facts(by_default=False)
PATTERNS: Final = {
    **dict.fromkeys(
        "ConvFlipWeightsDoubleFlip DecomposeBinaryConstScalar ExpandCast InitAccumulate "
        "LambSerialisedWeight NegativeOneScale NlllWithSoftmaxGradDirect OpToIdentity "
        "PackedDataBlock PadSum PostNRepl PreUniRepl RemoveUnnecessaryLossGradCast "
        "SoftmaxGradDirect SplitGradOpToConcat SplitOp SumToAdd "
        "TransposeToIdentityOrReshapePattern UpsampleToResize".split(),
        _OPTIONAL,
    ),
    **dict.fromkeys(
        "AbsGradOp AllReduceToIdentity Atan2Arg0GradOp Atan2Arg1GradOp ConvDataGrad "
        "ConvFlipWeightsGradOp ConvTranspose CosGradOp CoshOp DivArg0GradOp DivArg1GradOp "
        "ExpGradOp Expm1GradOp FmodArg0GradOp Log1pGradOp LogGradOp LoopScanOut MatMulLhsGradOp "
        "MatMulOp MatMulRhsGradOp MulArgGradOp PowArg0GradOp PowArg1GradOp "
        "RandomNormalLikeOpPattern RandomUniformLikeOpPattern ReciprocalGradOp ScanToLoop "
        "SinGradOp SqrtGradOp SubtractArg1GradOp ZerosLikeOpPattern".split(),
        _MANDATORY,
    ),
    **dict.fromkeys(
        "LSTMOp Slice2SliceSubsample SplitGather TiedGather TiedGatherAccumulate".split(), _OFF
    ),
}
"""Patterns by name."""
_REPLACERS: Final = {
    "ConvTranspose": "ConvTranspose",
    "Cosh": "CoshOp",
    "RandomNormalLike": "RandomNormalLikeOpPattern",
    "RandomUniformLike": "RandomUniformLikeOpPattern",
    "Scan": "ScanToLoop",
}
"""Operators that PopART runs only after a pattern has replaced them, and the pattern."""
_INPLACE: Final = ("InPlace", "UpdateInplacePrioritiesForIpu")
"""Names that are switches rather than patterns."""
PROPERTIES: Final = {
    "SoftMaxGradDirect": "SoftmaxGradDirect",
    "NlllWithSoftMaxGradDirect": "NlllWithSoftmaxGradDirect",
    **{
        name: name
        for name in "PreUniRepl PostNRepl OpToIdentity SubtractArg1GradOp MulArgGradOp MatMulOp "
        "MatMulLhsGradOp MatMulRhsGradOp InPlace".split()
    },
}
"""Properties of `Patterns`, and the pattern that each switches."""


class Patterns:
    """Set of enabled patterns; without effect on results.

    Example:
        >>> patterns = Patterns(["PreUniRepl"]).enablePattern("OpToIdentity", True)
        >>> patterns.PreUniRepl, patterns.OpToIdentity, patterns.InPlace
        (True, True, False)
    """

    def __init__(self, patterns: PatternsLevel | Sequence[str] = PatternsLevel.Default) -> None:
        """Enable the patterns of a level, or those named.

        Args:
            patterns: A level, or names of patterns.

        Raises:
            popart_exception: For an unknown name.
        """
        object.__setattr__(self, "_enabled", {})
        if isinstance(patterns, PatternsLevel):
            self._enable_level(patterns)
            return
        for name in patterns:
            if name not in PATTERNS and name not in _INPLACE:
                hint = ", did you mean InPlace?" if name == "Inplace" else ""
                raise popart_exception(f"Unknown pattern {name}{hint}")
            self._enabled[name] = True

    _enabled: dict[str, bool]

    def _enable_level(self, level: PatternsLevel) -> None:
        if level is PatternsLevel.NoPatterns:
            return
        for name, facts in PATTERNS.items():
            self._enabled[name] = {
                PatternsLevel.Minimal: facts.mandatory,
                PatternsLevel.Default: facts.by_default,
                PatternsLevel.All: True,
            }[level]
        self._enabled["InPlace"] = level is not PatternsLevel.Minimal

    def isPatternEnabled(self, name: str) -> bool:
        """Return whether a pattern is enabled.

        Args:
            name: The pattern.

        Returns:
            Whether it is enabled.

        Raises:
            popart_exception: For an unknown name.
        """
        return self._enabled.get(_check(name), False)

    def enablePattern(self, name: str, enabled: bool) -> Patterns:
        """Enable or disable a pattern.

        Args:
            name: The pattern.
            enabled: Whether it is enabled.

        Returns:
            This object.

        Raises:
            popart_exception: For an unknown name.
        """
        self._enabled[_check(name)] = bool(enabled)
        return self

    def enableRuntimeAsserts(self, enabled: bool) -> Patterns:  # noqa: ARG002
        """Accept the switch, which has no effect, and return this object."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name in PROPERTIES:
            return self._enabled.get(PROPERTIES[name], False)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: bool) -> None:
        if name not in PROPERTIES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._enabled[PROPERTIES[name]] = bool(value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *PROPERTIES})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patterns) and other._enabled == self._enabled

    __hash__ = None  # type: ignore[assignment] # it can be changed

    def __repr__(self) -> str:
        return "".join(f"{name} " for name in self._enabled if name in PATTERNS)


def _check(name: str) -> str:
    if name in PATTERNS or name in _INPLACE:
        return name
    raise popart_exception(f"Invalid pattern name '{name}'")


def check_replaced(patterns: Patterns, model: onnx.ModelProto) -> None:
    """Check that patterns are enabled without which PopART cannot run a model's operators.

    Args:
        patterns: The patterns.
        model: The model.

    Raises:
        popart_exception: For an operator whose pattern is disabled.
    """
    opset = find_opset(model, DEFAULT_VERSION)
    for node in iter_nodes(model.graph):
        pattern = _REPLACERS.get(node.op_type)
        if pattern is None or node.domain or patterns.isPatternEnabled(pattern):
            continue
        version = find_schemas(opset)[node.op_type].since_version
        raise popart_exception(
            f"Could not create opx for 'ai.onnx.{node.op_type}:{version}'. This op should have "
            f"been removed by pattern {pattern}"
        )
