"""Base class of passes that search for patterns of several nodes.

A graph's tensors are kept in dictionaries that are built once and updated when nodes are replaced.
The passes define the patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    FLOAT_TYPES,
    Chain,
    drop_weights,
    find_opset,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_nodes,
    iter_reads,
    replace_nodes,
    used_names,
)
from onnxgraph.edit import set_attribute
from onnxgraph.nodes import STANDARD_DOMAINS
from onnxgraph.weights import has_data, read_array
from simipu.operators import CHIP_DOMAIN

from poprt.rewrite.base import Pass
from poprt.rewrite.views import FreshNames, GraphView, Shape, constants_of, types_of

_CHIP_VERSION = 1
"""Version of the chip's domain: PopART's own opset has no other."""


@dataclass(slots=True)
class Names(FreshNames):
    """Names taken, added and no longer read in a whole model; weights can be found by their
    values."""

    held: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)
    """Names of weights that several places share, by dtype, shape and bytes."""
    derived: dict[tuple[Hashable, ...], str] = field(default_factory=dict)
    """Names of weights made from others, by the kind of change and the others' names."""

    def hold(self, wanted: str, value: npt.ArrayLike, dtype: npt.DTypeLike = None) -> str:
        """Add a weight and return its name."""
        name = self.take(wanted)
        self.added.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def hold_unread(self, wanted: str, data_type: int, dims: Sequence[int]) -> str:
        """Add a weight without data and return its name. Such weights are made from others without
        data: a profile needs shapes only."""
        name = self.take(wanted)
        self.added.append(TensorProto(name=name, data_type=data_type, dims=dims))
        return name

    def hold_once(self, wanted: str, value: npt.ArrayLike, dtype: npt.DTypeLike = None) -> str:
        """Add a weight, unless there is one with equal values, and return its name."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.held:
            self.held[key] = self.hold(wanted, array)
        return self.held[key]


@dataclass(slots=True)
class Making(Chain):
    """Nodes that replace others. Their intermediate tensors have unique names."""

    names: Names = field(kw_only=True)

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Add a weight and return its name."""
        return self.names.hold(f"{self.prefix}/constant", value, dtype)

    def new_name(self) -> str:
        """Return an unused name."""
        return self.names.take(f"{self.prefix}/{len(self.nodes)}")

    def slice(self, source: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Add a Slice along one axis in the form of the model's opset and return its name."""
        if self.names.opset < _SLICE_TAKES_TENSORS:
            return self.add("Slice", source, starts=[start], ends=[end], axes=[axis])
        return self.add("Slice", source, *map(self.shape, ([start], [end], [axis], [step])))

    def pad(self, source: str, rank: int, axis: int, added: int, value: float, dtype: npt.DTypeLike) -> str:
        """Add a Pad and return its name. It appends elements of `value` to a tensor of that rank,
        at the end of one axis, which is negative."""
        pads = [0] * (2 * rank)
        pads[axis] = added
        if self.names.opset < _PAD_TAKES_TENSORS:
            return self.add("Pad", source, pads=pads, value=float(value))
        return self.add("Pad", source, self.shape(pads), self.constant(value, dtype))

    def split_as(self, results: Sequence[str], source: str, sizes: Sequence[int], axis: int) -> None:
        """Add a Split of a tensor along one axis, in the form of the model's opset."""
        node = helper.make_node("Split", [source], results, name=f"{results[0]}/Split", axis=axis)
        if self.names.opset >= _SPLIT_TAKES_SIZES:
            node.input.append(self.shape(sizes))
        else:
            set_attribute(node, "split", list(sizes))
        self.nodes.append(node)

    def chip(self, result: str, op_type: str, *inputs: str, **attributes: Any) -> None:
        """Add an operator of the chip's own compiler."""
        self.add_as(result, op_type, *inputs, domain=CHIP_DOMAIN, **attributes)


_SLICE_TAKES_TENSORS, _PAD_TAKES_TENSORS, _SPLIT_TAKES_SIZES = 10, 11, 13
"""Opsets from which the arguments of Slice, Pad and Split are inputs, not attributes."""


@dataclass(slots=True, kw_only=True)
class Scope(GraphView):
    """View of a graph while its nodes are replaced. It includes the tensors of the graphs around
    it, but only the graph's own nodes."""

    names: Names
    nodes: list[onnx.NodeProto]
    outputs: frozenset[str]
    places: dict[int, int] = field(default_factory=dict)
    readers: dict[str, dict[int, onnx.NodeProto]] = field(default_factory=dict)
    inserted: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)
    marks: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """Nodes that a pass has stored under a key of its own."""
    gone: set[int] = field(default_factory=set)
    """Identities of removed nodes. `nodes` and `inserted` keep all nodes alive, so that identities
    stay unique."""

    @classmethod
    def of(cls, names: Names, graph: onnx.GraphProto, known: onnx.GraphProto, outer: Scope | None) -> Scope:
        """Return the scope of a graph, with the types inferred for it."""
        outputs = frozenset(value.name for value in graph.output)
        return cls(
            outer, types_of(known), constants_of(graph), names=names, nodes=list(graph.node), outputs=outputs
        )

    def look_at_nodes(self) -> None:
        """Index makers and readers. Readers may be inside bodies, so that bodies are processed
        first."""
        for place, node in enumerate(self.nodes):
            self.places[id(node)] = place
            self._add(node)

    def _add(self, node: onnx.NodeProto) -> None:
        for name in iter_reads(node):
            self.readers.setdefault(name, {})[id(node)] = node
        self.makers.update((name, node) for name in node.output if name)

    # Queries.

    def maker(self, name: str, *op_types: str, domain: str = "") -> onnx.NodeProto | None:
        """Return the node of the graph that makes a tensor, if it is one of these operators."""
        node = self.makers.get(name)
        return node if node is not None and is_operator(node, *op_types, domain=domain) else None

    def reader(self, name: str, *op_types: str, domain: str = "") -> onnx.NodeProto | None:
        """Return the only node that reads a tensor, if it is one of these operators and the tensor
        is no output."""
        readers = self.readers.get(name, {})
        if len(readers) != 1 or name in self.outputs:
            return None
        (node,) = readers.values()
        return node if is_operator(node, *op_types, domain=domain) else None

    def is_read_once(self, name: str) -> bool:
        """Return whether exactly one node reads a tensor, which is no output."""
        return len(self.readers.get(name, {})) == 1 and name not in self.outputs

    def place(self, node: onnx.NodeProto) -> int:
        """Return the place of a node in the order of the graph."""
        return self.places[id(node)]

    def is_before(self, name: str, node: onnx.NodeProto) -> bool:
        """Return whether a tensor is available when a node runs."""
        maker = self.makers.get(name)
        return maker is None or self.place(maker) < self.place(node)

    def is_first(self, source: str, node: onnx.NodeProto) -> bool:
        """Return whether `node` is the first for which this is called with `source`, so that a pass
        looks at its readers once."""
        return self.marks.setdefault(source, node) is node

    # Changes of nodes.

    def derive(self, how: Hashable, names: Sequence[str], make: Callable[[], str]) -> str:
        """Return the name of the weight that `make` makes from weights. It is made once, so that
        layers which share weights share the result. Weights of bodies are not shared, because
        different weights may have one name."""
        homes = [self.home(name) for name in names]
        if any(home is not None and home.outer is not None for home in homes):
            return make()
        key = (how, *names)
        if key not in self.names.derived:
            self.names.derived[key] = make()
        return self.names.derived[key]

    def start(self, node: onnx.NodeProto, what: str) -> Making:
        """Return an empty chain that replaces `node`; `what` makes its names distinct."""
        return Making(f"{next(filter(None, node.output))}/{what}", names=self.names)

    def replace(self, node: onnx.NodeProto, made: Sequence[onnx.NodeProto]) -> None:
        """Replace a node by others; the last of them takes its name."""
        if node.name:
            made[-1].name = node.name
        self.rewrite(node, made, [node])

    def rewrite(
        self, at: onnx.NodeProto, made: Sequence[onnx.NodeProto], gone: Iterable[onnx.NodeProto]
    ) -> None:
        """Insert nodes before the node `at` that make the results of the nodes `gone`. Nodes that
        only these have read are removed, too."""
        place = self.place(at)
        for node in gone:
            self._remove(node)
        self.inserted.setdefault(place, []).extend(made)
        for node in made:
            self.places[id(node)] = place
            self._add(node)
        for node in gone:
            self._sweep(iter_reads(node))

    def _remove(self, node: onnx.NodeProto) -> None:
        self.gone.add(id(node))
        for name in iter_reads(node):
            self.readers.get(name, {}).pop(id(node), None)
        for name in node.output:
            self.makers.pop(name, None)
        self.names.left.update(iter_reads(node))

    def _sweep(self, names: Iterable[str]) -> None:
        waiting = list(names)
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is None or any(self.readers.get(name) or name in self.outputs for name in node.output):
                continue
            self._remove(node)
            waiting += iter_reads(node)

    def ordered(self) -> list[onnx.NodeProto] | None:
        """Return the current nodes, or None if nothing has changed."""
        if not self.inserted and not self.gone:
            return None
        nodes: list[onnx.NodeProto] = []
        for place, node in enumerate(self.nodes):
            nodes += [*self.inserted.get(place, ()), node]
        return [node for node in nodes if id(node) not in self.gone]


