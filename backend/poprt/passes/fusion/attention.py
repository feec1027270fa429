"""Passes over the products and scales in the attention of transformers. Passes over its masks are
in `masks`."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    FLOAT_TYPES,
    GraphEditor,
    Shape,
    has_data,
    is_movable,
    is_operator,
    join_weights,
    read_array,
)
from simipu.operators import names_where, operator_of

from popef._tools.arrays import Array
from poprt.passes.folding.elimination import run_unoptimised
from poprt.rewrite.base import register
from poprt.rewrite.patterns import Once, Op, Var
from poprt.rewrite.rules import GraphRule

_VIEWS = names_where(lambda entry: entry.keeps_elements)
"""Operators that may stand between a projection and the product of queries and keys."""
_MAX_VIEWS = 4
"""Maximum number of them, one after the other: a pass goes a bounded number of steps."""


_PRODUCT = Once(Op("MatMul", Var("queries"), Var("keys")).named("product"))
_FACTOR = Var("factor", lambda view, name: view.number(name) is not None)
_SCALED = _PRODUCT * _FACTOR | _PRODUCT / _FACTOR


@register("pre_scale")
class PreScale(GraphRule):
    """Scale queries, not scores: a factor behind the product of queries and keys goes into the
    weights that the queries are projected with, or else onto the queries, if they are no more than
    the scores."""

    op_types = frozenset(("Div", "Mul"))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Rewrite the scale of a product of two activations that no other node reads."""
        match = _SCALED.find(node.output[0], view)
        number = view.number(match["factor"]) if match is not None else None
        if match is None or not number or not math.isfinite(number):
            return
        queries, keys, product = match["queries"], match["keys"], match["product"]
        result = node.output[0]
        shapes = [view.shape(name) for name in (queries, keys, product, result)]
        is_scores = None not in shapes and shapes[2] == shapes[3]
        if not is_scores or view.tensor(queries) or view.tensor(keys):
            return
        if view.type(queries) not in FLOAT_TYPES:
            return
        op, factor = view.start(node, "scaled"), number if node.op_type == "Mul" else 1 / number
        name = view.makers[product].name
        if not _scale_projection(queries, factor, view):
            if math.prod(shapes[0] or ()) > math.prod(shapes[3] or ()):
                return
            queries = op.add("Mul", queries, op.constant(factor, view.dtype(queries)))
        op.add_as(result, "MatMul", queries, keys)
        op.nodes[-1].name = name
        view.rewrite(node, op.nodes, [node])


def _scale_projection(name: str, factor: float, view: GraphEditor) -> bool:
    """Scale the weight and bias of the projection that makes a tensor, through views if there are
    any. Return whether there is such a projection."""
    for _ in range(_MAX_VIEWS):
        moved = view.maker(name, *_VIEWS)
        if moved is None or not view.is_read_once(name):
            break
        name = moved.input[0]
    added, bias = view.maker(name, "Add"), ""
    if added is not None and view.is_read_once(name):
        bias = next(
            (operand for operand in added.input if is_movable(view.constants.get(operand))), ""
        )
        name = next((operand for operand in added.input if operand != bias), "") if bias else name
    product = view.maker(name, "MatMul")
    if (
        product is None
        or not view.is_read_once(name)
        or not is_movable(view.constants.get(product.input[1]))
    ):
        return False
    readers = [(product, product.input[1])] + (
        [(added, bias)] if added is not None and bias else []
    )
    for node, read in readers:
        scaled = view.derive(("scaled", factor), [read], partial(_scale_weight, read, factor, view))
        changed = copy.deepcopy(node)
        changed.input[:] = [scaled if read_name == read else read_name for read_name in node.input]
        view.rewrite(node, [changed], [node])
    return True


def _scale_weight(name: str, factor: float, view: GraphEditor) -> str:
    tensor, scaled_name = view.constants[name], f"{name}/scaled"
    if not has_data(tensor):
        return view.names.hold_unread(scaled_name, tensor.data_type, tensor.dims)
    value = read_array(tensor)
    return view.names.hold(scaled_name, (value * np.float64(factor)).astype(value.dtype))


@dataclass(frozen=True, slots=True)
class _Projection:
    """MatMul, Add, Reshape and Transpose that make queries, keys or values, split into heads."""

    product: onnx.NodeProto
    bias: str
    shape: Shape
    """Sizes of batch, tokens, heads and elements of a head."""
    end: onnx.NodeProto
    is_turned: bool
    """Flag that tokens come last, as those of keys may."""


_PLAIN, _TURNED = [0, 2, 1, 3], [0, 2, 3, 1]
_HEADS_RANK = 4
_PROJECTIONS = 3
"""Number of projections: queries, keys and values."""


