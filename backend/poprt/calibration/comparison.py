"""Effect of half precision on a model's outputs: how far they differ, the first nodes where half
and float differ, the cause, and the option that fixes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import Value, find_makers, graph_values, infer_shapes
from simipu import CompileError, LoadError, RunError
from simipu.numerics import HALF_MAX

from popef._tools.arrays import Array
from popef._tools.console import quieted
from poprt.calibration.sides import Feeds, Renarrow, Side

T = TypeVar("T")

_TABLE_AXES = 2
"""Number of axes of a table of classes: rows by classes."""

LIMIT = 0.01
"""Share of an output's largest value by which half may differ without a warning; the user's own
inputs may show more."""
_PASSING = frozenset("Cast Flatten Identity Remap Reshape Squeeze Unsqueeze".split())
"""Operators that exporters put between a classifier's last product and its output."""
_LOGITS = frozenset("Add Gemm MatMul".split())
"""Operators that end a classifier whose output has no softmax."""
_CLASSES = frozenset("LogSoftmax Softmax SoftmaxV2 SoftmaxV3".split())
"""Operators whose results are scores of classes."""
_COUNTS = ("labels", "agreeing", "misled", "lost")


@dataclass(slots=True)
class _Output:
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
    has a number. `drawn` describes the inputs that were made up; None means the user's data.
    """

    error: float
    output: str
    labels: int
    agreeing: int
    misled: int
    lost: int
    drawn: str | None = None

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
    outputs: dict[str, _Output] = field(default_factory=dict)

    def add(self, half: Sequence[Array], whole: Sequence[Array]) -> float:
        """Add the outputs of one run; return its largest error relative to the largest value.

        Both are taken for each output. The result is at least 1 if values are lost or labels differ
        clearly.
        """
        worst = 0.0
        for name, ours, theirs in zip(self.names, half, whole, strict=True):
            run = _Output()
            if theirs.dtype.kind == "f":
                is_label = name in self.classes or _are_shares(theirs)
                _compare_floats(
                    run, ours.astype(np.float64), theirs.astype(np.float64), is_label=is_label
                )
            else:
                run.labels, run.agreeing = theirs.size, int((ours == theirs).sum())
                run.misled = run.labels - run.agreeing
            worst = max(worst, run.relative, float(bool(run.lost or run.misled)))
            self._merge(self.outputs.setdefault(name, _Output()), run)
        return worst

    def result(self, drawn: str | None) -> Comparison:
        """Return the comparison over all runs; `drawn` describes inputs that were made up."""
        outputs = self.outputs
        worst = max(outputs, key=lambda name: outputs[name].relative)
        counts = {kind: sum(getattr(each, kind) for each in outputs.values()) for kind in _COUNTS}
        return Comparison(outputs[worst].relative, worst, drawn=drawn, **counts)

    @staticmethod
    def _merge(total: _Output, run: _Output) -> None:
        total.largest, total.error = max(total.largest, run.largest), max(total.error, run.error)
        for kind in _COUNTS:
            setattr(total, kind, getattr(total, kind) + getattr(run, kind))


def _compare_floats(run: _Output, ours: Array, theirs: Array, *, is_label: bool) -> None:
    known = np.isfinite(theirs)
    lost = known & ~np.isfinite(ours)
    run.lost = int(lost.sum())
    run.largest = float(np.abs(theirs[known]).max(initial=0))
    both = known & ~lost
    run.error = float(np.abs(ours[both] - theirs[both]).max(initial=0))
    if is_label and theirs.size:
        # margin: by how much float prefers its own class to that of half. A small one means that
        # float is undecided between the two.
        rows, others = theirs.reshape(-1, theirs.shape[-1]), ours.reshape(-1, ours.shape[-1])
        chosen, found = rows.argmax(-1), np.nan_to_num(others, nan=-np.inf).argmax(-1)
        margin = np.take_along_axis(rows, chosen[:, None], -1) - np.take_along_axis(
            rows, found[:, None], -1
        )
        run.labels, run.agreeing = len(rows), int((chosen == found).sum())
        run.misled = int((margin > LIMIT * run.largest).sum())


def _are_shares(values: Array) -> bool:
    """Return whether rows are probabilities of several classes."""
    if values.ndim < _TABLE_AXES or values.shape[-1] <= 1 or not values.size:
        return False
    return bool((values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-3))


def find_classes(model: onnx.ModelProto) -> frozenset[str]:
    """Return outputs whose last axis looks like classes.

    These are outputs of a softmax, and outputs of two axes of a last linear layer.
    """
    graph = model.graph
    makers = find_makers(graph)
    found = set()
    for value in graph.output:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        name = value.name
        while name in makers and makers[name].op_type in _PASSING:
            name = makers[name].input[0]
        maker = makers[name].op_type if name in makers else ""
        is_table = len(sizes) == _TABLE_AXES
        if sizes and sizes[-1] > 1 and (maker in _CLASSES or (maker in _LOGITS and is_table)):
            found.add(value.name)
    return frozenset(found)


MAX_NAMED = 3
MAX_ROUNDS = 6
"""Maximum number of times that operators are added to those that stay in float."""
MAX_TENSORS = 500
"""Maximum number of tensors that are compared at once: the time that ONNX Runtime takes for each
output grows with their number."""
MAX_SECONDS_TO_MEND, MAX_SECONDS_TO_PRUNE = 5.0, 4.0
_CHUNK_BYTES = 256 << 20
_MAX_CHUNKS = 3
"""Maximum number of chunks of tensors; each takes two runs of the whole graph."""
_VANISHING = 2.0**-25
"""Largest value that rounds to 0 in half: half of the smallest half, a tie that goes to even."""
_STEEP = frozenset("Div Log LogSoftmax Pow Reciprocal ReduceLogSum Sqrt".split())
"""Operators that treat a value near 0 very differently from 0 itself."""
_SUMS = frozenset(
    "Add AveragePool Conv Gemm GlobalAveragePool MatMul ReduceMean ReduceSum Sub Sum".split()
)
"""Operators whose large operands may cancel; the report names that as the cause."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Statistics of a tensor on both sides: largest error over largest value, largest values, and
    `vanished`.

    `vanished` is the share of values that are not 0 in float but are 0 in half.
    """

    error: float
    largest: float
    largest_half: float
    vanished: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """A node whose inputs agree on both sides, but whose result does not."""

    node: onnx.NodeProto
    cause: str
    blamed: tuple[str, ...]
    """Types of the operators to keep in float."""

    def describe(self) -> str:
        """Return the node's name and the cause."""
        return f"node {self.node.name!r} ({self.node.op_type}): {self.cause}"


