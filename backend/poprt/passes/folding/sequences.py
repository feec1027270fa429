"""Pass that writes sequences and optional values as the tensors in them: the IPU has tensors only.

A walk over the main graph knows what is in each sequence, and the values of small constants. A Loop
becomes its turns where it makes sequences, or tensors of another size in each turn, as torch writes
an EmbeddingBag:

    Loop(3) { s = SequenceInsert(s, f(i)) }; ConcatFromSequence(s)  ->  Concat(f(0), f(1), f(2))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    NameScope,
    Tape,
    attribute,
    graph_values,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_nodes,
    iter_reads,
    make_identity,
    rename,
    replace_nodes,
)
from simipu.operators import names_where

from popef._tools.arrays import Array
from poprt.passes.folding.constants import ConstantFolding
from poprt.passes.folding.small_constants import MAX_ELEMENTS, SmallConstants
from poprt.rewrite.base import Pass, Stage, register

_NO_TENSORS = names_where(lambda entry: not entry.tensors_only)
_MAX_ROUNDS = 8
"""Maximum number of rounds. Folded values may decide positions in sequences and the ends of loops;
known models need 2."""
_MAX_NODES = 20_000
"""Maximum number of nodes that the turns of all Loops may become."""
_MAX_LISTED = 4_000_000
"""Maximum number of elements of all sequences, each of which lists its own."""
_INT32_MAX = 2**31 - 1


@register("resolve_sequences", stage=Stage.FOLDING, default=True, is_ours=True)
class ResolveSequences(Pass):
    """Write sequences and optional values as the tensors in them, and Loops that make them, or
    tensors of another size in each turn, as their turns, where the model's constants say how
    many."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Resolve what can be resolved. A sequence whose length depends on data stays."""
        for _ in range(_MAX_ROUNDS):
            before = _count(model)
            if not before:
                break
            walk = _SequenceWalk(model)
            walk.visit_all(model.graph.node)
            walk.end()
            if not walk.is_changed:
                break
            model = ConstantFolding().run(model)
            if _count(model) >= before:
                break
        return model


def _count(model: onnx.ModelProto) -> int:
    return sum(map(_may_concern, iter_nodes(model.graph)))


def _may_concern(node: onnx.NodeProto) -> bool:
    is_standard = node.domain in STANDARD_DOMAINS
    return is_standard and (node.op_type in _NO_TENSORS or node.op_type == "Loop")


