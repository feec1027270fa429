"""Passes that replace forms which the chip's compiler does not support, though the standard allows
them: integers where it computes in floats, negative axes and indices, 64-bit indices, and operators
whose meaning depends on their shapes (Einsum, NonZero)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import INTEGER_TYPES, GraphView, Results, Shape, Site, Tape, Value, type_name
from simipu.operators import names_where, operator_of

from poprt.rewrite.base import Stage, register
from poprt.rewrite.patterns import Op, Var
from poprt.rewrite.rules import NodeRule

_INDICES = (TensorProto.INT32, TensorProto.INT64)
_HOT = (TensorProto.FLOAT, TensorProto.FLOAT16)


@register("widen_integers", stage=Stage.FOLDING, default=True, is_ours=True, before="check_types")
class WidenIntegers(NodeRule):
    """Whole numbers that an operator does not take in the model's opset are those of 32 bits in it,
    or, where it takes floats only, floats: the same as long as nothing has more than their 24 bits.

    PyTorch's exporter (a Clip of integers at opset 11) and published scripts (int8 at opset 11)
    write such nodes, though the standard has them later only.
    """

    op_types = names_where(lambda entry: entry.widened_late)
    prefix = "wide"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node between Casts, if it needs a wider type."""
        node, element_type = site.node, site.facts.type(site.node.input[0])
        is_whole = element_type in INTEGER_TYPES
        wide = (
            _find_wide(node.op_type, element_type, site.facts.opset) if is_whole else element_type
        )
        if wide == element_type:
            return None
        is_compared = site.facts.type(node.output[0]) == TensorProto.BOOL
        return _compute_in(wide, op, node, _find_data(node), None if is_compared else element_type)


def _find_data(node: onnx.NodeProto) -> list[int]:
    """Return the inputs of data: others, as axes and sizes, keep their types."""
    shaped_by = operator_of(node).shaped_by
    return [place for place, name in enumerate(node.input) if name and place not in shaped_by]


def _compute_in(
    wide: int, op: Tape, node: onnx.NodeProto, places: Iterable[int], back: int | None
) -> Value:
    """Add the node with those inputs cast to another type, and return its result cast to `back`;
    None keeps the result."""
    inputs = list(node.input)
    for place in places:
        inputs[place] = op.Cast(inputs[place], to=wide)
    result = op.copy(node, inputs)[0]
    return result if back is None else op.Cast(result, to=back)


def _find_wide(op_type: str, given: int, opset: int) -> int:
    """Return the type in which an operator of an opset computes integers. It is their own type if
    the operator supports it, or if it supports no wider one."""
    try:
        types = onnx.defs.get_schema(op_type, opset).inputs[0].types
    except onnx.defs.SchemaError:
        return given  # unknown opset: check_opset reports it
    for wide in (given, TensorProto.INT32, TensorProto.FLOAT):
        if type_name(wide) in types:
            return wide
    return given


@register("float_ops_workaround", stage=Stage.PATTERNS)
class FloatOpsWorkaround(NodeRule):
    """Convert integers to float for operators that the chip computes in float, and convert the
    results back; this is exact for values of up to 24 bits."""

    op_types = names_where(lambda entry: entry.floats_only)
    prefix = "wide"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node between Casts, if it reads integers."""
        node, view = site.node, site.facts
        result = view.type(node.output[0])
        wide = [
            place for place in _find_data(node) if view.type(node.input[place]) in INTEGER_TYPES
        ]
        if not wide or 0 not in wide:
            return None
        return _compute_in(TensorProto.FLOAT, op, node, wide, result or view.type(node.input[0]))


_INDEX = Var("index")
_MOVED = Op("Where", Op("Less", _INDEX), Op("Add", _INDEX), _INDEX)
"""Indices that are moved already."""


@register("indices_workaround", stage=Stage.PATTERNS)
class IndicesWorkaround(NodeRule):
    """Convert indices of Gather and GatherElements to int32, counted from the front."""

    op_types = frozenset(("Gather", "GatherElements"))
    prefix = "indices"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with its indices changed. Constants are changed at once; for computed
        indices, nodes move the negative ones at run time."""
        view, (data, indices) = site.facts, site.node.input
        shape, axis = view.shape(data), site.get("axis", 0)
        if not shape or view.type(indices) not in _INDICES:
            return None
        size = shape[axis]
        if size > np.iinfo(np.int32).max:
            return None
        value = view.value(indices)
        if value is not None:
            if value.dtype == np.int32 and (value >= 0).all():
                return None
            moved = op.constant(np.where(value < 0, value + size, value), np.int32)
        elif view.type(indices) == TensorProto.INT32 and _MOVED.find(indices, view) is not None:
            return None
        else:
            places = site.input(1)
            if places.element_type == TensorProto.INT64:
                places = op.Cast(places, to=TensorProto.INT32)
            moved = op.Where(op.Less(places, 0), places + size, places)
        return op.add(site.node.op_type, data, moved, axis=axis)