def explain(
    half: Side, whole: Side, feeds: Feeds, outputs: Sequence[Array], renarrow: Renarrow | None
) -> str:
    """Return a message about outputs that differ: the first nodes, and what to do.

    `outputs` are those of `whole`.
    """
    start = time.monotonic()
    divergences = find_divergences(half, whole, feeds)
    search_seconds = time.monotonic() - start
    if not divergences:
        return (
            "No single node causes it: errors add up; keep the model in fp32, or parts of it "
            "with fp16_skip_op_types"
        )
    named = "; ".join(divergence.describe() for divergence in divergences[:MAX_NAMED])
    told = f"They first differ at {named}"
    if renarrow is None:
        return f"{told}. Keep such operators in float with fp16_skip_op_types"
    # The options of these conversions are not the user's.
    with quieted("poprt"):
        mended = _mend(whole, feeds, outputs, renarrow, divergences, search_seconds)
    if mended is None:
        return (
            f"{told}. No choice of operators kept in float was found that fixes it; keep the "
            "model in fp32"
        )
    types, error = mended
    option = f"--fp16_skip_op_types {','.join(sorted(types))}"
    return (
        f"{told}. {option} brings the error to {error:.2g} (--fp16_skip_op_names takes single "
        "nodes)"
    )


def _mend(
    whole: Side,
    feeds: Feeds,
    outputs: Sequence[Array],
    renarrow: Renarrow,
    divergences: Sequence[Divergence],
    search_seconds: float,
) -> tuple[frozenset[str], float] | None:
    """Return types of operators to keep in float, and the remaining error; None if there are none.

    With these types in float the outputs agree. `divergences` are those of the first round, and
    took `search_seconds` to find: a search that would end too late is not begun.
    """

    def compare(half: Side) -> Comparison:
        (ours,) = half.run([feeds])
        names = [value.name for value in half.model.graph.output]
        comparer = Comparer(names, find_classes(half.model))
        comparer.add(ours, outputs)
        return comparer.result("")

    types: frozenset[str] = frozenset()
    end = time.monotonic() + MAX_SECONDS_TO_MEND
    for _ in range(MAX_ROUNDS):
        more = types.union(*(divergence.blamed for divergence in divergences))
        if time.monotonic() > end or more == types:
            return None
        types = more
        try:
            half = renarrow(types)
            comparison = compare(half)
            if not comparison.is_bad:
                return _prune(lambda fewer: compare(renarrow(fewer)), types, comparison)
            if time.monotonic() + search_seconds > end:
                return None
            divergences = find_divergences(half, whole, feeds)
        except (CompileError, LoadError, RunError):
            return None
    return None


