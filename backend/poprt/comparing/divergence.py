"""The first nodes of a graph whose results in half differ from those in float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import TensorSize, find_makers, graph_values, infer_shapes

from popef._tools.arrays import Array
from poprt.comparing.causes import Bench, Beside, Cause, find_cause
from poprt.comparing.outputs import LIMIT
from poprt.comparing.sides import Feeds, Side

T = TypeVar("T")

MAX_NAMED = 3
"""Maximum number of nodes whose causes are looked for."""
MAX_TENSORS = 500
"""Maximum number of tensors that are compared at once: the time that ONNX Runtime takes for each
output grows with their number."""
_CHUNK_BYTES = 256 << 20
"""Maximum size of the tensors that are held at once, in float, of each side."""
_MAX_CHUNKS = 3
"""Maximum number of chunks of tensors; each takes two runs of the whole graph."""
_FIRST_SHARE = 8
"""Divisor of the sample that is compared first. Most networks repeat their layers, and a cause
shows in the first of them; the graph is run as far as the tensors that are compared."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A node whose inputs agree on both sides, but whose result does not; `node` is that of the
    float side, which users know."""

    node: onnx.NodeProto
    cause: str
    blamed: tuple[str, ...]
    """Types of the operators to keep in float."""

    def describe(self) -> str:
        """Return the node's name and the cause."""
        return f"node {self.node.name!r} ({self.node.op_type}): {self.cause}"


def find_divergences(half: Side, whole: Side, feeds: Feeds) -> list[Divergence]:
    """Return the nodes of the main graph whose results differ by more than `LIMIT` while their
    inputs do not, in order."""
    errors = _compare_tensors(half, whole, feeds)
    first: list[tuple[onnx.NodeProto, str]] = []
    for node in half.model.graph.node:
        results = [name for name in node.output if errors.get(name, 0) > LIMIT]
        if results and all(errors.get(name, 0) <= LIMIT for name in node.input):
            first.append((node, results[0]))
    bench = Bench(half, whole, feeds)
    operands_of_first = bench.read([result for _, result in first[:MAX_NAMED]]) if first else []
    causes = [find_cause(bench, operands) if operands else None for operands in operands_of_first]
    makers, originals = find_makers(half.model.graph), find_makers(whole.model.graph)
    users: dict[str, list[str]] = {}
    for node in half.model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node.op_type)
    divergences = []
    for i, (node, result) in enumerate(first):
        cause = causes[i] if i < len(causes) else None
        cause = cause or Cause(
            f"it is off by {errors[result]:.2g} of the largest value", Beside.BOTH
        )
        made_by = [makers[name].op_type for name in node.input if name in makers]
        # A result stays in float only if the nodes that read it are in float, too.
        others = {
            Beside.MAKERS: made_by,
            Beside.READERS: users.get(result, []),
            Beside.BOTH: [*made_by, *users.get(result, [])],
        }
        shown = originals.get(result, node)
        divergences.append(Divergence(shown, cause.text, (shown.op_type, *others[cause.beside])))
    return divergences


def _compare_tensors(half: Side, whole: Side, feeds: Feeds) -> dict[str, float]:
    """Return how far the floats that nodes of the main graph make differ, relative to the largest
    of each."""
    values = graph_values(infer_shapes(half.model).graph)
    whole_names = set(_iter_made(whole.model))
    names = [name for name in _iter_floats(half.model) if name in values and name in whole_names]

    def look(names: Sequence[str], *, to_first: bool = False) -> dict[str, float]:
        seen: dict[str, float] = {}
        end = len(names) // _FIRST_SHARE if to_first else 0
        for chunk in (*iter_chunks(names[:end], values), *iter_chunks(names[end:], values)):
            (ours,), (theirs,) = half.run([feeds], chunk), whole.run([feeds], chunk)
            seen.update(
                {name: _compare(*pair) for name, *pair in zip(chunk, ours, theirs, strict=True)}
            )
            if to_first and any(seen[name] > LIMIT for name in chunk):
                break
        return seen

    size = sum(4 * values[name].size for name in names)
    step = max(-(-len(names) // MAX_TENSORS), -(-size // (_MAX_CHUNKS * _CHUNK_BYTES)))
    if step <= 1:
        return look(names)
    # A large graph is sampled first. Then the tensors between the last that agrees and the first
    # that differs are compared. Later ones are left out: the inputs of their nodes are unknown.
    sample = look(names[::step], to_first=True)
    first = next((i for i, seen in enumerate(sample.values()) if seen > LIMIT), 0) * step
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


def iter_chunks(names: Iterable[str], values: Mapping[str, TensorSize]) -> Iterator[list[str]]:
    """Yield groups of tensors that fit into memory together, in float."""
    return iter_groups(names, lambda name: 4 * values[name].size, _CHUNK_BYTES)


def iter_groups(
    items: Iterable[T], count_bytes: Callable[[T], int], limit_bytes: int
) -> Iterator[list[T]]:
    """Yield consecutive items in groups of at most `limit_bytes`; a larger item is alone."""
    group: list[T] = []
    size = 0
    for item in items:
        item_bytes = count_bytes(item)
        if group and size + item_bytes > limit_bytes:
            yield group
            group, size = [], 0
        group.append(item)
        size += item_bytes
    if group:
        yield group


def _compare(ours: Array, theirs: Array) -> float:
    # Activations may be large: they stay in float, and are copied only if a value is not finite.
    is_finite = np.isfinite(theirs)
    if not is_finite.all():
        ours, theirs = ours[is_finite], theirs[is_finite]
    if not np.isfinite(ours).all():
        return float("inf")
    largest = float(np.abs(theirs).max(initial=0))
    difference = float(np.abs(ours - theirs).max(initial=0))
    return difference / largest if largest else float(difference > 0)
