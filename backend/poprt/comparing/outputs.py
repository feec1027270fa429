"""Effect of half precision on a model's outputs: how far they differ from those in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnxgraph import find_makers
from simipu.operators import Family, operator_of

from popef._tools.arrays import Array

_TABLE_AXES = 2
"""Number of axes of a table of classes: rows by classes."""

LIMIT = 0.01
"""Share of an output's largest value by which half may differ without a warning; the user's own
inputs may show more."""
_COUNTS = ("labels", "agreeing", "misled", "lost")


@dataclass(slots=True)
class _OutputSums:
    """Sums over all runs of one output."""

    largest: float = 0.0
    error: float = 0.0
    lost: int = 0
    labels: int = 0
    agreeing: int = 0
    misled: int = 0

    @property
    def relative(self) -> float:
        """Return the largest error divided by the largest value."""
        if self.largest:
            return self.error / self.largest
        return float("inf") if self.error else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's outputs in half compared with those in float, over all runs.

    `error` is the largest difference divided by the largest value of that output; `output` is the
    output where this is largest. `labels` counts the answers that look like classes. In `agreeing`
    of them half and float name the same class; `misled` counts those that differ although float is
    not undecided between the two. `lost` counts values that are NaN or infinity in half where float
    has a number. `drawn` describes the inputs that were made up; None means the user's data. `loud`
    is the same on sound of 16 bits, if an input may be sound.
    """

    error: float
    output: str
    labels: int
    agreeing: int
    misled: int
    lost: int
    drawn: str | None = None
    loud: Comparison | None = None

    @property
    def is_bad(self) -> bool:
        """Return whether the user must be warned."""
        return self.error > LIMIT or self.lost > 0 or self.misled > 0

    def describe(self) -> str:
        """Return a description in one line."""
        parts = [f"largest error {self.error:.2g} of the largest value (output {self.output!r})"]
        if self.labels:
            parts.append(f"labels agree in {self.agreeing} of {self.labels}")
        parts.append(
            f"{self.lost} values lost to NaN or infinity" if self.lost else "no NaN or infinity"
        )
        if self.loud and self.loud.is_bad:
            lost = f", {self.loud.lost} values lost" if self.loud.lost else ""
            parts.append(f"but an error of {self.loud.error:.2g}{lost} on {self.loud.drawn}")
        return f"beside float, on {describe_inputs(self.drawn)}: {', '.join(parts)}"


def describe_inputs(drawn: str | None) -> str:
    """Return what a figure was measured on: made-up inputs, with their ranges, or, for None, the
    user's data."""
    if drawn is None:
        return "the calibration data"
    return f"made-up inputs ({drawn})" if drawn else "made-up inputs"


@dataclass(slots=True)
class Comparer:
    """Collects the outputs of runs and compares them."""

    names: Sequence[str]
    classes: frozenset[str]
    outputs: dict[str, _OutputSums] = field(default_factory=dict)

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Comparer:
        """Return the comparer of a model's outputs."""
        return cls([value.name for value in model.graph.output], find_classes(model))

    def add(self, half: Sequence[Array], whole: Sequence[Array]) -> float:
        """Add the outputs of one run; return its largest error relative to the largest value.

        Both are taken for each output. The result is at least 1 if values are lost or labels differ
        clearly.
        """
        worst = 0.0
        for name, ours, theirs in zip(self.names, half, whole, strict=True):
            run = _OutputSums()
            if theirs.dtype.kind == "f":
                is_label = name in self.classes or _are_shares(theirs)
                _compare_floats(
                    run, ours.astype(np.float64), theirs.astype(np.float64), is_label=is_label
                )
            else:
                run.labels, run.agreeing = theirs.size, int((ours == theirs).sum())
                run.misled = run.labels - run.agreeing
            worst = max(worst, run.relative, float(bool(run.lost or run.misled)))
            self._merge(self.outputs.setdefault(name, _OutputSums()), run)
        return worst

    def result(self, drawn: str | None) -> Comparison:
        """Return the comparison over all runs; `drawn` describes inputs that were made up."""
        outputs = self.outputs
        worst = max(outputs, key=lambda name: outputs[name].relative)
        counts = {kind: sum(getattr(sums, kind) for sums in outputs.values()) for kind in _COUNTS}
        return Comparison(outputs[worst].relative, worst, drawn=drawn, **counts)

    @staticmethod
    def _merge(total: _OutputSums, run: _OutputSums) -> None:
        total.largest, total.error = max(total.largest, run.largest), max(total.error, run.error)
        for kind in _COUNTS:
            setattr(total, kind, getattr(total, kind) + getattr(run, kind))