def _prune(
    compare: Callable[[frozenset[str]], Comparison], types: frozenset[str], comparison: Comparison
) -> tuple[frozenset[str], float]:
    """Remove the types that need not stay in float, as far as time allows.

    Returns the other types and the error.
    """
    end = time.monotonic() + MAX_SECONDS_TO_PRUNE
    for name in sorted(types):
        fewer = types - {name}
        if not fewer or time.monotonic() > end:
            break
        tried = compare(fewer)
        if not tried.is_bad:
            types, comparison = fewer, tried
    return types, comparison.error


def find_divergences(half: Side, whole: Side, feeds: Feeds) -> list[Divergence]:
    """Return the nodes of the main graph whose results differ by more than `LIMIT` while their
    inputs do not, in order."""
    seen = _compare_tensors(half, whole, feeds)
    makers = find_makers(half.model.graph)
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in half.model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    found = []
    for node in half.model.graph.node:
        results = [name for name in node.output if name in seen and seen[name].error > LIMIT]
        sources = {name: seen[name] for name in node.input if name in seen}
        if results and all(source.error <= LIMIT for source in sources.values()):
            made_by = {name: makers[name].op_type for name in sources if name in makers}
            used_by = [user.op_type for user in users.get(results[0], ())]
            cause, others = _find_cause(node, seen[results[0]], sources, made_by, used_by)
            found.append(Divergence(node, cause, (node.op_type, *others)))
    return found


def _find_cause(
    node: onnx.NodeProto,
    result: Tensor,
    sources: Mapping[str, Tensor],
    made_by: Mapping[str, str],
    used_by: Sequence[str],
) -> tuple[str, Sequence[str]]:
    """Return the cause of a difference, and the operators to blame beside the node's own.

    `made_by` has the operator that makes each source, `used_by` has those that read the result.
    """
    # The causes, most certain first: overflow, a 0 where the operator is steep, a value that is no
    # number, a small sum of large values, results that vanish. What remains is rounding. Blamed are
    # the operator and what makes or reads the tensor that half cannot hold: a result stays in float
    # only if the nodes that read it are in float, too.
    if result.largest > HALF_MAX:
        return f"overflow, {result.largest:.3g} is beyond {HALF_MAX:.0f}", used_by
    vanished = [name for name, source in sources.items() if source.vanished]
    if vanished and node.op_type in _STEEP:
        cause = f"underflow, values of {vanished[0]!r} are below {_VANISHING:.2g} and 0 in half"
        return cause, [made_by[name] for name in vanished if name in made_by]
    makers = list(made_by.values())
    if not np.isfinite(result.largest_half):
        return "its result is NaN or infinite in half", [*makers, *used_by]
    most = max((source.largest for source in sources.values()), default=0.0)
    if node.op_type in _SUMS and most > result.largest / LIMIT:
        left = f"no more than {result.largest:.3g} is left"
        return f"cancellation, of values up to {most:.3g} {left}", makers
    if result.vanished > LIMIT:
        return f"underflow, results below {_VANISHING:.2g} are 0 in half", used_by
    return f"rounding, its result is off by {result.error:.2g} of the largest value", makers


