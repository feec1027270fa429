"""Base classes of passes that fold, remove and fuse nodes of a graph.

A scope has the types, constants, makers and readers of a graph's tensors, including those of the
graphs around it. It records the changes to the graph's nodes. Names do not change until the whole
graph is processed; then all change at once. The passes define the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    attribute,
    find_opset,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_nodes,
    iter_reads,
    rename,
    replace_nodes,
)
from onnxgraph.edit import drop_initializers
from onnxgraph.nodes import STANDARD_DOMAINS

from popef._tools.arrays import Array
from poprt.rewrite.base import Pass
from poprt.rewrite.views import AXES_ARE_INPUTS, GraphView, constants_of, types_of

_LISTS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
"""Attributes in which a Constant may hold numbers other than a tensor, with the dtype of each."""


def constant_of(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant of numbers; None for other nodes."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or node.domain not in STANDARD_DOMAINS:
        return None
    held = node.attribute[0]
    if held.name == "value":
        return held.t
    if held.name not in _LISTS:
        return None
    return numpy_helper.from_array(np.asarray(helper.get_attribute_value(held), _LISTS[held.name]))


class Model:
    """Data that all scopes of a model share; computed on first use."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.opset = find_opset(model, 1)
        self._graph = model.graph

    @cached_property
    def taken(self) -> set[str]:
        """Names that the model uses."""
        return set(iter_defined(self._graph))

    @cached_property
    def doubled(self) -> frozenset[str]:
        """Names that are defined twice: a name inside a body hides the same name outside."""
        if not any(any(iter_bodies(node)) for node in self._graph.node):
            return frozenset()
        counts = Counter(iter_defined(self._graph))
        return frozenset(name for name, count in counts.items() if count > 1)

    def take(self, wanted: str) -> str:
        """Return an unused name, and mark it as used."""
        found, number = wanted, 0
        while found in self.taken:
            number += 1
            found = f"{wanted}_{number}"
        self.taken.add(found)
        return found


