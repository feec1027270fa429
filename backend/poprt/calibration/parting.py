"""The first nodes where half and float part, why, and the option that brings them together again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxgraph import Value, find_makers, graph_values, infer_shapes
from simipu import CompileError, LoadError, RunError

from poprt.calibration.comparison import LIMIT, Comparer, Comparison, find_classes
from poprt.calibration.sides import Feeds, Renarrow, Side

Array = npt.NDArray[Any]

MOST_NAMED = 3
MOST_ROUNDS = 6
"""How often operators are added to those that stay in float."""
MOST_TENSORS = 500
"""That are compared at once: ONNX Runtime takes a time for each output that grows with their number."""
MOST_SECONDS_TO_MEND, MOST_SECONDS_TO_PRUNE = 15.0, 8.0
_CHUNK_BYTES = 128 << 20
_MOST_CHUNKS = 6
"""Each takes two runs of the whole graph."""
_HALF_MAX, _LEAST_HALF = 65_504.0, 2.0**-25
"""The largest half, and what rounds to 0."""
_STEEP = frozenset("Div Log LogSoftmax Pow Reciprocal ReduceLogSum Sqrt".split())
"""Operators to which a value near 0 and 0 itself are not alike."""
_SUMS = frozenset("Add AveragePool Conv Gemm GlobalAveragePool MatMul ReduceMean ReduceSum Sub Sum".split())


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor on both sides: largest error over largest value, largest values, and the
    share of values that are not 0 in float and are in half."""

    error: float
    largest: float
    largest_half: float
    vanished: float


@dataclass(frozen=True, slots=True)
class Parting:
    """A node whose inputs are alike on both sides, and its result is not."""

    node: onnx.NodeProto
    cause: str
    blamed: tuple[str, ...]
    """Types of the operators to keep in float."""

    def describe(self) -> str:
        """The node by name, and why."""
        return f"node {self.node.name!r} ({self.node.op_type}): {self.cause}"


def explain(half: Side, whole: Side, feeds: Feeds, renarrow: Renarrow | None) -> str:
    """What is to be told of outputs that part: the first nodes, and what to do."""
    partings = find_partings(half, whole, feeds)
    if not partings:
        return (
            "No single node parts them: errors add up; keep the model in fp32, or parts of it "
            "with fp16_skip_op_types"
        )
    named = "; ".join(parting.describe() for parting in partings[:MOST_NAMED])
    told = f"They first part at {named}"
    if renarrow is None:
        return f"{told}. Keep such operators in float with fp16_skip_op_types"
    mended = _mend(whole, feeds, renarrow, partings)
    if mended is None:
        return f"{told}. No choice of operators kept in float was found that mends it; keep the model in fp32"
    types, error = mended
    option = f"--fp16_skip_op_types {','.join(sorted(types))}"
    return f"{told}. {option} brings the error to {error:.2g} (--fp16_skip_op_names takes single nodes)"


def _mend(
    whole: Side, feeds: Feeds, renarrow: Renarrow, partings: Sequence[Parting]
) -> tuple[frozenset[str], float] | None:
    """Types of operators that, kept in float, bring the outputs together, and the error left; None if there
    are none."""
    types: frozenset[str] = frozenset()
    end = time.monotonic() + MOST_SECONDS_TO_MEND
    for _ in range(MOST_ROUNDS):
        if time.monotonic() > end:
            break
        more = types.union(*(parting.blamed for parting in partings))
        if more == types:
            return None
        types = more
        try:
            comparison = _try(whole, feeds, renarrow, types)
            if not comparison.is_bad:
                return _prune(whole, feeds, renarrow, types, comparison)
            partings = find_partings(renarrow(types), whole, feeds)
        except (CompileError, LoadError, RunError):
            return None
    return None


def _prune(
    whole: Side, feeds: Feeds, renarrow: Renarrow, types: frozenset[str], comparison: Comparison
) -> tuple[frozenset[str], float]:
    """Without the types that were blamed for nothing, as far as there is time to find out."""
    end = time.monotonic() + MOST_SECONDS_TO_PRUNE
    for name in sorted(types):
        fewer = types - {name}
        if not fewer or time.monotonic() > end:
            break
        tried = _try(whole, feeds, renarrow, fewer)
        if not tried.is_bad:
            types, comparison = fewer, tried
    return types, comparison.error


def _try(whole: Side, feeds: Feeds, renarrow: Renarrow, types: frozenset[str]) -> Comparison:
    half = renarrow(types)
    (ours,), (theirs,) = half.run([feeds]), whole.run([feeds])
    comparer = Comparer([value.name for value in half.model.graph.output], find_classes(half.model))
    comparer.add(ours, theirs)
    return comparer.result(made_up=True)