def _compare_tensors(half: Side, whole: Side, feeds: Feeds) -> dict[str, Tensor]:
    """Return the statistics of the floats that nodes of the main graph make, on both sides."""
    values = graph_values(infer_shapes(half.model).graph)
    made = set(_iter_made(whole.model))
    names = [name for name in _iter_floats(half.model) if name in values and name in made]

    def look(names: Sequence[str], *, to_first: bool = False) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        for chunk in iter_chunks(names, values):
            (ours,), (theirs,) = half.run([feeds], chunk), whole.run([feeds], chunk)
            seen.update(
                {name: _compare(*pair) for name, *pair in zip(chunk, ours, theirs, strict=True)}
            )
            if to_first and any(seen[name].error > LIMIT for name in chunk):
                break
        return seen

    size = sum(4 * values[name].size for name in names)
    step = max(-(-len(names) // MAX_TENSORS), -(-size // (_MAX_CHUNKS * _CHUNK_BYTES)))
    if step <= 1:
        return look(names)
    # A large graph is sampled first. Then the tensors between the last that agrees and the first
    # that differs are compared. Later ones are left out: the inputs of their nodes are unknown.
    sample = look(names[::step], to_first=True)
    first = next((i for i, seen in enumerate(sample.values()) if seen.error > LIMIT), 0) * step
    return {name: sample[name] for name in names[:first:step]} | look(
        names[max(0, first - step + 1) : first + 1][-MAX_TENSORS:]
    )


def _iter_made(model: onnx.ModelProto) -> Iterator[str]:
    return (name for node in model.graph.node for name in node.output)


def _iter_floats(model: onnx.ModelProto) -> Iterator[str]:
    graph = infer_shapes(model).graph
    types = {
        value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)
    }
    return (
        name
        for name in _iter_made(model)
        if types.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16)
    )


def iter_chunks(names: Iterable[str], values: Mapping[str, Value]) -> Iterator[list[str]]:
    """Yield groups of tensors that fit into memory together, in float."""
    return iter_groups(names, lambda name: 4 * values[name].size, _CHUNK_BYTES)


def iter_groups(
    items: Iterable[T], count_bytes: Callable[[T], int], limit_bytes: int
) -> Iterator[list[T]]:
    """Yield consecutive items in groups of at most `limit_bytes`; a larger item is alone."""
    group: list[T] = []
    size = 0
    for item in items:
        needed = count_bytes(item)
        if group and size + needed > limit_bytes:
            yield group
            group, size = [], 0
        group.append(item)
        size += needed
    if group:
        yield group


def _compare(ours: Array, theirs: Array) -> Tensor:
    # Activations may be large: they stay in float, and are copied only if a value is not finite.
    known = np.isfinite(theirs)
    if not known.all():
        ours, theirs = ours[known], theirs[known]
    lost = not np.isfinite(ours).all()
    largest = float(np.abs(theirs).max(initial=0))
    difference = float("inf") if lost else float(np.abs(ours - theirs).max(initial=0))
    relative = difference / largest if largest else float(difference > 0)
    vanished = float(((ours == 0) & (theirs != 0)).mean()) if theirs.size else 0.0
    return Tensor(
        relative, largest, float("inf") if lost else float(np.abs(ours).max(initial=0)), vanished
    )