@dataclass(slots=True, kw_only=True)
class Scope(GraphView):
    """View of one graph, inside the graphs around it, with the changes to be made."""

    model: Model
    graph: onnx.GraphProto
    outputs: frozenset[str] = frozenset()
    uses: Counter[str] = field(default_factory=Counter)
    """Number of readers of each tensor: nodes, including those in bodies, and outputs."""
    _renames: dict[str, str] = field(default_factory=dict)
    _dropped: set[int] = field(default_factory=set)
    """Identities of removed nodes: protobuf returns the same object while a reference to it
    exists."""
    _held: list[onnx.NodeProto] = field(default_factory=list)
    _after: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)
    _released: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, model: Model, graph: onnx.GraphProto, known: onnx.GraphProto | None, outer: Scope | None
    ) -> Scope:
        """Return the scope of a graph, with the types inferred for it, if any."""
        types = types_of(graph if known is None else known)
        outputs = frozenset(each.name for each in graph.output)
        return cls(outer, types, constants_of(graph, constant_of), model=model, graph=graph, outputs=outputs)

    def look(self) -> None:
        """Index makers and readers. The bodies must have been changed before."""
        self._held = list(self.graph.node)
        self.makers = {name: node for node in self._held for name in node.output if name}
        self.uses = Counter()
        for node in self._held:
            for name in iter_reads(node) if node.attribute else filter(None, node.input):
                self.uses[name] += 1
        self.uses.update(value.name for value in self.graph.output)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Return an iterator over the nodes that are not removed, in order."""
        return (node for node in self._held if id(node) not in self._dropped)

    def axes(self, node: onnx.NodeProto, rank: int | None) -> list[int] | None:
        """Return the axes of a Squeeze or Unsqueeze, counted from the front of `rank`. Return None
        if they are not known or not given."""
        if self.model.opset >= AXES_ARE_INPUTS:
            found = self.numbers(node.input[1]) if len(node.input) > 1 else None
        else:
            found = attribute(node, "axes")
        if found is None or (rank is None and min(found, default=0) < 0):
            return None
        return [axis + (rank or 0) if axis < 0 else axis for axis in found]

    # Makers and readers.

    def resolve(self, name: str) -> str:
        """Return the current name of a tensor."""
        path = []
        while name in self._renames:
            path.append(name)
            name = self._renames[name]
        for each in path:
            self._renames[each] = name
        return name

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node of this graph that makes a tensor."""
        return self.makers.get(self.resolve(name))

    def only_reader_of(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor, if the tensor has one reader and is no output."""
        found = self.resolve(name)
        return self.makers.get(found) if self.uses[found] == 1 and found not in self.outputs else None

    def is_read(self, node: onnx.NodeProto, index: int = 0) -> bool:
        """Return whether anything reads that result of a node."""
        return len(node.output) > index and self.uses[self.resolve(node.output[index])] > 0

    # Changes of nodes.

    def bypass(self, node: onnx.NodeProto, source: str) -> bool:
        """Remove `node` and let all readers of its first result read `source`. Return whether that
        is possible.

        A graph's output keeps its name: in that case the node that makes `source` makes it under
        that name.
        """
        made, source = node.output[0], self.resolve(source)
        if {made, source} & self.model.doubled:
            return False
        if made not in self.outputs:
            self._drop(node)
            self.uses[source] += self.uses.pop(made, 0)
            self._renames[made] = source
            self._release_all(node)
            return True
        maker = self.makers.get(source)
        if maker is None or source in self.outputs or source in self.constants:
            return False
        self._drop(node)
        self.uses[made] += self.uses.pop(source, 0)
        self._renames[source] = made
        self.makers[made] = maker
        self.types.setdefault(made, self.types.get(source, onnx.TypeProto.Tensor()))
        self._release_all(node)
        return True

    def merge(self, node: onnx.NodeProto, first: onnx.NodeProto) -> bool:
        """Remove `node` and let all readers of its results read those of `first`, an equal node
        before it. Return whether that is possible."""
        pairs = [(a, self.resolve(b)) for a, b in zip(node.output, first.output, strict=True) if a]
        if any(
            {made, kept} & self.model.doubled or (made in self.outputs and kept in self.outputs)
            for made, kept in pairs
        ):
            return False
        self._drop(node)
        for made, kept in pairs:
            gone, stays = (kept, made) if made in self.outputs else (made, kept)
            self.uses[stays] += self.uses.pop(gone, 0)
            self._renames[gone] = stays
            self.makers[stays] = first
        self._release_all(node)
        return True

    def drop_if_unread(self, node: onnx.NodeProto) -> None:
        """Remove a node without readers, and all nodes that only it reads."""
        if id(node) not in self._dropped and not self._is_wanted(node):
            self._drop(node)
            self._release_all(node)

    def read_instead(self, node: onnx.NodeProto, index: int, source: str) -> None:
        """Set an input of `node` to `source`. Tensors without a reader after that are removed."""
        before = node.input[index]
        self.uses[self.resolve(source)] += 1
        node.input[index] = source
        self.release(before)

    def hold(self, wanted: str, values: Array) -> str:
        """Add an initializer and return its name."""
        name = self.model.take(wanted)
        tensor = numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)
        self.graph.initializer.append(tensor)
        self.constants[name] = tensor
        return name

    def put_after(self, node: onnx.NodeProto, made: onnx.NodeProto) -> None:
        """Insert a new node directly behind another."""
        self._after.setdefault(id(node), []).append(made)
        self._held.append(made)  # keeps its identity; visited last
        self.makers.update((name, made) for name in made.output)
        self.uses.update(filter(None, made.input))

    def release(self, name: str) -> None:
        """Count one reader of a tensor less. If none is left, remove its maker, and so on."""
        waiting = [name] if name else []
        while waiting:
            name = self.resolve(waiting.pop())
            self.uses[name] -= 1
            if self.uses[name] > 0:
                continue
            self._released.add(name)
            node = self.makers.get(name)
            if node is not None and id(node) not in self._dropped and not self._is_wanted(node):
                self._drop(node)
                waiting += iter_reads(node)

    def _release_all(self, node: onnx.NodeProto) -> None:
        for name in iter_reads(node):
            self.release(name)

    def _is_wanted(self, node: onnx.NodeProto) -> bool:
        return any(self.uses[self.resolve(name)] > 0 for name in node.output if name)

    def _drop(self, node: onnx.NodeProto) -> None:
        self._dropped.add(id(node))

    def finish(self) -> None:
        """Apply the recorded changes to the graph."""
        if self._dropped or self._after:
            added = {id(each) for nodes in self._after.values() for each in nodes}
            kept: list[onnx.NodeProto] = []
            for node in self._held:
                if id(node) not in added:
                    kept += [node, *self._after.get(id(node), [])]
            replace_nodes(self.graph, (each for each in kept if id(each) not in self._dropped))
        rename(self.graph, {name: self.resolve(name) for name in list(self._renames)})
        given = {each.name for each in self.graph.input}
        drop_initializers(
            self.graph, {name for name in self._released if self.uses[name] <= 0} - given - self.outputs
        )


class ScopedPass(Pass):
    """Base class of passes that process one graph after the other, bodies first."""

    op_types: ClassVar[frozenset[str]]
    """Standard operators that the pass changes. A model without any of them does not change."""
    needs_shapes: ClassVar[bool] = True
    """Flag that the pass needs types and shapes of results."""

    def change(self, scope: Scope) -> None:
        """Change a graph. Subclasses define it."""
        raise NotImplementedError

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the pass. Types are inferred only if there are nodes to change."""
        if any(self.is_ours(node) for node in iter_nodes(model.graph)):
            known = infer_shapes(model).graph if self.needs_shapes else None
            shared = Model(model)
            self._visit(shared, model.graph, known, None)
        return model

    def is_ours(self, node: onnx.NodeProto) -> bool:
        """Return whether the pass may change a node."""
        return node.op_type in self.op_types and node.domain in STANDARD_DOMAINS

    def _visit(
        self, shared: Model, graph: onnx.GraphProto, known: onnx.GraphProto | None, outer: Scope | None
    ) -> None:
        scope = Scope.of(shared, graph, known, outer)
        for place, node in enumerate(graph.node):
            if not node.attribute:
                continue
            bodies = list(iter_bodies(node))
            inferred: Sequence[onnx.GraphProto | None] = [None] * len(bodies)
            if known is not None and bodies:
                inferred = list(iter_bodies(known.node[place]))
            for body, known_body in zip(bodies, inferred, strict=True):
                self._visit(shared, body, known_body, scope)
        scope.look()
        self.change(scope)
        scope.finish()


class NodeBypass(ScopedPass):
    """Base class of passes that remove nodes whose result equals one of their inputs."""

    def passes_on(self, node: onnx.NodeProto, scope: Scope) -> str | None:
        """Return the input that a node returns unchanged, or None if it computes something.
        Subclasses define it."""
        raise NotImplementedError

    def change(self, scope: Scope) -> None:
        """Bypass the nodes in order, so that chains are removed, too."""
        for node in scope.nodes():
            if self.is_ours(node) and node.input and not any(scope.is_read(node, i) for i in _beside(node)):
                source = self.passes_on(node, scope)
                if source:
                    scope.bypass(node, source)


def _beside(node: onnx.NodeProto) -> Iterable[int]:
    """Return the indices of the results after the first."""
    return [i for i, name in enumerate(node.output) if name and i > 0]