def find_partings(half: Side, whole: Side, feeds: Feeds) -> list[Parting]:
    """The nodes of the main graph whose results differ by more than `LIMIT` while nothing that they take
    does, in order."""
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
            found.append(_explain_node(node, results[0], seen, sources, makers, users))
    return found


def _explain_node(
    node: onnx.NodeProto,
    result: str,
    seen: Mapping[str, Tensor],
    sources: Mapping[str, Tensor],
    makers: Mapping[str, onnx.NodeProto],
    users: Mapping[str, Sequence[onnx.NodeProto]],
) -> Parting:
    made_by = [makers[name].op_type for name in sources if name in makers]
    # A result goes on in float only where those who take it are in float, too.
    used_by = [user.op_type for user in users.get(result, ())]
    tensor = seen[result]
    if tensor.largest > _HALF_MAX:
        return Parting(
            node, f"overflow, {tensor.largest:.3g} is beyond {_HALF_MAX:.0f}", (node.op_type, *used_by)
        )
    vanished = [name for name, source in sources.items() if source.vanished]
    if vanished and node.op_type in _STEEP:
        made_by = [makers[name].op_type for name in vanished if name in makers]
        cause = f"underflow, values of {vanished[0]!r} are below {_LEAST_HALF:.2g} and 0 in half"
        return Parting(node, cause, (node.op_type, *made_by))
    if not np.isfinite(tensor.largest_half):
        return Parting(node, "its result is NaN or infinite in half", (node.op_type, *made_by, *used_by))
    most = max((source.largest for source in sources.values()), default=0.0)
    if node.op_type in _SUMS and most > tensor.largest / LIMIT:
        cause = f"cancellation, of values up to {most:.3g} no more than {tensor.largest:.3g} is left"
        return Parting(node, cause, (node.op_type, *made_by))
    if tensor.vanished > LIMIT:
        return Parting(
            node, f"underflow, results below {_LEAST_HALF:.2g} are 0 in half", (node.op_type, *used_by)
        )
    return Parting(
        node,
        f"rounding, its result is off by {tensor.error:.2g} of the largest value",
        (node.op_type, *made_by),
    )


def _compare_tensors(half: Side, whole: Side, feeds: Feeds) -> dict[str, Tensor]:
    """The floats that nodes of the main graph make, on both sides."""
    values = graph_values(infer_shapes(half.model).graph)
    made = set(_iter_made(whole.model))
    names = [name for name in _iter_floats(half.model) if name in values and name in made]

    def look(names: Sequence[str], *, to_first: bool = False) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        for chunk in iter_chunks(names, values):
            (ours,), (theirs,) = half.run([feeds], chunk), whole.run([feeds], chunk)
            seen.update({name: _compare(*pair) for name, *pair in zip(chunk, ours, theirs, strict=True)})
            if to_first and any(seen[name].error > LIMIT for name in chunk):
                break
        return seen

    size = sum(4 * values[name].size for name in names)
    step = max(-(-len(names) // MOST_TENSORS), -(-size // (_MOST_CHUNKS * _CHUNK_BYTES)))
    if step <= 1:
        return look(names)
    # Of a large graph a sample first, then what lies between the last that is alike and the first that is
    # not. What comes after is left out: nothing is known of what its nodes take.
    sample = look(names[::step], to_first=True)
    first = next((i for i, seen in enumerate(sample.values()) if seen.error > LIMIT), 0) * step
    return {name: sample[name] for name in names[:first:step]} | look(
        names[max(0, first - step + 1) : first + 1][-MOST_TENSORS:]
    )


def _iter_made(model: onnx.ModelProto) -> Iterator[str]:
    return (name for node in model.graph.node for name in node.output)


def _iter_floats(model: onnx.ModelProto) -> Iterator[str]:
    graph = infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    return (name for name in _iter_made(model) if types.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16))


def iter_chunks(names: Iterable[str], values: Mapping[str, Value]) -> Iterator[list[str]]:
    """Tensors that fit into memory together, in float."""
    chunk: list[str] = []
    size = 0
    for name in names:
        if chunk and size + 4 * values[name].size > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += 4 * values[name].size
    if chunk:
        yield chunk


def _compare(ours: Array, theirs: Array) -> Tensor:
    # In float, and picked out only where something is not finite: activations may be large.
    known = np.isfinite(theirs)
    if not known.all():
        ours, theirs = ours[known], theirs[known]
    lost = not np.isfinite(ours).all()
    largest = float(np.abs(theirs).max(initial=0))
    difference = float("inf") if lost else float(np.abs(ours - theirs).max(initial=0))
    relative = difference / largest if largest else float(difference > 0)
    vanished = float(((ours == 0) & (theirs != 0)).mean()) if theirs.size else 0.0
    return Tensor(relative, largest, float("inf") if lost else float(np.abs(ours).max(initial=0)), vanished)
