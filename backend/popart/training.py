"""Names of training, which is not supported.

Scripts make an optimizer before they make a TrainingSession. Optimizers can therefore be made; the
session raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

from popart.enums import make_enumeration
from popart.errors import popart_exception

_make = partial(make_enumeration, base=Enum, module=__name__)
AdamMode = _make("AdamMode", "Variants of Adam.", "Adam AdamNoBias AdaMax Lamb LambNoBias")
AdaptiveMode = _make(
    "AdaptiveMode", "Variants of adaptive optimizers.", "AdaGrad RMSProp CenteredRMSProp AdaDelta"
)
WeightDecayMode = _make("WeightDecayMode", "Ways in which weights decay.", "Decay L2Regularization")
SGDAccumulatorAndMomentum = _make(
    "SGDAccumulatorAndMomentum",
    "Whether accumulator and momentum are one tensor.",
    "Combined Separate",
)


class ClipNormSettings:
    """Weights whose gradients' norm is limited; accepted without effect."""

    def __init__(self, weightIds: Sequence[str], maxNorm: float) -> None:
        self.weightIds = list(weightIds)
        self.maxNorm = float(maxNorm)

    @classmethod
    def clipWeights(cls, weightIds: Sequence[str], maxNorm: float) -> ClipNormSettings:
        """Return settings for some weights."""
        return cls(weightIds, maxNorm)

    @classmethod
    def clipAllWeights(cls, maxNorm: float) -> ClipNormSettings:
        """Return settings for all weights."""
        return cls([], maxNorm)


class Optimizer:
    """Base of the optimizers, which keep their arguments only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def insertSpecific(self, id: str, values: Any) -> None:
        """Accept values for one tensor, which have no effect."""


class SGD(Optimizer):
    """Stochastic gradient descent; accepted without effect."""


class ConstSGD(SGD):
    """Stochastic gradient descent with constant values; accepted without effect."""


class Adam(Optimizer):
    """Adam; accepted without effect."""


class Adaptive(Optimizer):
    """Adaptive optimizers; accepted without effect."""


class OptimizerValue:
    """A value of an optimizer, and whether it is constant."""

    def __init__(self, val: float = 0.0, isConst: bool = True) -> None:
        self._val, self._is_const = float(val), bool(isConst)

    def val(self) -> float:
        """Return the value."""
        return self._val

    def isConst(self) -> bool:
        """Return whether the value is constant."""
        return self._is_const


class TrainingSession:
    """A session that would train; making one raises.

    Raises:
        popart_exception: Always: only inference is supported.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise popart_exception(
            "TrainingSession is not supported: this popart runs inference on a simulated IPU. Use "
            "popart.InferenceSession"
        )
