"""Passes that remove nodes and initializers that are not needed: dead and equal ones, branches that
are never taken, repeated values. `nops` removes nodes that do nothing."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    FLOAT_TYPES,
    STANDARD_DOMAINS,
    GraphEditor,
    NameScope,
    attribute,
    describe_place,
    drop_initializers,
    fresh_name,
    graph_values,
    has_data,
    infer_shapes,
    is_outlined,
    is_untrained,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    make_identity,
    read_array,
    rename,
    replace_nodes,
    used_names,
)
from simipu import ORT_ERRORS
from simipu.operators import operator_of

from popef._tools.arrays import Array
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import OF_SHAPES
from poprt.rewrite.rules import GraphRule

_MAX_COMPARED_BYTES = 1 << 16
"""Maximum size of a node's attributes. Constants in them have become initializers before."""
_BRANCHES = {True: "then_branch", False: "else_branch"}


@register(
    "eliminate_nop_if",
    stage=Stage.FOLDING,
    default=True,
    before="constant_folding",
    depend="const_input_shape",
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
            facts = _KnownTensors(model, {name: value.shape for name, value in values.items()})
            if not _take_in_graph(model.graph, facts, Counter(iter_defined(model.graph))):
                break
        return model


def _take_in_graph(graph: onnx.GraphProto, known: _KnownTensors, defined: Counter[str]) -> bool:
    """Inline the branches of Ifs with a known condition. Return whether there were any."""
    known.add_graph(graph)
    nodes: list[onnx.NodeProto] = []
    is_changed = False
    for node in graph.node:
        condition = known.value(node.input[0]) if node.op_type == "If" else None
        if condition is None:
            for body in iter_bodies(node):
                is_changed |= _take_in_graph(body, known, defined)
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
        is_changed = True
    if is_changed:
        replace_nodes(graph, nodes)
    return is_changed


def _make_unique(branch: onnx.GraphProto, prefix: str, defined: Counter[str]) -> None:
    """Rename, in place, tensors of the branch whose names are used elsewhere too: both branches may
    use the same names."""
    names = [tensor.name for tensor in branch.initializer]
    names += [name for node in branch.node for name in node.output]
    renames = {}
    for name in names:
        if name and defined[name] > 1:
            renames[name] = fresh_name(f"{prefix}/{name}", defined)
            defined[renames[name]] += 1
    rename(branch, renames)
    for tensor in branch.initializer:
        tensor.name = renames.get(tensor.name, tensor.name)
    for value in branch.output:
        value.name = renames.get(value.name, value.name)


@dataclass(slots=True)
class _KnownTensors:
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
            required = waiting.pop()
            place, node = self.makers.get(required, (-1, None))
            if required in self.constants and has_data(self.constants[required]):
                constants[required] = self.constants[required]
            elif node is None or operator_of(node).draws(node) or any(iter_bodies(node)):
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
            helper.make_tensor_value_info(tensor_name, TensorProto.FLOAT, self.shapes[tensor_name])
            for tensor_name in sorted(sized)
        ]
        output = helper.make_tensor_value_info(name, TensorProto.BOOL, None)
        graph = helper.make_graph(nodes, "condition", inputs, [output], constants)
        model = onnx.ModelProto(
            ir_version=self.model.ir_version, opset_import=self.model.opset_import, graph=graph
        )
        fed = {value.name: np.zeros(self.shapes[value.name], np.float32) for value in inputs}
        results = run_unoptimised(model, [fed])  # compiling the whole model reports errors
        return results[0] if results is not None and results[0].size == 1 else None


