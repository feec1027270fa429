"""Guards indices: brings those by which operators read or write elements of a tensor into range,
and ends the run at one that was not, unless the nearest element is to be read.

For an axis of s elements the range is -s to s - 1; negative indices count from the end. The chip
checks no index, and scripts with published figures feed wrong ones. With the index check "clamp" an
index that is computed at run time reads the nearest element. Constants, and indices by which an
operator writes, end the run in both modes.

ONNX Runtime's CPU kernels check each index themselves. Accelerators do not: OpenVINO returns the
server's memory, or writes into it. There nothing that a file declares is trusted, because its
author may be a stranger. Neither are constants, nor the shapes of tensors between inputs and
outputs. The engine computes the sizes itself, and folds what is constant:

    sizes  -> no axis is empty? -+-> clamp(indices, -sizes, sizes - 1) -> node
    indices ---------------------+-> largest distance to the clamped ones -> fault

A fault in the main graph is an output that is checked after the run (`GuardedGraph`). Outputs of a
body do not reach the outside. There, and for empty axes, a Reshape to more elements than there are
ends the run before the node reads or writes anything.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    Tape,
    attribute,
    describe_node,
    find_opset,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    iter_shapes,
    replace_nodes,
)
from onnxgraph.opsets import EXTREMES_TAKE_INTEGERS, SIGN_EXISTS

from popef._tools.arrays import Array
from simipu.errors import AcceleratorError, LoadError
from simipu.operators import Indexing, operator_of

_INDICES = 1
"""Number of the input with the indices, for every operator that has them."""
_Shapes = Mapping[str, tuple[int, ...]]
_FAR = 1 << 29
"""More than the size of any axis that OpenVINO computes; a float, too."""
_Scope = ChainMap[str, onnx.TensorProto | None]
"""Constants by the names that are visible in a graph; None for a tensor that is computed or fed."""


@dataclass(slots=True)
class IndexGuard:
    """How indices are guarded, and the outputs that show faults.

    `raises`: an index that is computed at run time and out of range ends the run; else the nearest
    element is read. `engine_checks`: the engine itself ends a run at an index out of range. Then
    only indices that are to be clamped are changed, and inferred shapes may be used. `faults`:
    outputs that are above 0 if an index was out of range, with an error's text."""

    raises: bool = False
    engine_checks: bool = True
    faults: dict[str, str] = field(default_factory=dict)
    _prefix: str = ""
    _count: int = 0
    _opset: int = 0

    def apply(self, model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
        """Change `model`, in place, so that its operators use indices within range, and return
        whether anything was changed. `inferred` is the same model with its shapes."""
        if not needs_guards(model.graph, engine_checks=self.engine_checks):
            return False
        self._opset = find_opset(model, 1)
        if self._opset < SIGN_EXISTS and not self.engine_checks:
            raise AcceleratorError(
                f"its indices cannot be checked in opset {self._opset}, expected {SIGN_EXISTS} or "
                "newer; remove the accelerator"
            )
        self._prefix = _find_prefix(model.graph)
        self._guard_graph(model.graph, iter_shapes(inferred.graph), ChainMap(), is_main=True)
        for name in self.faults:
            info = helper.make_tensor_value_info(name, TensorProto.INT64, [1])
            model.graph.output.append(info)
        return True

    def _guard_graph(
        self, graph: onnx.GraphProto, shapes: Iterator[_Shapes], outer: _Scope, *, is_main: bool
    ) -> None:
        """Guard the indices of a graph and its bodies; `shapes` has their shapes in the same
        order."""
        known_shapes, scope = next(shapes), _enter_scope(graph, outer, is_main=is_main)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in iter_bodies(node):
                self._guard_graph(body, shapes, scope, is_main=False)
            if _is_guarded(node, scope, engine_checks=self.engine_checks):
                self._count += 1
                op = Tape(f"{self._prefix}/{self._count}")
                self._guard(op, node, known_shapes, scope, is_main=is_main)
                nodes += op.nodes
            nodes.append(node)
        replace_nodes(graph, nodes)

    def _guard(
        self, op: Tape, node: onnx.NodeProto, shapes: _Shapes, scope: _Scope, *, is_main: bool
    ) -> None:
        """Add to `chain` the nodes that bring the indices of `node` into range, and have the node
        use their result."""
        indices = op.add("Cast", node.input[_INDICES], to=TensorProto.INT64)
        sizes = self._find_sizes(op, node, indices, shapes, scope)
        clamped = self._clamp(op, indices, sizes)
        is_constant = scope.get(node.input[_INDICES]) is not None
        raises = self.raises or is_constant or operator_of(node).writes_by_indices
        if raises and not self.engine_checks:
            fault = _find_fault(op, indices, clamped)
            if is_main:
                self.faults[fault] = (
                    f"{describe_node(node)}: an index is outside of the tensor that it selects from"
                )
            else:
                clamped = self._clamp(op, clamped, _end_run(op, sizes, fault))
        node.input[_INDICES] = clamped

    def _find_sizes(
        self, op: Tape, node: onnx.NodeProto, indices: str, shapes: _Shapes, scope: _Scope
    ) -> str:
        """Return the name of the sizes of the axes that indices select from. Without
        `engine_checks` the run ends if one of them is 0."""
        if not self.engine_checks:
            weights = {name: scope.get(name) for name in node.input[:2]}
            shapes = {
                name: (*weight.dims,) for name, weight in weights.items() if weight is not None
            }
        sizes = _known_sizes(node, shapes)
        name = _add_sizes(op, node) if sizes is None else op.constant(sizes, np.int64)
        if self.engine_checks or (sizes is not None and 0 not in sizes):
            return name
        return _end_run(op, name, _count_empty(op, name, indices))

    def _clamp(self, op: Tape, indices: str, sizes: str) -> str:
        first = op.add("Neg", sizes)
        last = op.add("Sub", sizes, op.constant(1, np.int64))
        if self._opset >= EXTREMES_TAKE_INTEGERS:
            return op.add("Max", op.add("Min", indices, last), first)
        if not self.engine_checks:
            indices = _add_bounds(op, indices)
        smaller = _add_extreme(op, self._opset, "Sub", indices, last)
        return _add_extreme(op, self._opset, "Add", smaller, first)


def needs_guards(graph: onnx.GraphProto, *, engine_checks: bool = True) -> bool:
    """Return whether a graph or a body in it has indices to guard: those that are computed at run
    time, and without `engine_checks` also constants that are not known to be in range."""
    return any(
        _is_guarded(node, scope, engine_checks=engine_checks) for node, scope in _iter_scopes(graph)
    )


def find_unguarded(graph: onnx.GraphProto) -> onnx.NodeProto | None:
    """Return the first node of a graph and its bodies whose indices or places only ONNX Runtime's
    CPU kernels check: they are computed at run time, or the node writes by them in a body."""
    for node, scope in _iter_scopes(graph):
        place = operator_of(node).unguarded_indices
        name = node.input[place] if place is not None and len(node.input) > place else ""
        if name and scope.get(name) is None:
            return node
    inside = (
        inner for node in graph.node for body in iter_bodies(node) for inner in iter_nodes(body)
    )
    return next((node for node in inside if operator_of(node).writes_by_indices), None)


def _is_guarded(node: onnx.NodeProto, scope: _Scope, *, engine_checks: bool) -> bool:
    operator = operator_of(node)
    if operator.indexing is None:
        return False
    constant = scope.get(node.input[_INDICES])
    if engine_checks:
        return constant is None and not operator.writes_by_indices
    return constant is None or not _is_in_range(node, constant, scope.get(node.input[0]))


def _is_in_range(
    node: onnx.NodeProto, indices: onnx.TensorProto, data: onnx.TensorProto | None
) -> bool:
    """Return whether indices in the graph are within range for data whose size is certain, because
    they are a weight."""
    if data is None or indices.data_location == TensorProto.EXTERNAL:
        return False
    values = numpy_helper.to_array(indices)
    sizes = _known_sizes(node, {node.input[0]: (*data.dims,), node.input[1]: values.shape})
    return sizes is not None and bool(((values >= -sizes) & (values < sizes)).all())


def _iter_scopes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, _Scope]]:
    """Yield the nodes of a graph and its bodies with the constants that they see."""
    yield from _iter_inner_scopes(graph, ChainMap(), is_main=True)


