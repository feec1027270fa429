"""Liveness of tensors: which are alive while a node runs, and on which IPU.

Nodes that PopART runs in place need no memory of their own. These are views, which keep all of
their source alive, and operators that overwrite an operand that is not needed later. PopART's
in-placing pattern is on by default (docs/ipu-performance.md, section 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnxgraph import TensorSize, find_inputs, iter_reads

from simipu.chip.placement import PlacedGraph
from simipu.operators import operator_of


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor with its bytes, its IPU, and the first and last node during which it is alive."""

    name: str
    num_bytes: int
    ipu: int
    begin: int
    """-1 if it is alive before the first node: it comes from the host."""
    end: int
    """The number of nodes if it is alive after the last one."""


class Liveness:
    """Lifetimes of tensors, each from the node that makes it to the last node that needs it, on the
    IPU of its maker.

    Weights, and tensors that nodes compute from `constants` alone, are not included: they are
    always in memory.
    """

    def __init__(
        self,
        placed: PlacedGraph,
        values: Mapping[str, TensorSize],
        constants: Collection[str] = (),
    ) -> None:
        graph = placed.graph
        self._values, self._ipus, self._nodes = values, placed.ipus, graph.node
        self._places = dict(placed.input_ipus)
        self._constants = {*constants, *(tensor.name for tensor in graph.initializer)}
        self._ends = self._find_ends(graph)
        self._dying: dict[int, list[str]] = {}
        for name, end in self._ends.items():
            self._dying.setdefault(end, []).append(name)
        self._holders: dict[str, str] = {}
        """Tensor that each view shows, if it is only one."""
        self._live: dict[str, int] = {}
        """Live tensors with the index of the node that made them; -1 is the host."""
        self._spans: dict[str, tuple[int, int]] = {}
        """First and last node of tensors that are dead."""
        self._totals = Counter[int]()
        """Live bytes, by IPU. The sum is kept because adding up for each node would take quadratic
        time in the number of nodes."""
        self.freed = 0
        """Bytes on the last node's IPU that no later node needs."""
        for info in find_inputs(graph):
            if info.name in self._ends and info.name not in self._constants:
                self._begin(info.name, -1)

    def _find_ends(self, graph: onnx.GraphProto) -> dict[str, int]:
        """Return for each tensor the last node that needs it, directly or through a view."""
        # Backwards, so that a view's readers are known before the view itself: it keeps its source
        # alive as long as it is read.
        #     0: a = Relu(x)    1: b = Reshape(a)    2: c = Add(b, y)      a ends at 2, as b does
        # Outputs of the graph end after its last node.
        ends = {info.name: len(graph.node) for info in graph.output}
        for i, node in reversed(list(enumerate(graph.node))):
            views = node.output if operator_of(node).is_view else ()
            shown = max((ends.get(name, i) for name in views), default=i)
            for name in iter_reads(node):
                ends[name] = max(ends.get(name, i), shown)
        return ends

    def _bytes(self, name: str) -> int:
        return self._values[name].bytes if name in self._values else 0

    def during(self, i: int, node: onnx.NodeProto) -> int:
        """Return the live bytes on the node's IPU while node `i` runs. Call it for each node in
        order."""
        ipu, reads = self._ipus[i], list(iter_reads(node))
        self._places.update(dict.fromkeys(node.output, ipu))
        if self._constants.issuperset(reads) and not operator_of(node).draws(node):
            self._constants.update(node.output)
        elif operator_of(node).is_view:
            self._show(node)
        else:
            self._make(i, node)
        # While the node runs, operands and results are alive together: the total is taken before
        # what dies here is removed. Results that no node reads die with the node that makes them.
        total = self._totals[ipu]
        unread = [name for name in node.output if name not in self._ends]
        self.freed = 0
        for name in (*self._dying.pop(i, ()), *unread):
            if name in self._live:
                # A copy can only take the place of an operand: not of the node's own result, nor
                # of a tensor on another IPU.
                if self._live[name] < i and self._places[name] == ipu:
                    self.freed += self._bytes(name)
                self._totals[self._places[name]] -= self._bytes(name)
                self._spans[name] = (self._live.pop(name), i)
        return total

    def _show(self, node: onnx.NodeProto) -> None:
        shown = [name for name in node.input if name and name not in self._constants]
        if len(shown) == 1:
            holder = self._holders.get(shown[0], shown[0])
            self._holders.update(dict.fromkeys(node.output, holder))

    def _make(self, i: int, node: onnx.NodeProto) -> None:
        for name in node.output:
            operand = self._find_taken(i, node) if name == node.output[0] else None
            if operand is not None:
                # The bytes pass from operand to result: the total stays the same.
                self._spans[operand] = (self._live.pop(operand), i - 1)
                self._live[name] = i
            elif name:
                self._begin(name, i)

    def _find_taken(self, i: int, node: onnx.NodeProto) -> str | None:
        """Return the operand whose memory the result reuses: one of the same size that is not
        needed later, or None."""
        # An operand that is a view stands for the tensor that it shows: that one is overwritten.
        size = self._bytes(node.output[0])
        for index in operator_of(node).in_place:
            if index < len(node.input):
                name = self._holders.get(node.input[index], node.input[index])
                dies = name in self._live and self._ends[name] <= i
                is_here = dies and self._places[name] == self._ipus[i]
                if is_here and self._bytes(name) == size:
                    return name
        return None

    def _begin(self, name: str, i: int) -> None:
        if name not in self._live:
            self._live[name] = i
            self._totals[self._places[name]] += self._bytes(name)

    def iter_alive(self, i: int, ipu: int) -> Iterator[tuple[str, int]]:
        """Yield the tensors on an IPU while node `i` runs, with their bytes. Call it after the last
        node."""
        for lifetime in self.iter_lifetimes():
            if lifetime.begin <= i <= lifetime.end and lifetime.ipu == ipu:
                yield lifetime.name, lifetime.num_bytes

    def ipu_of(self, name: str) -> int:
        """Return the IPU of a tensor that is an input of the graph or has been made."""
        return self._places[name]

    def holder_of(self, name: str) -> str:
        """Return the tensor that a view shows, or the name itself."""
        return self._holders.get(name, name)

    def iter_lifetimes(self) -> Iterator[Lifetime]:
        """Yield the lifetime of each tensor with data. Call it after the last node."""
        spans: Iterable[tuple[str, tuple[int, int]]] = [
            *self._spans.items(),
            *((name, (begin, len(self._nodes))) for name, begin in self._live.items()),
        ]
        for name, (begin, end) in spans:
            if self._bytes(name):
                yield Lifetime(name, self._bytes(name), self._places[name], begin, end)
