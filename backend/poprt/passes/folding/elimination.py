"""Passes that remove nodes and initializers that are not needed. `nops` removes nodes that do
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxgraph import (
    attribute,
    fresh_name,
    graph_values,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    rename,
    replace_nodes,
    used_names,
)
from onnxgraph.building import make_identity
from onnxgraph.edit import drop_initializers
from onnxgraph.nodes import STANDARD_DOMAINS
from onnxgraph.weights import has_data
from simipu.computed import ORT_ERRORS
from simipu.operators import find_operator

from popef._tools.arrays import Array
from poprt.passes.folding.duplicates import RemoveDuplicatedInitializer
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.editor import GraphEditor
from poprt.rewrite.origins import OF_SHAPES
from poprt.rewrite.rules import GraphRule

_MAX_COMPARED_BYTES = 1 << 16
"""Maximum size of a node's attributes. Constants in them have become initializers before."""
_BRANCHES = {True: "then_branch", False: "else_branch"}


@register(
    "eliminate_nop_if",
    stage=Stage.FOLDING,
    default=True,
    before=("constant_folding",),
    depend=("const_input_shape",),
)
class EliminateNopIf(Pass):
    """Put the nodes of the branch taken where an If with a known condition is, in bodies too.

    Known is what constants and static shapes decide. Names stay unique. ONNX Runtime would do this
    while it folds, but it looks at both branches before that, and refuses a model in which the one
    that is never taken does not fit the given shapes.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Inline branches. An If inside a taken branch follows in the next iteration."""
        while any(node.op_type == "If" for node in iter_nodes(model.graph)):
            values = graph_values(infer_shapes(model).graph)
            known = _Known(model, {name: value.shape for name, value in values.items()})
            if not _take_in_graph(model.graph, known, Counter(iter_defined(model.graph))):
                break
        return model


def _take_in_graph(graph: onnx.GraphProto, known: _Known, defined: Counter[str]) -> bool:
    """Inline the branches of Ifs with a known condition. Return whether there were any."""
    known.add_graph(graph)
    nodes: list[onnx.NodeProto] = []
    taken = False
    for node in graph.node:
        condition = known.value(node.input[0]) if node.op_type == "If" else None
        if condition is None:
            for body in iter_bodies(node):
                taken |= _take_in_graph(body, known, defined)
            nodes.append(node)
            continue
        branch = attribute(node, _BRANCHES[bool(condition.item())])
        _make_unique(branch, node.output[0], defined)
        graph.initializer.extend(branch.initializer)
        nodes += branch.node
        nodes += [
            make_identity(inner.name, outer, f"{outer}/branch")
            for inner, outer in zip(branch.output, node.output, strict=True)
            if outer
        ]
        taken = True
    if taken:
        replace_nodes(graph, nodes)
    return taken


def _make_unique(branch: onnx.GraphProto, prefix: str, defined: Counter[str]) -> None:
    """Rename, in place, tensors of the branch whose names are used elsewhere too: both branches may
    use the same names."""
    made = [tensor.name for tensor in branch.initializer]
    made += [name for node in branch.node for name in node.output]
    renames = {}
    for name in made:
        if name and defined[name] > 1:
            renames[name] = fresh_name(f"{prefix}/{name}", defined)
            defined[renames[name]] += 1
    rename(branch, renames)
    for tensor in branch.initializer:
        tensor.name = renames.get(tensor.name, tensor.name)
    for value in branch.output:
        value.name = renames.get(value.name, value.name)