def _iter_inner_scopes(
    graph: onnx.GraphProto, outer: _Scope, *, is_main: bool
) -> Iterator[tuple[onnx.NodeProto, _Scope]]:
    scope = _enter_scope(graph, outer, is_main=is_main)
    for node in graph.node:
        yield node, scope
        for body in iter_bodies(node):
            yield from _iter_inner_scopes(body, scope, is_main=False)


def _enter_scope(graph: onnx.GraphProto, outer: _Scope, *, is_main: bool) -> _Scope:
    """Return the scope of a graph: a name inside hides the same name outside. A name that is
    defined twice counts as computed. Inputs of the main graph that are weights are not fed."""
    own: dict[str, onnx.TensorProto | None] = {}

    def define(name: str, constant: onnx.TensorProto | None) -> None:
        own[name] = None if name in own else constant

    for tensor in graph.initializer:
        define(tensor.name, tensor)
    for value in graph.input:
        if not is_main or value.name not in own:
            own[value.name] = None
    for node in graph.node:
        is_constant = node.op_type == "Constant" and node.domain in STANDARD_DOMAINS
        constant = attribute(node, "value") if is_constant else None
        for name in filter(None, node.output):
            define(name, constant if isinstance(constant, onnx.TensorProto) else None)
    return outer.new_child(own)