def is_operator(node: onnx.NodeProto, *op_types: str, domain: str = "") -> bool:
    """Return whether a node is one of these operators of a domain."""
    if node.op_type not in op_types:
        return False
    return node.domain == domain if domain else node.domain in STANDARD_DOMAINS


def is_movable(tensor: TensorProto | None) -> bool:
    """Return whether a weight can be replaced by one made from it. A weight without data gives one
    without data."""
    return tensor is not None and tensor.data_type in FLOAT_TYPES


def join_weights(names: list[str], axis: int, made: Making, scope: Scope) -> str:
    """Return the name of weights concatenated: one weight, or a Concat if some are no weights."""
    held = {tensor.name: tensor for tensor in scope.names.added}
    tensors = [found for name in names if (found := scope.tensor(name) or held.get(name)) is not None]
    if len(tensors) < len(names) or not all(map(is_movable, tensors)):
        return made.add("Concat", *names, axis=axis)
    return scope.derive(("joined", axis), names, lambda: _join(tensors, axis, made))


def _join(tensors: Sequence[TensorProto], axis: int, made: Making) -> str:
    if not all(map(has_data, tensors)):
        dims = list(tensors[0].dims)
        dims[axis] = sum(tensor.dims[axis] for tensor in tensors)
        return made.names.hold_unread(f"{made.prefix}/constant", tensors[0].data_type, dims)
    values = [read_array(tensor) for tensor in tensors]
    return made.constant(np.concatenate(values, axis), values[0].dtype)