@dataclass(slots=True)
class _Known:
    """Facts about a model's tensors that are known before anything is computed."""

    model: onnx.ModelProto
    shapes: Mapping[str, tuple[int, ...]]
    constants: dict[str, TensorProto] = field(default_factory=dict)
    makers: dict[str, tuple[int, onnx.NodeProto]] = field(default_factory=dict)
    """Nodes with their place in the order of computation."""

    def add_graph(self, graph: onnx.GraphProto) -> None:
        self.constants.update((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            self.makers.update((name, (len(self.makers), node)) for name in node.output)

    def value(self, name: str) -> Array | None:
        """Return the value of a condition, or None if it depends on more than constants and
        shapes."""
        nodes: dict[int, onnx.NodeProto] = {}
        constants: dict[str, TensorProto] = {}
        waiting, sized = [name], set()
        while waiting:
            needed = waiting.pop()
            place, node = self.makers.get(needed, (-1, None))
            if needed in self.constants and has_data(self.constants[needed]):
                constants[needed] = self.constants[needed]
            elif node is None or find_operator(node.op_type).is_random or any(iter_bodies(node)):
                return None
            elif place not in nodes:
                nodes[place] = node
                if node.op_type in OF_SHAPES and node.input[0] in self.shapes:
                    sized.add(node.input[0])
                else:
                    waiting += filter(None, node.input)
        ordered = [nodes[place] for place in sorted(nodes)]
        return self._compute(name, ordered, list(constants.values()), sized)

    def _compute(
        self, name: str, nodes: list[onnx.NodeProto], constants: list[TensorProto], sized: set[str]
    ) -> Array | None:
        inputs = [
            helper.make_tensor_value_info(each, TensorProto.FLOAT, self.shapes[each])
            for each in sorted(sized)
        ]
        output = helper.make_tensor_value_info(name, TensorProto.BOOL, None)
        graph = helper.make_graph(nodes, "condition", inputs, [output], constants)
        model = onnx.ModelProto(
            ir_version=self.model.ir_version, opset_import=self.model.opset_import, graph=graph
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )  # it can crash
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            fed = {value.name: np.zeros(self.shapes[value.name], np.float32) for value in inputs}
            (found,) = session.run(None, fed)
        except ORT_ERRORS:
            return None  # compiling the whole model reports the error
        return found if found.size == 1 else None


@register("eliminate_deadend", stage=Stage.FOLDING, default=True)
class EliminateDeadend(GraphRule):
    """Drop nodes of which nothing is read, those that only such nodes read, and so on."""

    needs_shapes = False

    def matches(self, _node: onnx.NodeProto) -> bool:
        """Return that any node may be dead."""
        return True

    def change(self, view: GraphEditor) -> None:
        """Remove dead nodes from the last to the first."""
        for node in reversed(list(view.nodes())):
            view.drop_if_unread(node)


@register("eliminate_unused_initializer", stage=Stage.FOLDING, default=True)
class EliminateUnusedInitializer(Pass):
    """Drop initializers that nothing reads."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove unused initializers. One that is an input as well stays, because the input would
        then have to be fed."""
        for graph in iter_graphs(model.graph):
            kept = used_names(graph) | {value.name for value in graph.input}
            drop_initializers(graph, {tensor.name for tensor in graph.initializer} - kept)
        return model


@register("eliminate_duplicate_initializer")
class EliminateDuplicateInitializer(RemoveDuplicatedInitializer):
    """Run remove_duplicated_initializer under its other name."""


@register("eliminate_duplicate_nodes", stage=Stage.FOLDING, default=True)
class EliminateDuplicateNodes(GraphRule):
    """Keep one of several nodes of a graph that compute the same: operator, inputs and attributes
    are equal, and nothing is drawn."""

    needs_shapes = False

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node may be merged. Excluded are nodes with bodies or large constants
        and users' operators, which may have side effects. Casts are excluded, too: published passes
        for DeBERTa remove the Casts of each layer and expect each layer to have its own."""
        return node.domain in STANDARD_DOMAINS and not (
            node.op_type == "Cast"
            or find_operator(node.op_type).is_random
            or node.op_type == "Dropout"
            or any(iter_bodies(node))
            or sum(each.ByteSize() for each in node.attribute) > _MAX_COMPARED_BYTES
        )

    def change(self, view: GraphEditor) -> None:
        """Merge equal nodes in order, so that the nodes that read them become equal, too."""
        seen: dict[tuple[Any, ...], onnx.NodeProto] = {}
        for node in view.nodes():
            if self.matches(node):
                first = seen.setdefault(_describe(node), node)
                if first is not node:
                    view.merge(node, first)


def _describe(node: onnx.NodeProto) -> tuple[Any, ...]:
    attributes = sorted((each.name, each.SerializeToString()) for each in node.attribute)
    return node.domain, node.op_type, tuple(node.input), tuple(map(bool, node.output)), *attributes