@register("fused_attention")
class FusedAttention(GraphRule):
    """Make one product of the three that project the same tensor to queries, keys and values:
    weights and biases are put together, and the heads are split behind Reshape and Transpose."""

    op_types = frozenset(("MatMul",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Fuse the three products at the first of them. More products of the same tensor are keys
        and values of several layers."""
        if not view.is_first(node.input[0], node):
            return
        readers = view.readers.get(node.input[0], {}).values()
        projections = [
            read for reader in readers if (read := _read_projection(reader, node.input[0], view))
        ]
        widths = {
            (projection.shape, view.shape(projection.product.input[1]))
            for projection in projections
        }
        if len(projections) == _PROJECTIONS and len(widths) == 1:
            _fuse(projections, view)


def _read_projection(node: onnx.NodeProto, source: str, view: GraphEditor) -> _Projection | None:
    if not is_operator(node, "MatMul") or node.input[0] != source:
        return None
    tensor = view.tensor(node.input[1])
    if tensor is None or len(tensor.dims) != 2 or view.type(source) not in FLOAT_TYPES:  # noqa: PLR2004
        return None
    end, bias = node, ""
    added = view.reader(node.output[0], "Add")
    if added is not None:
        bias = next((name for name in added.input if name != node.output[0]), "")
        if view.tensor(bias) is None or view.shape(bias) != tuple(tensor.dims[1:]):
            return None
        end = added
    split = view.reader(end.output[0], "Reshape")
    turned = view.reader(split.output[0], "Transpose") if split is not None else None
    shape = view.shape(split.output[0]) if split is not None else None
    if turned is None or shape is None or len(shape) != _HEADS_RANK or 0 in shape:
        return None
    order = list(helper.get_attribute_value(turned.attribute[0])) if turned.attribute else []
    if order not in (_PLAIN, _TURNED) or shape[2] * shape[3] != tensor.dims[1]:
        return None
    return _Projection(node, bias, shape, turned, order == _TURNED)


def _fuse(found: list[_Projection], view: GraphEditor) -> None:
    first, results = found[0], [projection.end.output[0] for projection in found]
    source, dtype = first.product.input[0], view.dtype(first.product.input[0])
    batch_free, (tokens, heads, size) = -1, first.shape[1:]
    op = view.start(first.product, "fused")
    weight = join_weights([projection.product.input[1] for projection in found], 1, op, view)
    joint = op.add("MatMul", source, weight)
    if any(projection.bias for projection in found):
        none = (
            op.constant(np.zeros(heads * size), dtype)
            if not all(projection.bias for projection in found)
            else ""
        )
        joint = op.add(
            "Add",
            joint,
            join_weights([projection.bias or none for projection in found], 0, op, view),
        )
    target = op.ints([batch_free, tokens, len(found) * heads, size])
    turned = op.add("Transpose", op.add("Reshape", joint, target), perm=_PLAIN)
    parts = [
        op.new_name() if projection.is_turned else projection.end.output[0] for projection in found
    ]
    op.add_all(parts, "Split", turned, split=[heads] * len(found), axis=1)
    for projection, part, result in zip(found, parts, results, strict=True):
        if projection.is_turned:
            op.add_as(result, "Transpose", part, perm=[0, 1, 3, 2])
    at = min((projection.product for projection in found), key=view.place)
    view.rewrite(at, op.nodes, [projection.end for projection in found])


@register("matmul_rotary_embedding")
class MatMulRotaryEmbedding(GraphRule):
    """Make a product with a constant matrix of what turns pairs of elements in a rotary embedding,
    x cos + t sin, where t is x with elements exchanged and some of them negated.

    Which are exchanged is found out by trying: any way of writing it is known.
    """

    op_types = frozenset(("Add",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Rewrite the rotation at the sum of both products."""
        products = [view.maker(name, "Mul") for name in node.input]
        first, second = products[0], products[-1]
        if first is None or second is None or first is second:
            return
        for plain, turning in ((first, second), (second, first)):
            for source in plain.input:
                for turned in turning.input:
                    if self._turn(source, turned, view):
                        return

    def _turn(self, source: str, turned: str, view: GraphEditor) -> bool:
        """Replace the nodes that turn `source`. Return whether there was anything to replace."""
        shape = view.shape(source)
        if not shape or view.shape(turned) != shape or view.type(source) not in FLOAT_TYPES:
            return False
        nodes = _find_moves(source, turned, view)
        if not nodes or shape[-1] > _MAX_TURNED or 0 in shape:
            return False
        matrix = _find_matrix(nodes, source, turned, shape, view)
        if matrix is None:
            return False
        end = view.makers[turned]
        op = view.start(end, "turned")
        op.add_as(
            turned,
            "MatMul",
            source,
            view.names.hold_once("rotary/turn", matrix, view.dtype(source)),
        )
        view.rewrite(end, op.nodes, [end])
        return True


_MAX_MOVES = 16
"""Maximum number of nodes; the longest known form has 9."""
_MAX_TURNED = 1024
"""Maximum number of elements of a head. More are no rotary embedding, and a matrix of them saves
nothing."""
_MAX_TRIED = 1 << 24
"""Maximum number of elements that are numbered in float."""
_ROWS = 2
"""Number of rows of the first axis to try, if every moved tensor has that axis. Two rows show
whether rows stay apart: then the nodes move the elements in the same way for any number of rows."""


def _find_moves(source: str, result: str, view: GraphEditor) -> list[onnx.NodeProto] | None:
    """Return the nodes, in order, that make `result` of `source` and constants by moving and
    negating. Return None if they do more than that."""
    moves: dict[int, onnx.NodeProto] = {}
    waiting = [result]
    while waiting:
        name = waiting.pop()
        if name == source or not name or view.value(name) is not None:
            continue
        node = view.maker(name)
        if node is None or not _exchanges(node) or len(moves) > _MAX_MOVES:
            return None
        if id(node) not in moves:
            moves[id(node)] = node
            waiting += node.input
    return sorted(moves.values(), key=view.place) or None


def _exchanges(node: onnx.NodeProto) -> bool:
    """Return whether exporters may write the exchange of elements with a node."""
    return operator_of(node).moves_of(node) is not None or is_operator(node, "Neg")


def _find_matrix(
    nodes: list[onnx.NodeProto], source: str, result: str, shape: Shape, view: GraphEditor
) -> Array | None:
    """Return the matrix that multiplies the last axis, or None if the nodes do anything else. Two
    inputs are tried. Elements that hold the number of their place show where each element goes.
    Elements that hold the number of their row show that each stays in its row."""
    constants = _find_held(nodes, source, view)
    if all((view.shape(node.output[0]) or ())[:1] == shape[:1] for node in nodes):
        _take_rows(constants, nodes, shape[0])
        shape = (min(_ROWS, shape[0]), *shape[1:])
    size, rows = shape[-1], math.prod(shape[:-1])
    if rows * size > _MAX_TRIED:
        return None
    model = _make_model(nodes, source, result, shape, constants, view)
    numbered = np.broadcast_to(np.arange(1, size + 1, dtype=np.float32), (rows, size))
    by_row = np.repeat(np.arange(1, rows + 1, dtype=np.float32), size).reshape(rows, size)
    tried = [np.ascontiguousarray(values.reshape(shape)) for values in (numbered, by_row)]
    outputs = run_unoptimised(model, [{source: values} for values in tried])
    if outputs is None or any(output.shape != shape for output in outputs):
        return None
    moved, kept_rows = (output.reshape(rows, size) for output in outputs)
    if not (moved == moved[0]).all():
        return None
    places, signs = np.abs(moved[0]).astype(int) - 1, np.sign(moved[0])
    if not (kept_rows == by_row * signs).all() or (signs == 0).any():
        return None
    matrix = np.zeros((size, size), np.float32)
    matrix[places, np.arange(size)] = signs
    return None if np.array_equal(matrix, np.eye(size)) else matrix


def _take_rows(held: list[TensorProto], nodes: list[onnx.NodeProto], rows: int) -> None:
    """Change Reshapes in place so that they make few rows of a first axis."""
    shapes = {node.input[1] for node in nodes if node.op_type == "Reshape" and len(node.input) > 1}
    for tensor in held:
        if tensor.name in shapes:
            sizes = numpy_helper.to_array(tensor).copy()
            sizes[:1] = np.where(sizes[:1] == rows, min(_ROWS, rows), sizes[:1])
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))


def _find_held(nodes: list[onnx.NodeProto], source: str, view: GraphEditor) -> list[TensorProto]:
    """Return copies of the constants that the nodes read."""
    constants = []
    for name in dict.fromkeys(name for node in nodes for name in node.input):
        tensor = view.tensor(name)
        if tensor is not None and name != source:
            constants.append(TensorProto())
            constants[-1].CopyFrom(tensor)
            constants[-1].name = name
    return constants


def _make_model(
    nodes: list[onnx.NodeProto],
    source: str,
    result: str,
    shape: Shape,
    held: list[TensorProto],
    view: GraphEditor,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "moves",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        held,
    )
    opsets = [helper.make_opsetid("", view.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


_IR_VERSION = 8
"""IR version that all ONNX Runtimes in use accept."""