@register("onehot_workaround", stage=Stage.PATTERNS)
class OnehotWorkaround(NodeRule):
    """OneHot counts its axis from the front, and its depth is int32."""

    op_types = frozenset(("OneHot",))
    prefix = "depth"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with its axis and depth changed. A depth of more than 31 bits stays: no
        chip has enough memory for the result."""
        view, node = site.facts, site.node
        rank, depth = view.rank(node.input[0]), view.value(node.input[1])
        axis = site.get("axis", -1)
        is_wide = (
            depth is not None and depth.dtype != np.int32 and depth.max() <= np.iinfo(np.int32).max
        )
        # ONNX Runtime has kernels for these types only.
        is_wide &= view.type(node.input[0]) in _INDICES and view.type(node.input[2]) in _HOT
        if rank is None or not (axis < 0 or is_wide):
            return None
        inputs = list(node.input)
        if is_wide and depth is not None:
            inputs[1] = op.constant(depth, np.int32)
        return op.OneHot(*inputs, axis=axis % (rank + 1))


@register("topk_workaround", stage=Stage.PATTERNS)
class TopkWorkaround(NodeRule):
    """TopK counts its axis from the front."""

    op_types = frozenset(("TopK",))
    prefix = "axis"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with its axis counted from the front; the default is the last axis,
        -1."""
        rank, axis = site.facts.rank(site.node.input[0]), site.get("axis", -1)
        if not rank or axis >= 0:
            return None
        return op.copy(site.node, axis=axis % rank)


_ELLIPSIS = "..."


@dataclass(slots=True)
class _Operand:
    """Tensor on the way to an Einsum's result, with a label for each axis and the size of each
    label."""

    value: Value
    labels: list[str]
    sizes: dict[str, int]

    @property
    def shape(self) -> list[int]:
        """Sizes of the axes in order."""
        return [self.sizes[label] for label in self.labels]