def _compare_floats(run: _OutputSums, ours: Array, theirs: Array, *, is_label: bool) -> None:
    is_finite = np.isfinite(theirs)
    lost = is_finite & ~np.isfinite(ours)
    run.lost = int(lost.sum())
    run.largest = float(np.abs(theirs[is_finite]).max(initial=0))
    both = is_finite & ~lost
    run.error = float(np.abs(ours[both] - theirs[both]).max(initial=0))
    if is_label and theirs.size:
        # margin: by how much float prefers its own class to that of half. A small one means that
        # float is undecided between the two.
        rows, others = theirs.reshape(-1, theirs.shape[-1]), ours.reshape(-1, ours.shape[-1])
        chosen, half_classes = rows.argmax(-1), np.nan_to_num(others, nan=-np.inf).argmax(-1)
        with np.errstate(invalid="ignore"):  # two infinities
            margin = np.take_along_axis(rows, chosen[:, None], -1) - np.take_along_axis(
                rows, half_classes[:, None], -1
            )
        run.labels, run.agreeing = len(rows), int((chosen == half_classes).sum())
        run.misled = int((margin > LIMIT * run.largest).sum())


def _are_shares(values: Array) -> bool:
    """Return whether rows are probabilities of several classes."""
    if values.ndim < _TABLE_AXES or values.shape[-1] <= 1 or not values.size:
        return False
    return bool((values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-3))


def _passes(node: onnx.NodeProto) -> bool:
    """Return whether exporters put a node between a classifier's last product and its output."""
    return node.op_type == "Cast" or operator_of(node).keeps_order


def find_classes(model: onnx.ModelProto) -> frozenset[str]:
    """Return outputs whose last axis looks like classes.

    These are outputs of a softmax, and outputs of two axes of a last linear layer.
    """
    graph = model.graph
    makers = find_makers(graph)
    outputs = set()
    for value in graph.output:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        name = value.name
        while name in makers and _passes(makers[name]):
            name = makers[name].input[0]
        maker = makers.get(name)
        if maker is None or not sizes or sizes[-1] <= 1:
            continue
        # A classifier without a softmax ends with a product, or with the sum with its bias.
        ends = operator_of(maker).is_product or maker.op_type == "Add"
        is_table = len(sizes) == _TABLE_AXES
        if operator_of(maker).family is Family.SOFTMAX or (ends and is_table):
            outputs.add(value.name)
    return frozenset(outputs)


def measure_difference(found: Array, expected: Array, least_scale: float = 0.0) -> float:
    """Return the greatest difference of two arrays, relative to the largest finite value of the
    second, or to `least_scale` if that is larger.

    Equal values, NaN and infinities included, have none. One that is finite on one side only is
    infinitely far.
    """
    equal = (found == expected) | ((found != found) & (expected != expected))
    if equal.all():
        return 0.0
    if expected.dtype.kind not in "fiu":
        return np.inf
    wide, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wide)
    if not (finite & np.isfinite(other))[~equal].all():
        return np.inf
    scale = max(least_scale, float(np.abs(wide[finite]).max()))
    greatest = float(np.abs(wide - other)[~equal].max())
    return greatest / scale if scale else np.inf
