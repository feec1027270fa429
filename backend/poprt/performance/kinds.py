"""Kinds of networks, by their layers' share of the modelled time, and whether each was validated.

A profile states the error of its own kind. A network of a kind for which nobody published a time
has no error that anyone could state, however well others are predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simipu.cost import Estimate
from simipu.operators import Layer, Task, find_operator

_HALF, _MARKED = 0.5, 0.2
"""Shares of the multiply-adds, or of the cycles, from which layers make a network of their kind."""
UNVALIDATED_SHARE = 0.2
"""Share of the time in layers that no validated network has, from which nothing is known of the
error: it could be as large as the 25 % that the validation counts as near."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """Shares of a network's layers, 0 to 1."""

    macs: Mapping[str, float]
    cycles: Mapping[str, float]
    op_types: frozenset[str]
    tasks: frozenset[Task | None]
    """What networks with its operators are for."""
    has_vectors: bool
    """Whether each output is a vector for each sample, as a classifier's scores are."""

    @staticmethod
    def of(estimate: Estimate) -> _Layers:
        macs, cycles = Counter[str](), Counter[str]()
        for operator in estimate.operators:
            macs[operator.layer] += operator.work.macs
            cycles[operator.layer] += operator.cycles
        op_types = frozenset(operator.op_type for operator in estimate.operators)
        return _Layers(
            _shares(macs),
            _shares(cycles),
            op_types,
            frozenset(find_operator(op_type).task for op_type in op_types),
            all(_is_vector(shape, estimate.batch_size) for shape in estimate.output_shapes),
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


def _is_vector(shape: Sequence[int], batch_size: int) -> bool:
    """Return whether a result has one axis beside that of the batch, not counting axes of 1."""
    rest = shape[1:] if shape and shape[0] == batch_size else shape
    return sum(size > 1 for size in rest) <= 1


_CONVOLUTIONS = (
    Layer.CONVOLUTION,
    Layer.GROUPED_CONVOLUTION,
    Layer.TEXT_CONVOLUTION,
    Layer.CONVOLUTION_OVER_TIME,
)
_ATTENTION = (Layer.ATTENTION, Layer.ATTENTION_STEP)
_SOFTMAX = "softmax"
"""Kind of work of a softmax."""
_FUSED_ATTENTION = frozenset({"Attention"})
"""Operators with a softmax in themselves; other layers of attention are one product of two
activations, which many networks have without being a transformer."""


def _are_convolutions(layers: _Layers) -> bool:
    return layers.macs_of(*_CONVOLUTIONS) >= _HALF


def _is_classifier(layers: _Layers) -> bool:
    """Return whether convolutions end in vectors: the published ResNet-50 is a classifier.

    Detectors, segmentation and text lines keep the positions in their results. They compute on
    larger images and merge maps of several sizes, of which no time was published.
    """
    return layers.has_vectors and Task.ENLARGING not in layers.tasks


def _is_transformer(layers: _Layers) -> bool:
    """Return whether the network is products and attention: a product of two activations without
    a softmax is none, and in a network with many convolutions attention is a part of another
    kind."""
    has_softmax = layers.cycles_of(_SOFTMAX) > 0 or bool(_FUSED_ATTENTION & layers.op_types)
    others = layers.macs_of(*_CONVOLUTIONS, Layer.RECURRENT)
    return has_softmax and layers.macs_of(*_ATTENTION) > 0 and others < _MARKED


def _is_decoder_step(layers: _Layers) -> bool:
    is_step = layers.macs_of(Layer.ATTENTION_STEP) > layers.macs_of(Layer.ATTENTION)
    return is_step and _is_transformer(layers)


def _are_dense(layers: _Layers) -> bool:
    others = layers.macs_of(*_CONVOLUTIONS, *_ATTENTION, Layer.RECURRENT)
    return layers.macs_of(Layer.PRODUCT) >= _HALF and others < _MARKED


_KINDS: tuple[tuple[str, str, Callable[[_Layers], bool]], ...] = (
    (
        "recurrent",
        "recurrent networks",
        lambda layers: layers.macs_of(Layer.RECURRENT) >= _HALF,
    ),
    (
        "audio front end",
        "audio front ends",
        lambda layers: Task.AUDIO in layers.tasks,
    ),
    (
        "detection",
        "networks with detection heads",
        lambda layers: Task.DETECTION in layers.tasks,
    ),
    (
        "text CNN",
        "convolutional networks over text",
        lambda layers: (
            _are_convolutions(layers) and layers.macs_of(Layer.TEXT_CONVOLUTION) >= _MARKED
        ),
    ),
    (
        "CNN over time",
        "convolutional networks over time",
        lambda layers: (
            _are_convolutions(layers) and layers.macs_of(Layer.CONVOLUTION_OVER_TIME) >= _HALF
        ),
    ),
    (
        "depthwise CNN",
        "networks of depthwise convolutions",
        lambda layers: (
            _are_convolutions(layers) and layers.cycles_of(Layer.GROUPED_CONVOLUTION) >= _MARKED
        ),
    ),
    (
        "dense CNN",
        "classifiers of dense convolutions",
        lambda layers: _are_convolutions(layers) and _is_classifier(layers),
    ),
    (
        "CNN with maps as outputs",
        "convolutional networks with maps as outputs (detectors, segmentation, lines of text)",
        _are_convolutions,
    ),
    ("decoder step", "steps of a decoder", _is_decoder_step),
    ("encoder", "transformer encoders", _is_transformer),
    (
        "gather and scatter",
        "networks that mostly look up and scatter",
        lambda layers: layers.cycles_of(Layer.GATHER) >= _MARKED,
    ),
    ("MLP", "networks of dense layers", _are_dense),
)
"""Kinds, in the order in which they are tried: name, description, and whether a network is one.
What those without a published time have in common with another kind makes them none of it: the
conditions of the validated kinds are narrow."""
OTHER = "other"
TRANSFORMERS = frozenset({"encoder", "decoder step"})


def kind_of(estimate: Estimate) -> str:
    """Return the kind of network of a graph, by its layers; "other" for none of the known ones."""
    layers = _Layers.of(estimate)
    return next((name for name, _, is_one in _KINDS if is_one(layers)), OTHER)


def describe_kind(kind: str) -> str:
    """Return the networks of a kind in words."""
    return {name: described for name, described, _ in _KINDS}.get(kind, "networks of other kinds")


def layer_shares(estimate: Estimate) -> dict[str, float]:
    """Return the share of the cycles of each kind of layer, 0 to 1, largest first; layers that
    take no time are left out."""
    shares = _Layers.of(estimate).cycles
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))