def _find_prefix(graph: onnx.GraphProto) -> str:
    """Return a prefix of no name in a graph and its bodies: a tensor of the author must not replace
    one of a guard."""
    names = {*iter_defined(graph), *(name for node in iter_nodes(graph) for name in node.input)}
    names.update(value.name for inner in iter_graphs(graph) for value in inner.output)
    prefix = "indices"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _known_sizes(node: onnx.NodeProto, shapes: _Shapes) -> Array | None:
    """Return the sizes of the axes that indices select from, if the shapes are known: one, or one
    for each part of a tuple."""
    data, indices = (shapes.get(name) for name in node.input[:2])
    if data is None:
        return None
    if operator_of(node).indexing is Indexing.ALONG_AXIS:
        return np.array(data[attribute(node, "axis", 0)], np.int64)
    if indices is None:
        return None
    begin = _find_batch_dims(node)
    return np.array(data[begin : begin + indices[-1]], np.int64)


def _find_batch_dims(node: onnx.NodeProto) -> int:
    count: int = attribute(node, "batch_dims", 0)
    if count < 0:
        raise LoadError(
            f"{describe_node(node)}: expected 0 or more for batch_dims, found {count}; correct the "
            "model"
        )
    return count


def _add_sizes(op: Tape, node: onnx.NodeProto) -> str:
    """Add nodes that compute these sizes at run time."""
    shape = op.add("Shape", node.input[0])
    if operator_of(node).indexing is Indexing.ALONG_AXIS:
        return op.add("Gather", shape, op.constant(attribute(node, "axis", 0), np.int64))
    begin = op.ints([_find_batch_dims(node)])
    count = op.add("Gather", op.add("Shape", node.input[_INDICES]), op.ints([-1]))
    sizes = op.add("Slice", shape, begin, op.add("Add", begin, count), op.ints([0]))
    return op.add("Reshape", sizes, count)  # ends the run if a tuple has more parts than axes


def _count_empty(op: Tape, sizes: str, indices: str) -> str:
    """Add nodes that count the sizes that are 0, and return the name of the count, a tensor of one
    element. It is 0 without indices, which read nothing."""
    sizes = op.add("Reshape", sizes, op.ints([-1]))
    is_empty = op.add("Equal", sizes, op.constant(0, np.int64))
    count = op.add("ReduceSum", op.add("Cast", is_empty, to=TensorProto.INT64), keepdims=1)
    has_indices = op.add("Cast", op.add("Size", indices), to=TensorProto.BOOL)
    return op.add("Mul", count, op.add("Cast", has_indices, to=TensorProto.INT64))


def _end_run(op: Tape, sizes: str, count: str) -> str:
    """Add nodes that return `sizes`, and that end the run if the count, a tensor of one element, is
    above 0: a Reshape cannot add elements.

    OpenVINO removes a Reshape from one axis to one axis unseen. So this one has two axes, both of
    unknown size: k sizes and their copies, (k, 2) -> (k + count, 2 + count).
    """
    column = op.add("Reshape", sizes, op.ints([-1, 1]))
    pairs = op.add("Concat", column, column, axis=1)
    shape = op.add("Add", op.add("Shape", pairs), count)
    pairs = op.add("Reshape", pairs, shape)
    column = op.add("Gather", pairs, op.constant(0, np.int64), axis=1)
    return op.add("Reshape", column, op.add("Shape", sizes))


def _find_fault(op: Tape, indices: str, clamped: str) -> str:
    """Add the nodes that compute whether an index is not the clamped one, a tensor of one element
    that is 1 or 0, and return its name."""
    # The difference of whole numbers is exact on OpenVINO. Its comparisons and extremes are not,
    # and the largest distance would be above every int32 once it is a float.
    moved = op.add("Reshape", op.add("Sub", indices, clamped), op.ints([-1]))
    is_moved = op.add("Cast", moved, to=TensorProto.BOOL)
    wrong = op.add("Cast", is_moved, to=TensorProto.INT64)
    none = op.ints([0])  # there may be no indices
    return op.add("ReduceMax", op.add("Concat", wrong, none, axis=0), keepdims=1)


def _add_bounds(op: Tape, indices: str) -> str:
    """Bring indices to at most 2^29 from 0, of which the sums in `_add_extreme` have 32 bits, in
    which OpenVINO computes. Larger ones stay out of range of any axis that OpenVINO computes."""
    near = op.add("Cast", indices, to=TensorProto.FLOAT)
    high, low = op.constant(_FAR, np.float32), op.constant(-_FAR, np.float32)
    is_far = (op.add("Less", high, near), op.add("Less", near, low))
    above, below = (op.add("Cast", sign, to=TensorProto.INT64) for sign in is_far)
    inside = op.add("Sub", op.constant(1, np.int64), op.add("Add", above, below))
    ends = op.add("Mul", op.add("Sub", above, below), op.constant(_FAR, np.int64))
    return op.add("Add", op.add("Mul", indices, inside), ends)


def _add_extreme(op: Tape, opset: int, sign: str, left: str, right: str) -> str:
    """Add the smaller (sign Sub) or the larger (sign Add) of whole numbers, in opsets that have Min
    and Max for floats only: (a + b -+ |a - b|) / 2."""
    total, moved = op.add("Add", left, right), op.add("Sub", left, right)
    if opset >= SIGN_EXISTS:
        distance = op.add("Mul", moved, op.add("Sign", moved))
    else:
        distance = op.add("Abs", moved)
    return op.add("Div", op.add(sign, total, distance), op.constant(2, np.int64))