@register("replace_einsum_with_matmul", stage=Stage.PATTERNS, default=True)
class ReplaceEinsumWithMatmul(NodeRule):
    """Replace Einsum by products, sums, transpositions and reshapes.

    Of several operands the first two come first. A diagonal, which names an axis twice, stays, and
    so does what broadcasts an axis of one element.
    """

    op_types = frozenset(("Einsum",))
    prefix = "einsum"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace an Einsum of floats whose shapes are known."""
        return write_einsum(op, site)


def write_einsum(op: Tape, site: Site[GraphView]) -> Value | None:
    """Write an Einsum of floats whose shapes are known; return None for others."""
    node = site.node
    shapes = [site.facts.shape(name) for name in node.input]
    if not all(site.facts.is_float(name) for name in node.input):
        return None
    parsed = parse_equation(site.get("equation", ""), shapes)
    if parsed is None:
        return None
    terms, result = parsed
    operands = [
        _Operand(site.input(place), labels, dict(zip(labels, shape or (), strict=True)))
        for place, (labels, shape) in enumerate(zip(terms, shapes, strict=True))
    ]
    left = operands[0]
    for place, right in enumerate(operands[1:], 2):
        required = {label for operand in operands[place:] for label in operand.labels}
        left = _multiply(op, left, right, required | set(result), result)
    return _transpose(op, _sum(op, left, result), result).value


def parse_equation(
    equation: str, shapes: Sequence[Shape | None]
) -> tuple[list[list[str]], list[str]] | None:
    """Return the labels of each operand's axes and of the result's axes. Return None for an
    equation that is not a product and sum of known shapes."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes) or any(shape is None for shape in shapes):
        return None
    ranks = [len(shape or ()) for shape in shapes]
    rest = [
        rank - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    labels = [_expand(term, number) for term, number in zip(terms, rest, strict=True)]
    if min(rest) < 0 or any(
        len(term_labels) != rank for term_labels, rank in zip(labels, ranks, strict=True)
    ):
        return None
    if any(len(set(label)) != len(label) for label in labels):
        return None
    if arrow:
        result = _expand(right, max(rest))
    else:
        letters = sorted("".join(terms).replace(".", ""))
        once = [letter for letter in letters if letters.count(letter) == 1]
        result = [*_expand(_ELLIPSIS, max(rest)), *once]
    return (labels, result) if _fits(labels, result, shapes) else None


def _expand(term: str, number: int) -> list[str]:
    """Return the labels of a term. Its ellipsis stands for `number` axes, which are aligned at the
    last one."""
    first, dots, last = term.partition(_ELLIPSIS)
    inner = [str(-place) for place in range(number, 0, -1)] if dots else []
    return [*first, *inner, *last]


def _fits(labels: Sequence[list[str]], result: list[str], shapes: Sequence[Shape | None]) -> bool:
    sizes: dict[str, int] = {}
    for term, shape in zip(labels, shapes, strict=True):
        for label, size in zip(term, shape or (), strict=True):
            if sizes.setdefault(label, size) != size:
                return False
    return len(set(result)) == len(result) and set(result) <= set(sizes) and 0 not in sizes.values()


def _multiply(
    op: Tape, left: _Operand, right: _Operand, kept: set[str], result: list[str]
) -> _Operand:
    """Return the product of two operands, summed over the shared axes that are no longer needed."""
    left, right = (
        _sum(op, left, kept | set(right.labels)),
        _sum(op, right, kept | set(left.labels)),
    )
    shared = [label for label in left.labels if label in right.labels]
    summed = [label for label in shared if label not in kept]
    batch = _sort((label for label in shared if label in kept), result)
    rows = [label for label in left.labels if label not in shared]
    columns = [label for label in right.labels if label not in shared]
    if rows and columns and [*columns, *rows] == _sort([*columns, *rows], result):
        left, right, rows, columns = right, left, columns, rows
    sizes = {**left.sizes, **right.sizes}
    labels = [*batch, *rows, *columns]
    if not summed:
        # Without summed axes, a product element by element is cheaper than a product of matrices
        # with one row.
        of_left = _shaped(op, _transpose(op, left, [*batch, *rows]), labels)
        of_right = _shaped(op, _transpose(op, right, [*batch, *columns]), labels)
        return _Operand(op.add("Mul", of_left, of_right), labels, sizes)
    of_left = _as_matrices(
        op, _transpose(op, left, [*batch, *rows, *summed]), len(batch), len(rows)
    )
    of_right = _as_matrices(
        op, _transpose(op, right, [*batch, *summed, *columns]), len(batch), len(summed)
    )
    product = op.add("MatMul", of_left, of_right)
    if len(rows) != 1 or len(columns) != 1:
        product = op.add("Reshape", product, op.ints([sizes[label] for label in labels]))
    return _Operand(product, labels, sizes)


def _sort(labels: Iterable[str], result: Sequence[str]) -> list[str]:
    """Sort labels in the order of the result; labels that it lacks come last."""
    return sorted(labels, key=lambda label: result.index(label) if label in result else len(result))


def _sum(op: Tape, operand: _Operand, kept: Iterable[str]) -> _Operand:
    """Return the operand summed over the axes that are not kept."""
    kept_labels = set(kept)
    axes = [axis for axis, label in enumerate(operand.labels) if label not in kept_labels]
    if not axes:
        return operand
    labels = [label for label in operand.labels if label in kept_labels]
    return _Operand(op.ReduceSum(operand.value, axes=axes, keepdims=0), labels, operand.sizes)


def _transpose(op: Tape, operand: _Operand, labels: list[str]) -> _Operand:
    """Return the operand with its axes in that order."""
    if operand.labels == labels:
        return operand
    order = [operand.labels.index(label) for label in labels]
    return _Operand(op.add("Transpose", operand.value, perm=order), labels, operand.sizes)


def _shaped(op: Tape, operand: _Operand, labels: list[str]) -> Value:
    """Return the operand with axes of one element for the labels that it lacks."""
    target = [operand.sizes[label] if label in operand.labels else 1 for label in labels]
    first = next(
        (place for place, label in enumerate(labels) if label in operand.labels), len(labels)
    )
    if target[first:] == operand.shape:
        return operand.value  # broadcasting adds axes in front
    return op.add("Reshape", operand.value, op.ints(target))


def _as_matrices(op: Tape, operand: _Operand, batch: int, rows: int) -> Value:
    """Return the operand as a stack of matrices: `batch` axes, one axis for `rows` axes, one for
    the rest."""
    shape = operand.shape
    middle = batch + rows
    target = [*shape[:batch], math.prod(shape[batch:middle]), math.prod(shape[middle:])]
    return operand.value if target == shape else op.add("Reshape", operand.value, op.ints(target))


@register("replace_nonzero", stage=Stage.PATTERNS)
class ReplaceNonzero(NodeRule):
    """NonZero of a tensor of which exactly one element is not zero becomes ArgMax: a static shape,
    on the user's word, for nobody can see that in a graph."""

    op_types = frozenset(("NonZero",))
    prefix = "place"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace a NonZero. ArgMax finds the place in the flattened tensor; divisions by the sizes
        give the index of each axis."""
        shape, source = site.facts.shape(site.node.input[0]), site.x
        if not shape or 0 in shape or not source.element_type:
            return None
        if source.element_type != TensorProto.BOOL:
            source = op.Cast(source, to=TensorProto.BOOL)
        source = op.Cast(source, to=TensorProto.FLOAT)
        if len(shape) > 1:
            source = op.Reshape(source, op.ints([-1]))
        place = op.ArgMax(source, axis=0, keepdims=1)
        places = []
        for axis in range(len(shape) - 1):
            inner = op.ints([math.prod(shape[axis + 1 :])])
            places.append(op.Div(place, inner))
            place = op.Sub(place, op.Mul(places[-1], inner))
        places = [op.Unsqueeze(index, axes=[0]) for index in (*places, place)]
        return op.Concat(*places, axis=0)