def run_unoptimised(
    model: onnx.ModelProto, feeds: Iterable[Mapping[str, Array]]
) -> list[Array] | None:
    """Return the only output of a small model for each of its feeds. Return None if ONNX Runtime
    rejects the model. Its optimisers are off: they can crash."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(session.run(None, dict(feed))[0]) for feed in feeds]
    except ORT_ERRORS:
        return None


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
            names = used_names(graph) | {value.name for value in graph.input}
            drop_initializers(graph, {tensor.name for tensor in graph.initializer} - names)
        return model


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
            or operator_of(node).draws(node)
            or any(iter_bodies(node))
            or sum(entry.ByteSize() for entry in node.attribute) > _MAX_COMPARED_BYTES
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
    attributes = sorted((entry.name, entry.SerializeToString()) for entry in node.attribute)
    return node.domain, node.op_type, tuple(node.input), tuple(map(bool, node.output)), *attributes


_SAMPLE_BYTES = 256
"""Number of bytes spread over a tensor that are compared first; they tell most different tensors
apart."""

_Seen = ChainMap[Hashable, tuple[TensorProto, ...]]
"""Initializers in scope that stay, by element type, shape and data."""


@register("remove_duplicated_initializer", stage=Stage.FOLDING, default=True)
class RemoveDuplicatedInitializer(Pass):
    """Keep the first of several initializers with equal type, shape and bits; bodies read the
    initializers of the graphs around them.

    Outputs and inputs keep their own. Outlined weights are equal where they lie in one place, and
    what they hold is not read; weights without data are equal to none, nor are those that are not
    trained yet.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove the duplicates. Only names that nodes read change."""
        # Reading data copies them, so tensors whose type and shape are unique are not read.
        counts = Counter(map(_shape_key, _iter_initializers(model.graph)))
        _keep_one(model.graph, ChainMap(), {key for key, count in counts.items() if count > 1})
        return model


@register("eliminate_duplicate_initializer")
class EliminateDuplicateInitializer(RemoveDuplicatedInitializer):
    """Run remove_duplicated_initializer under its other name."""


def _iter_initializers(graph: onnx.GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_initializers(body)


def _shape_key(tensor: TensorProto) -> Hashable:
    return tensor.data_type, tuple(tensor.dims)


def _keep_one(graph: onnx.GraphProto, outer: _Seen, shared: set[Hashable]) -> None:
    seen = outer.new_child()
    doubles, renames = _find_doubles(graph, seen, shared)
    for i in reversed(doubles):
        del graph.initializer[i]
    rename(graph, renames)
    for node in graph.node:
        for body in iter_bodies(node):
            _keep_one(body, seen, shared)


def _find_doubles(
    graph: onnx.GraphProto, seen: _Seen, shared: set[Hashable]
) -> tuple[list[int], dict[str, str]]:
    """Return the places of the duplicates, and for each name the one to read instead. Initializers
    that stay are added to `seen`."""
    inputs, outputs = {value.name for value in graph.input}, {value.name for value in graph.output}
    own = inputs | {tensor.name for tensor in graph.initializer}
    here: set[str] = set()
    doubles: list[int] = []
    renames: dict[str, str] = {}
    for i, tensor in enumerate(graph.initializer):
        if _shape_key(tensor) not in shared or tensor.name in inputs or not _can_be_equal(tensor):
            continue
        data = _data(tensor)
        key = (_shape_key(tensor), data if isinstance(data, tuple) else _sample(data))
        first = next((other.name for other in seen.get(key, ()) if _data(other) == data), None)
        # A name of this graph hides the same name in a graph around it.
        if first is None or tensor.name in outputs or (first in own and first not in here):
            seen[key] = (*seen.get(key, ()), tensor)
            here.add(tensor.name)
        elif first != tensor.name:
            renames[tensor.name] = first
            doubles.append(i)
    return doubles, renames


def _can_be_equal(tensor: TensorProto) -> bool:
    if not has_data(tensor) or tensor.data_type == TensorProto.STRING:
        return False
    return is_outlined(tensor) or not is_untrained(read_array(tensor))


def _data(tensor: TensorProto) -> bytes | tuple[str, ...]:
    """Return the bytes of a tensor, or their place if it is outlined. They are equal for equal
    tensors of one type and shape."""
    if is_outlined(tensor):
        return describe_place(tensor)
    return tensor.raw_data if tensor.HasField("raw_data") else read_array(tensor).tobytes()


def _sample(data: bytes) -> bytes:
    return data[:: max(1, len(data) // _SAMPLE_BYTES)]


_MIN_BYTES = 1024
"""Minimum size of an initializer for which a node pays off. Float tensors for axes, shapes or
indices are not that large."""


@register("fold_periodic_initializer", stage=Stage.PATTERNS, option="fold_periodic_initializer")
class FoldPeriodicInitializer(Pass):
    """Keep of an initializer of floats that repeats along its axes one period, and Expand or Tile
    it.

    Takes memory for weights off the chip, and costs cycles. Only where at least half of it goes.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace initializers by nodes whose results have the initializers' names."""
        names = NameScope.of(model)
        for graph in reversed(list(iter_graphs(model.graph))):
            fixed = {value.name for value in graph.input}
            nodes, tensors = [], []
            for tensor in graph.initializer:
                period = None if tensor.name in fixed else _find_period(tensor)
                if period is not None:
                    period_name = names.take(f"{tensor.name}/period", is_numbered=True)
                    tensors.append(numpy_helper.from_array(period, period_name))
                    node, how = _repeat(tensor, tensors[-1], names)
                    nodes.append(node)
                    tensors.append(how)
            if nodes:
                drop_initializers(graph, {node.output[0] for node in nodes})
                graph.initializer.extend(tensors)
                replace_nodes(graph, [*nodes, *graph.node])
        return model


def _repeat(
    tensor: TensorProto, period: TensorProto, names: NameScope
) -> tuple[onnx.NodeProto, TensorProto]:
    """Return the node that makes a tensor from its period, and the constant with its repeats or
    shape."""
    pairs = list(zip(tensor.dims, period.dims, strict=True))
    if all(part in (1, size) for size, part in pairs):
        op_type, numbers = "Expand", [size for size, _ in pairs]
    else:
        op_type, numbers = "Tile", [size // part for size, part in pairs]
    how = numpy_helper.from_array(
        np.array(numbers, np.int64), names.take(f"{tensor.name}/repeats", is_numbered=True)
    )
    node = helper.make_node(
        op_type, [period.name, how.name], [tensor.name], name=f"{tensor.name}/repeat"
    )
    return node, how


def _find_period(tensor: TensorProto) -> Array | None:
    """Return the period of a tensor; None if it is more than half of the tensor."""
    if tensor.data_type not in FLOAT_TYPES or not has_data(tensor):
        return None
    values = read_array(tensor)
    if values.nbytes < _MIN_BYTES:
        return None
    # Compare bits: -0 differs from 0, and NaN equals NaN.
    bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    for axis in range(bits.ndim):
        for part in _iter_parts(bits.shape[axis]):
            while bits.shape[axis] % part == 0 and _repeats(bits, axis, bits.shape[axis] // part):
                bits = np.take(bits, range(bits.shape[axis] // part), axis)
    return bits.view(values.dtype) if 2 * bits.size <= values.size else None


def _repeats(values: Array, axis: int, period: int) -> bool:
    """Return whether each slice along an axis equals the one `period` before it."""
    turned = np.moveaxis(values, axis, 0)
    if not np.array_equal(turned[period], turned[0]):  # decides most cases
        return False
    return np.array_equal(turned[period:], turned[:-period])


def _iter_parts(size: int) -> Iterator[int]:
    """Yield the prime factors of a size, each once."""
    for part in range(2, math.isqrt(size) + 1):
        if size % part == 0:
            yield part
            while size % part == 0:
                size //= part
    if size > 1:
        yield size