class _SequenceWalk:
    """Walk over the nodes of a main graph, which writes them anew."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model, self.names = model, NameScope.of(model)
        self.nodes: list[onnx.NodeProto] = []
        self.is_changed = False
        inferred = infer_shapes(model).graph
        self._shapes = {name: value.shape for name, value in graph_values(inferred).items()}
        self._open = {node.output[0] for node in inferred.node if _makes_open_shapes(node)}
        self._constants = SmallConstants(model)
        self._lists: dict[str, list[str]] = {}
        self._empty: dict[str, int] = {}
        """Element types of the sequences that began empty."""
        self._options: dict[str, str | None] = {}
        """Tensor or sequence of each optional value; None if it is empty."""
        self._budget, self._room, self._depth = _MAX_NODES, _MAX_LISTED, 0
        self._handlers: dict[str, Callable[[onnx.NodeProto], bool]] = {
            "SequenceEmpty": self._begin,
            "SequenceConstruct": self._construct,
            "SequenceInsert": self._insert,
            "SequenceErase": self._erase,
            "SequenceAt": self._take,
            "SequenceLength": self._measure,
            "ConcatFromSequence": self._join,
            "SplitToSequence": self._split,
            "SequenceMap": self._map,
            "Optional": self._option,
            "OptionalHasElement": self._has,
            "OptionalGetElement": self._get,
            "Identity": self._same,
            "Loop": self._unroll,
            "If": self._choose,
        }

    def visit_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Write nodes, which are sorted, anew."""
        for node in nodes:
            handler = self._handlers.get(node.op_type)
            if node.domain in STANDARD_DOMAINS and handler is not None and handler(node):
                self.is_changed |= node.op_type != "Identity"
            else:
                self._keep(node)

    def end(self) -> None:
        """Put the nodes and new weights into the model."""
        if self.is_changed:
            for value in self._model.graph.output:
                self._materialise(value.name)
            replace_nodes(self._model.graph, self.nodes)
            self._model.graph.initializer.extend(self.names.added)

    def _keep(self, node: onnx.NodeProto) -> None:
        for name in iter_reads(node):
            self._materialise(name)
        self.nodes.append(node)
        self._constants.follow(node, self._shapes)

    def _number(self, node: onnx.NodeProto, place: int, default: int | None) -> int | None:
        """Return the whole number that an input has; None if it is not known."""
        if len(node.input) <= place or not node.input[place]:
            return default
        value = self._constants.find(node.input[place])
        return int(value.flat[0]) if value is not None and value.size == 1 else None

    def _hold(self, name: str, value: Array) -> str:
        """Add a weight and return its name."""
        constant = self.names.hold(name, value, value.dtype)
        self._constants.note(constant, value)
        return constant

    def _materialise(self, name: str) -> None:
        """Make a sequence again for a node that stays."""
        if name in self._options:
            inner = self._options.pop(name)
            if inner is not None:
                self._materialise(inner)
                self.nodes.append(helper.make_node("Optional", [inner], [name], name))
        if name not in self._lists:
            return
        elements = self._lists.pop(name)
        if elements:
            self.nodes.append(helper.make_node("SequenceConstruct", elements, [name], name))
        else:
            kind = self._empty.get(name, TensorProto.FLOAT)
            self.nodes.append(helper.make_node("SequenceEmpty", [], [name], name, dtype=kind))

    def _bind(self, result: str, source: str) -> None:
        """Give a tensor, a sequence or an optional value another name."""
        if not result:
            return
        if source in self._lists:
            self._lists[result] = list(self._lists[source])
            self._empty[result] = self._empty.get(source, TensorProto.FLOAT)
        elif source in self._options:
            self._options[result] = self._options[source]
        else:
            self.nodes.append(make_identity(source, result, result))
            value = self._constants.find(source)
            if value is not None:
                self._constants.note(result, value)
            if source in self._shapes:
                self._shapes.setdefault(result, self._shapes[source])

    def _begin(self, node: onnx.NodeProto) -> bool:
        self._lists[node.output[0]] = []
        self._empty[node.output[0]] = attribute(node, "dtype", TensorProto.FLOAT)
        return True

    def _construct(self, node: onnx.NodeProto) -> bool:
        self._lists[node.output[0]] = list(node.input)
        return True

    def _insert(self, node: onnx.NodeProto) -> bool:
        sequence = self._lists.get(node.input[0])
        place = self._number(node, 2, None if sequence is None else len(sequence))
        if sequence is None or place is None or not -len(sequence) <= place <= len(sequence):
            return False
        self._room -= len(sequence)
        if self._room < 0:
            return False
        elements = list(sequence)
        elements.insert(place, node.input[1])
        self._lists[node.output[0]] = elements
        return True

    def _find(self, node: onnx.NodeProto, default: int | None = None) -> int | None:
        """Return the position that a node names in its sequence; None if there is none."""
        sequence = self._lists.get(node.input[0])
        place = self._number(node, 1, default)
        if sequence is None or place is None or not -len(sequence) <= place < len(sequence):
            return None
        return place % len(sequence)

    def _erase(self, node: onnx.NodeProto) -> bool:
        place = self._find(node, -1)
        if place is None:
            return False
        sequence = self._lists[node.input[0]]
        self._lists[node.output[0]] = [*sequence[:place], *sequence[place + 1 :]]
        return True

    def _take(self, node: onnx.NodeProto) -> bool:
        place = self._find(node)
        if place is not None:
            self._bind(node.output[0], self._lists[node.input[0]][place])
            return True
        elements = self._lists.get(node.input[0], [])
        shapes = {self._shapes.get(name) for name in elements}
        if len(shapes) != 1 or None in shapes or self._number(node, 1, None) is not None:
            return False
        # The position is data: the elements become rows of a tensor.
        self._stack(stacked := self.names.take(f"{node.output[0]}/all"), elements, 0, is_new=True)
        op = self._builder(f"{node.output[0]}/taken")
        op.add_as(node.output[0], "Gather", stacked, node.input[1], axis=0)
        self.nodes += op.nodes
        return True

    def _measure(self, node: onnx.NodeProto) -> bool:
        sequence = self._lists.get(node.input[0])
        if sequence is None:
            return False
        constant = self._hold(f"{node.output[0]}/length", np.asarray(len(sequence), np.int64))
        self._bind(node.output[0], constant)
        return True

    def _builder(self, name: str) -> Tape:
        return Tape(name, names=self.names)

    def _join(self, node: onnx.NodeProto) -> bool:
        elements = self._lists.get(node.input[0])
        if not elements:
            return False
        axis = attribute(node, "axis")
        self._stack(node.output[0], elements, axis, is_new=bool(attribute(node, "new_axis", 0)))
        return True

    def _stack(self, result: str, elements: Sequence[str], axis: int, *, is_new: bool) -> None:
        """Add a Concat of tensors, along a new axis if `is_new`."""
        op = self._builder(f"{result}/joined")
        parts = [op.Unsqueeze(part, axes=[axis]) if is_new else part for part in elements]
        op.add_as(result, "Concat", *parts, axis=axis)
        self.nodes += op.nodes

    def _split(self, node: onnx.NodeProto) -> bool:
        shape = self._shapes.get(node.input[0])
        if shape is None or not shape:
            return False
        axis = attribute(node, "axis", 0) % len(shape)
        is_given = len(node.input) > 1 and bool(node.input[1])
        lengths = self._constants.find(node.input[1]) if is_given else np.asarray(1)
        if lengths is None:
            return False
        sizes = [int(size) for size in lengths.flat]
        if lengths.ndim == 0:
            step = max(1, sizes[0])
            sizes = [min(step, shape[axis] - at) for at in range(0, shape[axis], step)]
        if len(sizes) > MAX_ELEMENTS or sum(sizes) != shape[axis]:
            return False
        op = self._builder(f"{node.output[0]}/part")
        parts: list[str] = []
        at = 0
        for size in sizes:
            part = op.Slice(node.input[0], starts=[at], ends=[at + size], axes=[axis])
            if not is_given and not attribute(node, "keepdims", 1):
                part = op.add("Reshape", part, op.ints([*shape[:axis], *shape[axis + 1 :]]))
            parts.append(part)
            at += size
        self.nodes += op.nodes
        self._lists[node.output[0]] = parts
        return True

    def _map(self, node: onnx.NodeProto) -> bool:
        sequence = self._lists.get(node.input[0])
        if sequence is None:
            return False
        (body,) = iter_bodies(node)
        if len(sequence) * len(list(iter_nodes(body))) > self._budget:
            return False
        results_of_turns: list[list[str]] = [[] for _ in node.output]
        for number in range(len(sequence)):
            elements = [
                self._lists[name][number] if name in self._lists else name for name in node.input
            ]
            results = self._inline(body, elements, f"{node.name or node.output[0]}/{number}")
            for part, result in zip(results_of_turns, results, strict=True):
                part.append(result)
        self._lists.update(zip(node.output, results_of_turns, strict=True))
        return True

    def _option(self, node: onnx.NodeProto) -> bool:
        self._options[node.output[0]] = next(iter(node.input), None)
        return True

    def _has(self, node: onnx.NodeProto) -> bool:
        name = next(iter(node.input), "")
        has = self._options[name] is not None if name in self._options else bool(name)
        constant = self._hold(f"{node.output[0]}/has", np.asarray(has))
        self._bind(node.output[0], constant)
        return True

    def _get(self, node: onnx.NodeProto) -> bool:
        inner = self._options.get(node.input[0], node.input[0])
        if inner is None:
            return False
        self._bind(node.output[0], inner)
        return True

    def _same(self, node: onnx.NodeProto) -> bool:
        if node.input[0] in self._lists or node.input[0] in self._options:
            self._bind(node.output[0], node.input[0])
            return True
        value = self._constants.find(node.input[0])
        if value is not None:
            self._constants.note(node.output[0], value)
        return False

    def _inline(self, body: onnx.GraphProto, inputs: Sequence[str], prefix: str) -> list[str]:
        """Add the nodes of a body with its inputs, and return the names of its outputs."""
        graph = onnx.GraphProto()
        graph.CopyFrom(body)
        renames = dict(zip((value.name for value in body.input), inputs, strict=True))
        for tensor in body.initializer:
            if tensor.name not in renames:
                array = np.asarray(numpy_helper.to_array(tensor))
                renames[tensor.name] = self._hold(f"{prefix}/{tensor.name}", array)
        for name in dict.fromkeys(iter_defined(onnx.GraphProto(node=graph.node))):
            if name and name not in renames:
                renames[name] = self.names.take(f"{prefix}/{name}")
        rename(graph, renames)
        for node in graph.node:
            node.name = (
                f"{prefix}/{node.name}" if node.name else next(filter(None, node.output), "")
            )
        self._budget -= len(graph.node) + 1
        self._depth += 1
        self.visit_all(graph.node)
        self._depth -= 1
        return [renames.get(value.name, value.name) for value in body.output]

    def _choose(self, node: onnx.NodeProto) -> bool:
        condition = self._constants.find(node.input[0])
        if condition is None or condition.size != 1:
            return self._concerns(node) and self._part(node)
        body = attribute(node, "then_branch" if condition.flat[0] else "else_branch")
        for result, source in zip(
            node.output, self._inline(body, [], node.name or node.output[0]), strict=True
        ):
            self._bind(result, source)
        return True

    def _concerns(self, node: onnx.NodeProto) -> bool:
        """Return whether a node with bodies reads or makes sequences or optional values."""
        if any(name in self._lists or name in self._options for name in iter_reads(node)):
            return True
        inner = (inner_node for body in iter_bodies(node) for inner_node in iter_nodes(body))
        return any(
            inner_node.domain in STANDARD_DOMAINS and inner_node.op_type in _NO_TENSORS
            for inner_node in inner
        )

    def _part(self, node: onnx.NodeProto) -> bool:
        """Write an If so that its branches give the elements of sequences of one length."""
        lists, options, nodes = dict(self._lists), dict(self._options), self.nodes
        branches_made: dict[str, tuple[list[onnx.NodeProto], list[list[str]]]] = {}
        are_lists: list[list[bool]] = []
        for name in ("then_branch", "else_branch"):
            self.nodes = []
            outputs = self._inline(attribute(node, name), [], f"{node.output[0]}/{name}")
            has_options = any(output in self._options for output in outputs)
            branches_made[name] = (
                self.nodes,
                [self._lists.get(output, [output]) for output in outputs],
            )
            are_lists.append([output in self._lists for output in outputs])
            self.nodes, self._lists, self._options = nodes, dict(lists), dict(options)
            if has_options:
                return False
        one, other = (parts for _, parts in branches_made.values())
        if are_lists[0] != are_lists[1] or list(map(len, one)) != list(map(len, other)):
            return False
        branches: dict[str, Any] = {}
        for name, (inner, parts) in branches_made.items():
            flat = [element for part in parts for element in part]
            names_inside = [
                self.names.take(f"{node.output[0]}/{name}/{at}") for at, _ in enumerate(flat)
            ]
            inner += [
                make_identity(old, new, new) for old, new in zip(flat, names_inside, strict=True)
            ]
            results = [onnx.ValueInfoProto(name=new) for new in names_inside]
            branches[name] = helper.make_graph(inner, name, [], results)
        all_names: list[str] = []
        for name, part, is_list in zip(node.output, one, are_lists[0], strict=True):
            names = [name]
            if is_list:
                names = [self.names.take(f"{name}/{at}") for at, _ in enumerate(part)]
                self._lists[name] = names
            all_names += names
        self.nodes.append(helper.make_node("If", node.input, all_names, node.name, **branches))
        return True

    def _unroll(self, node: onnx.NodeProto) -> bool:
        (body,) = iter_bodies(node)
        is_open = self._depth > 0 or node.output[0] in self._open
        if not (is_open or self._concerns(node)):
            return False
        limit = self._number(node, 0, _INT32_MAX)
        going = self._number(node, 1, 1)
        if limit is None or going is None or (limit >= _INT32_MAX and not node.input[1:2]):
            return False
        marks = len(self.nodes), len(self.names.added)
        lists, options = dict(self._lists), dict(self._options)
        states, count = list(node.input[2:]), len(body.input) - 2
        scanned: list[list[str]] = [[] for _ in body.output[1 + count :]]
        turn = 0
        while turn < limit and going and self._budget > 0:
            prefix = f"{node.name or node.output[0]}/{turn}"
            number = self._hold(f"{prefix}/turn", np.asarray(turn, np.int64))
            goes = self._hold(f"{prefix}/goes", np.asarray(True))
            first, *results = self._inline(body, [number, goes, *states], prefix)
            value = self._constants.find(first)
            if value is None:
                break
            going, states = bool(value.flat[0]), results[:count]
            for part, result in zip(scanned, results[count:], strict=True):
                part.append(result)
            turn += 1
        if (going and turn < limit) or (not turn and scanned):
            del self.nodes[marks[0] :], self.names.added[marks[1] :]
            self._lists, self._options = lists, options
            return False
        for result, source in zip(node.output, states, strict=False):
            self._bind(result, source)
        for result, parts in zip(node.output[count:], scanned, strict=True):
            if result:
                self._stack(result, parts, 0, is_new=True)
        return True


def _makes_open_shapes(node: onnx.NodeProto) -> bool:
    """Return whether a Loop's body makes tensors whose shapes are not known."""
    return node.op_type == "Loop" and any(map(_is_open, iter_bodies(node)))


def _is_open(body: onnx.GraphProto) -> bool:
    values = graph_values(body)
    results = (name for node in body.node for name in node.output if name)
    return any(name not in values for name in results) or any(map(_makes_open_shapes, body.node))
