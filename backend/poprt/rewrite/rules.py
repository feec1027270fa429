"""Base classes of passes that rewrite graphs, with the walk through graphs and bodies. The passes
define what is replaced, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import onnx
from onnx import helper
from onnxgraph import (
    CHIP_DOMAIN,
    GraphEditor,
    GraphView,
    NameScope,
    Results,
    Site,
    Tape,
    drop_unread,
    infer_shapes,
    is_operator,
    iter_bodies,
    iter_nodes,
    replace_nodes,
)
from simipu import CompileError

from poprt.rewrite.base import Pass

_CHIP_VERSION = 1
"""Version of the chip's domain: PopART's own opset has no other."""


class _RewritePass(Pass):
    """Facts that both kinds of rules share."""

    op_types: ClassVar[frozenset[str]]
    """Operators at which the pass looks. A model without any of them does not change."""
    domain: ClassVar[str] = ""
    """Domain of these operators; "" for the standard's."""
    needs_shapes: ClassVar[bool] = True
    """Flag that the pass needs types and shapes of results."""

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether the pass looks at a node."""
        return node.op_type in self.op_types and is_operator(node, node.op_type, domain=self.domain)


class GraphRule(_RewritePass):
    """Base class of passes that look at nodes with their neighbours, and may replace, bypass or
    merge several at once.

    Subclasses define `rewrite_at`, or `change` where one node after the other is not enough. Bodies
    are changed before the graphs around them. The pass takes time linear in the number of nodes if
    `rewrite_at` goes a bounded number of steps from each.
    """

    required: ClassVar[frozenset[str]] = frozenset()
    """Operators of which a model must have one; if empty, it needs none. Formulas end with common
    operators, and have a rare one inside."""

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Search for a pattern at a node and replace it."""
        raise NotImplementedError

    def change(self, view: GraphEditor) -> None:
        """Change a graph: look at each node in order."""
        for node in view.nodes():
            if self.matches(node):
                self.rewrite_at(node, view)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Change the graphs, and remove weights that only removed nodes have read."""
        if self._may_change(model):
            inferred = infer_shapes(model).graph if self.needs_shapes else None
            names = NameScope.of(model)
            self._visit(names, model.graph, inferred, None)
            model.graph.initializer.extend(names.added)
            drop_unread(model.graph, names)
            if names.uses_chip:
                declare_chip(model)
        return model

    def _may_change(self, model: onnx.ModelProto) -> bool:
        nodes = list(iter_nodes(model.graph))
        is_there = not self.required or any(node.op_type in self.required for node in nodes)
        return is_there and any(map(self.matches, nodes))

    def _visit(
        self,
        names: NameScope,
        graph: onnx.GraphProto,
        known: onnx.GraphProto | None,
        outer: GraphEditor | None,
    ) -> None:
        view = GraphEditor(names, graph, known, outer)
        for place, node in enumerate(graph.node):
            for body, inferred in _pair_bodies(node, known, place):
                self._visit(names, body, inferred, view)
        view.index()
        self.change(view)
        view.finish()


class NodeRule(_RewritePass):
    """Base class of passes that replace single nodes.

    A rule sees the graph as it is given, whatever has been replaced before. The pass takes time
    linear in the number of nodes if `replace` looks only at nodes near the given one.
    """

    opset = 0
    """Opset of new nodes, if it is not the model's."""
    prefix: ClassVar[str] = "new"
    """Word in the names of the new nodes."""

    def replace(self, op: Tape, node: Site[GraphView]) -> Results | None:
        """Write the nodes that replace a node and return its results, or None to keep it.
        Subclasses define it."""
        raise NotImplementedError

    def make_nodes(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the nodes that replace a node, or None to keep it."""
        op = view.start(node, self.prefix)
        results = self.replace(op, Site(node, view, op))
        return None if results is None else op.finish(results, node.output, node.name)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace nodes, and remove weights that only replaced nodes have read."""
        if any(self.matches(node) for node in iter_nodes(model.graph)):
            inferred = self._infer(model) if self.needs_shapes else None
            names = NameScope.of(model, self.opset)
            self._visit(GraphView(names, model.graph, inferred), inferred)
            model.graph.initializer.extend(names.added)
            drop_unread(model.graph, names, bodies=False)
        return model

    def _infer(self, model: onnx.ModelProto) -> onnx.GraphProto:
        try:
            return infer_shapes(model).graph
        except onnx.shape_inference.InferenceError as error:
            raise CompileError(f"pass {self.name}: {' '.join(str(error).split())}") from error

    def _try(self, node: onnx.NodeProto, view: GraphView) -> Iterable[onnx.NodeProto] | None:
        """Return the nodes that replace a node. Raise CompileError if the node does not match its
        operator: ranks, axes and counts of a given model may be invalid."""
        try:
            return self.make_nodes(node, view)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            name = node.name or ", ".join(node.output)
            raise CompileError(
                f"pass {self.name}: node {name!r} ({node.op_type}) is not what opset "
                f"{view.names.source} says of it: {error}; check the model with onnx.checker"
            ) from error

    def _visit(self, view: GraphView, known: onnx.GraphProto | None) -> None:
        nodes: list[onnx.NodeProto] = []
        is_changed = False
        for place, node in enumerate(view.graph.node):
            for body, inferred in _pair_bodies(node, known, place):
                self._visit(GraphView(view.names, body, inferred, view), inferred)
            replacement = self._try(node, view) if self.matches(node) else None
            if replacement is None:
                nodes.append(node)
            else:
                is_changed = True
                nodes.extend(replacement)
                view.names.maybe_unread.update(node.input)
        if is_changed:
            replace_nodes(view.graph, nodes)


def _pair_bodies(
    node: onnx.NodeProto, known: onnx.GraphProto | None, place: int
) -> Iterable[tuple[onnx.GraphProto, onnx.GraphProto | None]]:
    """Return the bodies of a node, each with the same body of the inferred graph, if any."""
    if not node.attribute:
        return ()
    if known is None:
        return ((body, None) for body in iter_bodies(node))
    return zip(iter_bodies(node), iter_bodies(known.node[place]), strict=True)


def declare_chip(model: onnx.ModelProto) -> None:
    """Declare the chip's domain in the model, if any node uses it."""
    is_declared = any(entry.domain == CHIP_DOMAIN for entry in model.opset_import)
    if not is_declared and any(node.domain == CHIP_DOMAIN for node in iter_nodes(model.graph)):
        model.opset_import.append(helper.make_opsetid(CHIP_DOMAIN, _CHIP_VERSION))
