"""Kinds of networks, by their layers' share of the modelled time, and whether each was validated.

A profile states the error of its own kind. A network of a kind for which nobody published a time
has no error that anyone could state, however well others are predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simipu.cost import Estimate
from simipu.operators import Layer

_HALF, _MARKED = 0.5, 0.2
"""Shares of the multiply-adds, or of the cycles, from which layers make a network of their kind."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """Shares of a network's layers, 0 to 1."""

    macs: Mapping[str, float]
    cycles: Mapping[str, float]
    op_types: frozenset[str]

    @staticmethod
    def of(estimate: Estimate) -> _Layers:
        macs, cycles = Counter[str](), Counter[str]()
        for operator in estimate.operators:
            macs[operator.layer] += operator.work.macs
            cycles[operator.layer] += operator.cycles
        return _Layers(
            _shares(macs),
            _shares(cycles),
            frozenset(operator.op_type for operator in estimate.operators),
        )

    def macs_of(self, *layers: str) -> float:
        """Return the share of the multiply-adds that these layers do."""
        return sum(self.macs.get(layer, 0.0) for layer in layers)

    def cycles_of(self, *layers: str) -> float:
        """Return the share of the cycles that these layers take."""
        return sum(self.cycles.get(layer, 0.0) for layer in layers)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items() if count} if total else {}


_CONVOLUTIONS = (
    Layer.CONVOLUTION,
    Layer.GROUPED_CONVOLUTION,
    Layer.TEXT_CONVOLUTION,
    Layer.CONVOLUTION_OVER_TIME,
)
_ATTENTION = (Layer.ATTENTION, Layer.ATTENTION_STEP)
_DETECTION = frozenset({"NonMaxSuppression", "RoiAlign"})
"""Operators of detection heads, whose layers have no kind of their own: what networks they are in
is no property of an operator."""
_AUDIO = frozenset({"STFT", "DFT", "MelWeightMatrix"})
"""Operators of audio front ends, likewise."""


def _are_convolutions(found: _Layers) -> bool:
    return found.macs_of(*_CONVOLUTIONS) >= _HALF


_KINDS: tuple[tuple[str, str, Callable[[_Layers], bool]], ...] = (
    (
        "recurrent",
        "recurrent networks",
        lambda found: found.macs_of(Layer.RECURRENT) >= _HALF,
    ),
    (
        "audio front end",
        "audio front ends",
        lambda found: bool(_AUDIO & found.op_types),
    ),
    (
        "detection",
        "networks with detection heads",
        lambda found: _are_convolutions(found) and bool(_DETECTION & found.op_types),
    ),
    (
        "text CNN",
        "convolutional networks over text",
        lambda found: _are_convolutions(found) and found.macs_of(Layer.TEXT_CONVOLUTION) >= _MARKED,
    ),
    (
        "CNN over time",
        "convolutional networks over time",
        lambda found: (
            _are_convolutions(found) and found.macs_of(Layer.CONVOLUTION_OVER_TIME) >= _HALF
        ),
    ),
    (
        "depthwise CNN",
        "networks of depthwise convolutions",
        lambda found: (
            _are_convolutions(found) and found.cycles_of(Layer.GROUPED_CONVOLUTION) >= _MARKED
        ),
    ),
    ("dense CNN", "networks of dense convolutions", _are_convolutions),
    (
        "decoder step",
        "steps of a decoder",
        lambda found: found.macs_of(Layer.ATTENTION_STEP) > found.macs_of(Layer.ATTENTION),
    ),
    (
        "encoder",
        "transformer encoders",
        lambda found: found.macs_of(*_ATTENTION) > 0,
    ),
    (
        "gather and scatter",
        "networks that mostly look up and scatter",
        lambda found: found.cycles_of(Layer.GATHER) >= _MARKED,
    ),
    (
        "MLP",
        "networks of dense layers",
        lambda found: found.macs_of(Layer.PRODUCT) >= _HALF,
    ),
)
"""Kinds, in the order in which they are tried: name, description, and whether a network is one."""
OTHER = "other"
TRANSFORMERS = frozenset({"encoder", "decoder step"})


def kind_of(estimate: Estimate) -> str:
    """Return the kind of network of a graph, by its layers; "other" for none of the known ones."""
    found = _Layers.of(estimate)
    return next((name for name, _, is_one in _KINDS if is_one(found)), OTHER)


def describe_kind(kind: str) -> str:
    """Return the networks of a kind in words."""
    return {name: described for name, described, _ in _KINDS}.get(kind, "networks of other kinds")


def layer_shares(estimate: Estimate) -> dict[str, float]:
    """Return the share of the cycles of each kind of layer, 0 to 1, largest first; layers that
    take no time are left out."""
    found = _Layers.of(estimate).cycles
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
