"""Editor of one graph: it knows who makes and who reads each tensor, and keeps that up to date
while nodes are replaced, bypassed and removed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxgraph.edit import rename_in_node, replace_nodes
from onnxgraph.names import NameScope
from onnxgraph.nodes import CHIP_DOMAIN, FLOAT_TYPES, iter_reads
from onnxgraph.tape import Tape
from onnxgraph.views import GraphView, is_operator
from onnxgraph.weights import has_data, read_array
from popef._tools.arrays import Array


class GraphEditor(GraphView):
    """View of a graph whose nodes change.

    It includes the tensors of the graphs around it, but only the graph's own nodes. Bodies have to
    be changed before, since their readers count as readers of the node around them. The graph's
    list of nodes changes in `finish`.
    """

    __slots__ = ("_after", "_before", "_nodes", "_places", "gone", "marks", "outputs", "readers")

    def __init__(
        self,
        names: NameScope,
        graph: onnx.GraphProto,
        known: onnx.GraphProto | None = None,
        outer: GraphView | None = None,
    ) -> None:
        super().__init__(names, graph, known, outer)
        self.outputs = frozenset(value.name for value in graph.output)
        self.readers: dict[str, dict[int, onnx.NodeProto]] = {}
        """Nodes that read each tensor, themselves or in a body."""
        self.marks: dict[str, onnx.NodeProto] = {}
        """Nodes that a pass has stored under a key of its own."""
        self.gone: set[int] = set()
        """Identities of removed nodes. The lists of nodes keep all nodes alive, so that identities
        stay unique."""
        self._nodes: list[onnx.NodeProto] = []
        self._places: dict[int, int] = {}
        self._before: dict[int, list[onnx.NodeProto]] = {}
        self._after: dict[int, list[onnx.NodeProto]] = {}

    def index(self) -> None:
        """Index places and readers."""
        self._nodes = list(self.graph.node)
        self._places = {id(node): place for place, node in enumerate(self._nodes)}
        self._read(self._nodes)

    def _read(self, nodes: Iterable[onnx.NodeProto]) -> None:
        readers = self.readers
        for node in nodes:
            for name in iter_reads(node) if node.attribute else filter(None, node.input):
                if name in readers:
                    readers[name][id(node)] = node
                else:
                    readers[name] = {id(node): node}

    def _add(self, nodes: Sequence[onnx.NodeProto], place: int) -> None:
        for node in nodes:
            self._places[id(node)] = place
            self.makers.update((name, node) for name in node.output if name)
        self._read(nodes)

    # Queries.

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that the graph has had from the beginning and that are not removed, in
        order."""
        return (node for node in self._nodes if id(node) not in self.gone)

    def maker(self, name: str, *op_types: str, domain: str = "") -> onnx.NodeProto | None:
        """Return the node of this graph that makes a tensor, if it is one of these operators; any
        if none are given."""
        node = self.makers.get(name)
        if node is None or not op_types or is_operator(node, *op_types, domain=domain):
            return node
        return None

    def reader(self, name: str, *op_types: str, domain: str = "") -> onnx.NodeProto | None:
        """Return the only node that reads a tensor, if it is one of these operators and the tensor
        is no output."""
        if not self.is_read_once(name):
            return None
        (node,) = self.readers[name].values()
        return node if is_operator(node, *op_types, domain=domain) else None

    def is_read_once(self, name: str) -> bool:
        """Return whether exactly one node reads a tensor, which is no output."""
        return len(self.readers.get(name, ())) == 1 and name not in self.outputs

    def is_read(self, name: str) -> bool:
        """Return whether a tensor has a reader or is an output."""
        return bool(self.readers.get(name)) or name in self.outputs

    def count_reads(self, name: str) -> int:
        """Return how often nodes and outputs read a tensor. A node may read it several times."""
        reads = (
            read_name
            for node in self.readers.get(name, {}).values()
            for read_name in iter_reads(node)
        )
        return sum(read == name for read in reads) + (name in self.outputs)

    def private_maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor, if the tensor is read only once and is no output."""
        return (
            self.makers.get(name)
            if self.is_read_once(name) and self.count_reads(name) == 1
            else None
        )

    def place(self, node: onnx.NodeProto) -> int:
        """Return the place of a node in the order of the graph."""
        return self._places[id(node)]

    def is_before(self, name: str, node: onnx.NodeProto) -> bool:
        """Return whether a tensor is available when a node runs."""
        maker = self.makers.get(name)
        return maker is None or self.place(maker) < self.place(node)

    def is_first(self, source: str, node: onnx.NodeProto) -> bool:
        """Return whether `node` is the first for which this is called with `source`, so that a pass
        looks at its readers once."""
        return self.marks.setdefault(source, node) is node

    # Weights.

    def hold(self, wanted: str, values: Array) -> str:
        """Add a weight to this graph and return its name."""
        name = self.names.take(wanted, is_numbered=True)
        tensor = numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)
        self.graph.initializer.append(tensor)
        self.constants[name] = tensor
        return name

    def derive(self, how: Hashable, sources: Sequence[str], make: Callable[[], str]) -> str:
        """Return the name of the weight that `make` makes from weights. It is made once, so that
        layers which share weights share the result. Weights of bodies are not shared, because
        different weights may have one name."""
        homes = [self.home(name) for name in sources]
        if any(home is not None and home.outer is not None for home in homes):
            return make()
        return self.names.share((how, *sources), make)

    # Changes of nodes.

    def start(self, node: onnx.NodeProto, what: str) -> Tape:
        """Return a tape for nodes that replace `node`; `what` makes their names distinct."""
        return Tape(f"{next(filter(None, node.output))}/{what}", self.opset, self.names)

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
        self._before.setdefault(place, []).extend(made)
        self.names.uses_chip |= any(node.domain == CHIP_DOMAIN for node in made)
        self._add(made, place)
        for node in gone:
            self._sweep(iter_reads(node))

    def put_after(self, node: onnx.NodeProto, made: onnx.NodeProto) -> None:
        """Insert a new node directly behind another, whose results may have changed."""
        place = self.place(node)
        self._after.setdefault(place, []).append(made)
        self._add((node, made), place)

    def bypass(self, node: onnx.NodeProto, source: str) -> bool:
        """Remove `node` and let all readers of its first result read `source`. Return whether that
        is possible.

        A graph's output keeps its name: in that case the node that makes `source` makes it under
        that name.
        """
        result, maker = node.output[0], self.makers.get(source)
        if {result, source} & self.names.doubled:
            return False
        if result in self.outputs and (
            maker is None or source in self.outputs or source in self.constants
        ):
            return False
        self._remove(node)
        self._unite(result, source)
        self._sweep(iter_reads(node))
        return True

    def merge(self, node: onnx.NodeProto, first: onnx.NodeProto) -> bool:
        """Remove `node` and let all readers of its results read those of `first`, an equal node
        before it. Return whether that is possible."""
        pairs = [
            (result, first_result)
            for result, first_result in zip(node.output, first.output, strict=True)
            if result
        ]
        if any({*pair} & self.names.doubled or {*pair} <= self.outputs for pair in pairs):
            return False
        self._remove(node)
        for result, first_result in pairs:
            self._unite(result, first_result)
        self._sweep(iter_reads(node))
        return True

    def _unite(self, made: str, kept: str) -> None:
        """Give two equal tensors, the first of which no node makes any more, one name."""
        if made not in self.outputs:
            self._rename_in_readers(made, kept)
            if made in self.types and kept in self.makers:
                self.types.setdefault(kept, self.types[made])
            return
        maker = self.makers.pop(kept)
        self._rename_in_readers(kept, made)
        rename_in_node(maker, {kept: made})
        self.makers[made] = maker
        self.types.setdefault(made, self.types.get(kept, onnx.TypeProto.Tensor()))

    def _rename_in_readers(self, old: str, new: str) -> None:
        readers = self.readers.pop(old, {})
        for node in readers.values():
            rename_in_node(node, {old: new})
        self.readers.setdefault(new, {}).update(readers)

    def set_inputs(self, node: onnx.NodeProto, inputs: Iterable[str]) -> None:
        """Set the inputs of `node`. Nodes that are without a reader after that are removed.

        A node that is removed already keeps its inputs, and the new ones count as left unread: a
        bypass removes the node before it too, if nothing reads the result.
        """
        if id(node) in self.gone:
            for name in filter(None, inputs):
                self._leave(name)
            return
        before = set(iter_reads(node))
        node.input[:] = inputs
        after = set(iter_reads(node))
        for name in after - before:
            self.readers.setdefault(name, {})[id(node)] = node
        for name in before - after:
            self.readers[name].pop(id(node))
            self._leave(name)
        self._sweep(before - after)

    def set_input(self, node: onnx.NodeProto, index: int, source: str) -> None:
        """Set an input of `node`, or append it; see `set_inputs`."""
        self.set_inputs(node, [*node.input[:index], source, *node.input[index + 1 :]])

    def drop_if_unread(self, node: onnx.NodeProto) -> None:
        """Remove a node without readers, and all nodes that only it reads."""
        if id(node) not in self.gone and not self._is_wanted(node):
            self._remove(node)
            self._sweep(iter_reads(node))

    def _is_wanted(self, node: onnx.NodeProto) -> bool:
        return any(self.is_read(name) for name in node.output if name)

    def _remove(self, node: onnx.NodeProto) -> None:
        self.gone.add(id(node))
        for name in iter_reads(node):
            self.readers.get(name, {}).pop(id(node), None)
            self._leave(name)
        for name in node.output:
            self.makers.pop(name, None)

    def _leave(self, name: str) -> None:
        if name not in self.makers:
            self.names.maybe_unread.add(name)

    def _sweep(self, names: Iterable[str]) -> None:
        waiting = list(names)
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is not None and not self._is_wanted(node):
                self._remove(node)
                waiting += iter_reads(node)

    def finish(self) -> None:
        """Set the graph's list of nodes."""
        if self._before or self._after or self.gone:
            nodes: list[onnx.NodeProto] = []
            for place, node in enumerate(self._nodes):
                nodes += [*self._before.get(place, ()), node, *self._after.get(place, ())]
            replace_nodes(self.graph, (node for node in nodes if id(node) not in self.gone))


def is_movable(tensor: TensorProto | None) -> bool:
    """Return whether a weight can be replaced by one made from it. A weight without data gives one
    without data."""
    return tensor is not None and tensor.data_type in FLOAT_TYPES


def join_weights(names: list[str], axis: int, made: Tape, view: GraphEditor) -> str:
    """Return the name of weights concatenated: one weight, or a Concat if some are no weights."""
    added = {tensor.name: tensor for tensor in view.names.added}
    tensors = [
        weight for name in names if (weight := view.tensor(name) or added.get(name)) is not None
    ]
    if len(tensors) < len(names) or not all(map(is_movable, tensors)):
        return made.add("Concat", *names, axis=axis)
    return view.derive(("joined", axis), names, lambda: _join(tensors, axis, made, view))


def _join(tensors: Sequence[TensorProto], axis: int, made: Tape, view: GraphEditor) -> str:
    if not all(map(has_data, tensors)):
        dims = list(tensors[0].dims)
        dims[axis] = sum(tensor.dims[axis] for tensor in tensors)
        return view.names.hold_unread(f"{made.prefix}/constant", tensors[0].data_type, dims)
    values = [read_array(tensor) for tensor in tensors]
    return made.constant(np.concatenate(values, axis), values[0].dtype)
