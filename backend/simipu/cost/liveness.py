"""Which tensors are alive while a node runs, and on which of the IPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnxgraph import Value, iter_reads

from simipu.cost.placed import place_inputs
from simipu.operators import operator_of


class Liveness:
    """From the node that makes a tensor to the last that needs it, on the IPU of its maker.

    A view is its source under another name. Weights are not among them: they are always there.
    """

    def __init__(self, graph: onnx.GraphProto, values: Mapping[str, Value], ipus: Sequence[int]) -> None:
        self._values, self._ipus = values, ipus
        self._roots = {tensor.name: "" for tensor in graph.initializer}
        self._last_use: dict[str, int] = {}
        self._places = place_inputs(graph, ipus)
        made = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
        made = made.union(*(node.output for node in graph.node))
        for i, node in enumerate(graph.node):
            roots = [self._root(name) for name in iter_reads(node) if name in made]
            self._last_use.update(dict.fromkeys(roots, i))
            self._places.update(dict.fromkeys(node.output, ipus[i]))
            operator = operator_of(node)
            if operator.is_view or not (any(roots) or operator.is_random):
                self._roots.update(dict.fromkeys(node.output, roots[0] if roots else ""))
        self._last_use.update({self._root(info.name): len(graph.node) for info in graph.output})
        self._live: set[str] = set()
        self._totals = Counter[int]()
        """Bytes of what is alive, by IPU: kept, because to add them up for each node would take time in the
        square of nodes."""
        self._begin(info.name for info in graph.input if self._root(info.name))

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)

    def _bytes(self, name: str) -> int:
        return self._values[name].bytes if name in self._values else 0

    def during(self, i: int, node: onnx.NodeProto) -> int:
        """Bytes alive on its IPU while node `i` runs; to be called for each in turn."""
        self._begin(name for name in node.output if self._root(name) == name)
        total = self._totals[self._ipus[i]]
        for name in {*map(self._root, iter_reads(node)), *node.output} & self._live:
            if self._last_use.get(name, i) <= i:
                self._live.remove(name)
                self._totals[self._places[name]] -= self._bytes(name)
        return total

    def _begin(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._live:
                self._live.add(name)
                self._totals[self._places[name]] += self._bytes(name)
