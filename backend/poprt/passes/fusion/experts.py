"""Pass merge_moe: two experts of a mixture with the same operators and different weights become
one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnxgraph import GraphEditor, Shape, Tape, has_data, is_operator, read_array
from simipu.operators import operator_of

from poprt.passes.fusion.merging import NamedMerge
from poprt.rewrite.base import Stage, register

_COUNT = 4
"""Number of names: the first and the last node of each of two experts."""
_MAX_NODES = 256
"""Maximum number of nodes of an expert; known ones have about ten."""


@dataclass(frozen=True, slots=True)
class _Expert:
    """Expert: its nodes, in order from the first to the last, and the tensor that it reads."""

    nodes: Sequence[onnx.NodeProto]
    source: str

    @property
    def end(self) -> onnx.NodeProto:
        """Last node of the expert."""
        return self.nodes[-1]


@register("merge_moe", stage=Stage.PATTERNS, option="merge_moe", takes="merge_str=merge_moe")
class MergeMoE(NamedMerge):
    """Have two experts, which are the nodes from a first to a last one, compute as one with a
    leading axis of two: their weights, of equal shapes, lie on each other, and what comes out is
    split.

    merge_str: the names of the first and last node of both, as a text with commas or one by one.
    Experts are of products with weights and of operators that look at each element by itself;
    others are left as they are, with a warning. What else the real tool joins is not public.
    """

    op_types = frozenset()

    expected = "B1,E1,B2,E2, the names of the first and last node of two experts"
    missing = "there are no two experts in the model that do the same with other weights"

    def __init__(self, merge_str: str | Sequence[str] | None = None) -> None:
        super().__init__(merge_str)

    def takes(self, names: Sequence[str]) -> bool:
        """Return whether there are four names, and no node is of both experts."""
        is_shared = bool(set(names[:2]) & set(names[2:]))
        return len(names) == _COUNT and not is_shared and all(names)

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is the last of a named expert."""
        return node.name in self._names[1::2]

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge the experts at the later of their two last nodes."""
        by_name = {
            candidate.name: candidate for candidate in view.nodes() if candidate.name in self._names
        }
        if len(by_name) < len(set(self._names)):
            return
        ends = [by_name[name] for name in self._names[1::2]]
        if node is not max(ends, key=view.place):
            return
        candidates = [
            _find(by_name[begin], end, view)
            for begin, end in zip(self._names[::2], ends, strict=True)
        ]
        experts = [expert for expert in candidates if expert is not None]
        if (
            len(experts) == len(candidates)
            and _are_alike(experts, view)
            and _may_wait(experts, node, view)
        ):
            op = view.start(node, "experts")
            _build(experts, op, view)
            view.rewrite(
                node, op.nodes, [expert_node for expert in experts for expert_node in expert.nodes]
            )
            self._is_done = True


def _find(begin: onnx.NodeProto, end: onnx.NodeProto, view: GraphEditor) -> _Expert | None:
    """Return the nodes between as an expert, if all of them can be merged and nothing else reads
    their results."""
    inside = {id(begin): begin}
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if len(inside) > _MAX_NODES or not _can_join(node, view):
            return None
        if node is begin or (id(node) in inside and node is not end):
            continue
        inside[id(node)] = node
        makers = [view.makers.get(name) for name in _dynamic(node, view)]
        if any(maker is None for maker in makers):
            return None
        waiting += [maker for maker in makers if maker is not None and id(maker) not in inside]
    sources = set(_dynamic(begin, view))
    nodes = sorted(inside.values(), key=view.place)
    results = [node.output[0] for node in nodes if node is not end]
    is_private = view.outputs.isdisjoint(results) and all(
        view.readers.get(name, {}).keys() <= inside.keys() for name in results
    )
    return (
        _Expert(nodes, sources.pop())
        if len(sources) == 1 and is_private and nodes[-1] is end
        else None
    )


def _dynamic(node: onnx.NodeProto, view: GraphEditor) -> list[str]:
    """Return the inputs of a node that are no weights."""
    return [name for name in node.input if name and view.tensor(name) is None]


def _can_join(node: onnx.NodeProto, view: GraphEditor) -> bool:
    """Return whether a node computes the same with a leading axis."""
    shape = view.shape(node.output[0])
    if len(node.output) != 1 or shape is None:
        return False
    if is_operator(node, "MatMul"):
        return _dynamic(node, view) == [node.input[0]] and len(shape) == len(
            view.shape(node.input[0]) or ()
        )
    if not operator_of(node).is_elementwise:
        return False
    return all(len(view.shape(name) or ()) == len(shape) for name in _dynamic(node, view))


def _are_alike(experts: Sequence[_Expert], view: GraphEditor) -> bool:
    """Return whether both experts have the same operators, and weights of equal shapes."""
    first, second = experts
    if len(first.nodes) != len(second.nodes) or not set(map(id, first.nodes)).isdisjoint(
        map(id, second.nodes)
    ):
        return False
    if view.shape(first.source) is None or view.shape(first.source) != view.shape(second.source):
        return False
    twins = {first.source: second.source}
    for one, two in zip(first.nodes, second.nodes, strict=True):
        if (one.op_type, one.domain, len(one.input)) != (two.op_type, two.domain, len(two.input)):
            return False
        settings = [
            sorted(entry.SerializeToString() for entry in node.attribute) for node in (one, two)
        ]
        if settings[0] != settings[1] or not _read_alike(one, two, twins, view):
            return False
        twins[one.output[0]] = two.output[0]
    return second.source not in {node.output[0] for node in first.nodes}


def _read_alike(
    one: onnx.NodeProto, two: onnx.NodeProto, twins: Mapping[str, str], view: GraphEditor
) -> bool:
    for left, right in zip(one.input, two.input, strict=True):
        first, second = view.tensor(left), view.tensor(right)
        if first is None or second is None:
            if twins.get(left, left) != right:
                return False
            continue
        kinds = [(weight.data_type, *weight.dims) for weight in (first, second)]
        if kinds[0] != kinds[1] or not (has_data(first) and has_data(second)):
            return False
    return True


def _may_wait(experts: Sequence[_Expert], at: onnx.NodeProto, view: GraphEditor) -> bool:
    """Return whether all readers of both results come after the later expert."""
    readers = [
        reader
        for expert in experts
        for reader in view.readers.get(expert.end.output[0], {}).values()
    ]
    return all(view.place(reader) > view.place(at) for reader in readers)


def _build(experts: Sequence[_Expert], made: Tape, view: GraphEditor) -> None:
    """Build one expert with a leading axis from two."""
    sources = list(dict.fromkeys(expert.source for expert in experts))
    shape = view.shape(sources[0]) or ()
    upright = [made.add("Reshape", name, made.ints([1, *shape])) for name in sources]
    first: str = made.add("Concat", *upright, axis=0) if len(upright) > 1 else upright[0]
    names = {experts[0].source: first}
    for one, two in zip(*(expert.nodes for expert in experts), strict=True):
        rank = len(view.shape(one.output[0]) or ())
        joint = copy.deepcopy(one)
        joint.input[:] = [
            names.get(left) or (left and _stack((left, right), rank, made, view))
            for left, right in zip(one.input, two.input, strict=True)
        ]
        names[one.output[0]] = joint.name = joint.output[0] = made.new_name()
        made.nodes.append(joint)
    ends = [expert.end.output[0] for expert in experts]
    parts = made.add_all(len(ends), "Split", names[ends[0]], split=[1, 1], axis=0)
    for part, name in zip(parts, ends, strict=True):
        made.add_as(name, "Reshape", part, made.ints(list(view.shape(name) or ())))


def _stack(pair: tuple[str, str], rank: int, made: Tape, view: GraphEditor) -> str:
    """Return two weights stacked along a new first axis, with the rank of the tensor that they
    meet. A scalar that both share is returned as it is."""
    tensors = [view.tensor(name) for name in pair]
    first, second = (read_array(tensor) for tensor in tensors if tensor is not None)
    if first.shape == () and np.array_equal(first, second):
        return pair[0]
    shape: Shape = (2, *(1,) * (rank - first.ndim), *first.shape)
    return made.constant(np.stack([first, second]).reshape(shape), first.dtype)
