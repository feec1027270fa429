"""How well a source model fits a model of a Poplar repository: by the names, types and shapes of
its inputs and outputs, and by the number and sizes of its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from poplar_triton.migrate.graphs import SourceKind, SourceModel
from poplar_triton.migrate.repository import FoundModel, TensorDescription

_NAMES, _SHAPES, _WEIGHTS, _TITLE = 0.35, 0.3, 0.3, 0.05
"""Parts of a score: names, shapes and weights that agree, and a path that has the model's name.
Only the order of matches depends on them."""
_MIN_WEIGHTS = 0.999
"""Share of the weights that a graph must have to be sure; the rest is room for the rounding."""


class Sureness(Enum):
    """How sure a match is; the value is the word that is printed."""

    CERTAIN = "certain"
    """All names, shapes and weights agree."""
    LIKELY = "likely"
    """Shapes and weights agree, or shapes and names, and nothing is open."""
    POSSIBLE = "possible"
    """Something differs or is not known."""


@dataclass(frozen=True, slots=True)
class ModelMatch:
    """A source model for a model. `renames` has the anchor of each input and output of the graph
    whose name differs from those that the model knows; `differences` says what differs or was
    assumed. `fits` tells whether each anchor has its tensor and the other way round."""

    graph: SourceModel
    score: float
    sureness: Sureness
    fits: bool
    renames: dict[str, str]
    differences: tuple[str, ...]


@dataclass(slots=True)
class _AnchorPairs:
    """Pairs of an anchor and a tensor of the graph, of inputs or outputs."""

    named: int = 0
    fitting: int = 0
    total: int = 0
    renames: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    is_whole: bool = True


def find_matches(model: FoundModel, graphs: Iterable[SourceModel]) -> list[ModelMatch]:
    """Return the source models that may have become this model, the best first."""
    matches = [match for graph in graphs if (match := _match(model, graph)) is not None]
    return sorted(matches, key=lambda match: (-match.score, str(match.graph.path)))


def _match(model: FoundModel, graph: SourceModel) -> ModelMatch | None:
    share = _compare_weights(model, graph)
    is_titled = model.name.lower() in str(graph.path).lower()
    if not graph.has_signature:
        if (share is None and not is_titled) or (share is not None and share < _MIN_WEIGHTS):
            return None
        remarks = ["its inputs and outputs are only in its code"]
        remarks += [] if share is not None else ["nothing but its path's name says that it fits"]
        score = _WEIGHTS * (share or 0) + _TITLE * is_titled
        return ModelMatch(graph, score, Sureness.POSSIBLE, False, {}, tuple(remarks))
    pairs = [
        _pair(kind, mine, theirs)
        for kind, mine, theirs in (
            ("input", model.inputs, graph.inputs),
            ("output", model.outputs, graph.outputs),
        )
    ]
    total = sum(pair.total for pair in pairs) or 1
    num_named, fitting = (
        sum(getattr(pair, name) for pair in pairs) for name in ("named", "fitting")
    )
    fits = all(pair.is_whole for pair in pairs)
    if not fits and (
        (share is None and not num_named) or (share is not None and share < _MIN_WEIGHTS)
    ):
        return None
    differences = [text for pair in pairs for text in pair.differences]
    if share is not None and share < _MIN_WEIGHTS:
        differences.append(f"it has {share:.0%} of the file's {len(model.weights)} weights")
    all_weights = share is not None and share >= _MIN_WEIGHTS
    sureness = Sureness.POSSIBLE
    if fits and num_named == total and (all_weights or not model.weights):
        sureness = Sureness.CERTAIN if all_weights else Sureness.LIKELY
    elif fits and all_weights and not differences:
        sureness = Sureness.LIKELY
    score = _NAMES * num_named / total + _SHAPES * fitting / total + _TITLE * is_titled
    score += _WEIGHTS * (0.5 if share is None else share)
    renames = {old: new for pair in pairs for old, new in pair.renames.items()}
    return ModelMatch(graph, score, sureness, fits, renames, tuple(differences))


def _pair(
    kind: str, anchors: Sequence[TensorDescription], tensors: Sequence[TensorDescription]
) -> _AnchorPairs:
    """Pair anchors with tensors: by name, then by type and shape, in their order."""
    pairs = _AnchorPairs(total=len(anchors))
    tensors_left = {tensor.name: tensor for tensor in tensors}
    open_anchors = []
    for anchor in anchors:
        tensor = tensors_left.pop(anchor.name, None) or tensors_left.pop(anchor.alias, None)
        if tensor is None:
            open_anchors.append(anchor)
            continue
        pairs.named += 1
        if _fits(anchor, tensor):
            pairs.fitting += 1
        else:
            pairs.is_whole = False
            pairs.differences.append(
                f"{kind} {anchor.describe()}: the graph has {tensor.describe()}"
            )
    for anchor in open_anchors:
        candidates = [tensor for tensor in tensors_left.values() if _fits(anchor, tensor)]
        if not candidates:
            pairs.is_whole = False
            pairs.differences.append(f"{kind} {anchor.describe()}: the graph has none that fits")
            continue
        alike = sum(_fits(anchor, candidates[0]) for anchor in open_anchors)
        if len(candidates) > 1 and alike > 1:
            pairs.differences.append(
                f"{kind} {anchor.name}: taken to be {candidates[0].name} by its place alone"
            )
        pairs.fitting += 1
        pairs.renames[candidates[0].name] = anchor.name
        del tensors_left[candidates[0].name]
    if tensors_left:
        pairs.is_whole = False
        names = ", ".join(tensors_left)
        pairs.differences.append(f"the graph has {kind}s that no anchor has: {names}")
    return pairs


def _fits(anchor: TensorDescription, tensor: TensorDescription) -> bool:
    """Return whether a tensor of the graph can have an anchor's type and shape. The chip has
    halves for floats, and int32 for int64."""
    if tensor.dtype is not None and anchor.dtype is not None:
        kinds = [
            _class_of(tensor_or_anchor.dtype)
            for tensor_or_anchor in (anchor, tensor)
            if tensor_or_anchor.dtype is not None
        ]
        if kinds[0] != kinds[1]:
            return False
    if tensor.shape is None or anchor.shape is None:
        return True
    return len(tensor.shape) == len(anchor.shape) and all(
        size in (None, own) for own, size in zip(anchor.shape, tensor.shape, strict=True)
    )


def _class_of(dtype: np.dtype[np.generic]) -> str:
    return dtype.kind if dtype.kind in "fiub" else str(dtype)


def _compare_weights(model: FoundModel, graph: SourceModel) -> float | None:
    """Return the share of the model's weights that the graph has, or None if that is not known."""
    own, theirs = model.count_weights(), graph.weights
    if not own or theirs is None or not theirs:
        return None
    if graph.kind is SourceKind.PYTORCH:
        own = _count_elements(own)
    return sum((own & theirs).values()) / sum(own.values())


def _count_elements(shapes: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    counted = Counter[tuple[int, ...]]()
    for shape, count in shapes.items():
        counted[(math.prod(shape),)] += count
    return counted