class PatternPass(Pass):
    """Base class of passes that visit nodes, including those in bodies, with their neighbours, and
    may replace several at once.

    It takes time linear in the number of nodes if `look` goes a bounded number of steps from each.
    """

    op_types: ClassVar[frozenset[str]]
    """Operators at which the pass searches for a pattern. A model without any of them does not
    change."""
    domain: ClassVar[str] = ""

    def look(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Search for the pattern at a node and replace it. Subclasses define it."""
        raise NotImplementedError

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the patterns, and remove weights that only removed nodes have read."""
        if not any(self._is_start(node) for node in iter_nodes(model.graph)):
            return model
        names = Names(find_opset(model, 1), set(iter_defined(model.graph)))
        self._visit(model.graph, infer_shapes(model).graph, names, None)
        model.graph.initializer.extend(names.added)
        unread = names.left - used_names(model.graph) - {value.name for value in model.graph.input}
        if unread:
            _drop(model.graph, unread)
        declare_chip(model)
        return model

    def _is_start(self, node: onnx.NodeProto) -> bool:
        return is_operator(node, *self.op_types, domain=self.domain)

    def _visit(
        self, graph: onnx.GraphProto, known: onnx.GraphProto, names: Names, outer: Scope | None
    ) -> None:
        scope = Scope.of(names, graph, known, outer)
        for node, inferred in zip(graph.node, known.node, strict=True):
            for body, known_body in zip(iter_bodies(node), iter_bodies(inferred), strict=True):
                self._visit(body, known_body, names, scope)
        scope.look_at_nodes()
        for node in scope.nodes:
            if self._is_start(node) and id(node) not in scope.gone:
                self.look(node, scope)
        ordered = scope.ordered()
        if ordered is not None:
            replace_nodes(graph, ordered)


def _drop(graph: onnx.GraphProto, unread: set[str]) -> None:
    drop_weights(graph, {tensor.name for tensor in graph.initializer} - unread)
    for node in graph.node:
        for body in iter_bodies(node):
            _drop(body, unread)


def declare_chip(model: onnx.ModelProto) -> None:
    """Declare the chip's domain in the model, if any node uses it."""
    known = any(entry.domain == CHIP_DOMAIN for entry in model.opset_import)
    if not known and any(node.domain == CHIP_DOMAIN for node in iter_nodes(model.graph)):
        model.opset_import.append(helper.make_opsetid(CHIP_DOMAIN, _CHIP_VERSION))
