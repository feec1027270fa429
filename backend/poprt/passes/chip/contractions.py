"""Passes that replace operators whose meaning depends on their shapes (Einsum, NonZero) by
operators for which the chip has formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto
from onnxgraph import attribute

from poprt.rewrite.base import Stage, register
from poprt.rewrite.names import NodeBuilder
from poprt.rewrite.rules import NodeRule
from poprt.rewrite.views import GraphView, Shape

_ELLIPSIS = "..."


@dataclass(slots=True)
class Operand:
    """Tensor on the way to an Einsum's result, with a label for each axis and the size of each
    label."""

    name: str
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

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace an Einsum of floats whose shapes are known."""
        shapes = [view.shape(name) for name in node.input]
        if not all(view.is_float(name) for name in node.input):
            return None
        found = parse_equation(attribute(node, "equation", b"").decode(errors="replace"), shapes)
        if found is None:
            return None
        terms, result = found
        chain = view.start(node, "einsum")
        operands = [
            Operand(name, labels, dict(zip(labels, shape or (), strict=True)))
            for name, labels, shape in zip(node.input, terms, shapes, strict=True)
        ]
        left = operands[0]
        for place, right in enumerate(operands[1:], 2):
            kept = {label for each in operands[place:] for label in each.labels} | set(result)
            left = _multiply(chain, left, right, kept, result)
        left = _transpose(chain, _sum(chain, left, result), result)
        if not chain.nodes or left.name in node.input:
            chain.add("Identity", left.name)
        chain.nodes[-1].output[0] = node.output[0]
        return chain.end(node)


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
    if min(rest) < 0 or any(len(each) != rank for each, rank in zip(labels, ranks, strict=True)):
        return None
    if any(len(set(each)) != len(each) for each in labels):
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
    inner = [str(-each) for each in range(number, 0, -1)] if dots else []
    return [*first, *inner, *last]


def _fits(labels: Sequence[list[str]], result: list[str], shapes: Sequence[Shape | None]) -> bool:
    sizes: dict[str, int] = {}
    for each, shape in zip(labels, shapes, strict=True):
        for label, size in zip(each, shape or (), strict=True):
            if sizes.setdefault(label, size) != size:
                return False
    return len(set(result)) == len(result) and set(result) <= set(sizes) and 0 not in sizes.values()


def _multiply(
    chain: NodeBuilder, left: Operand, right: Operand, kept: set[str], result: list[str]
) -> Operand:
    """Return the product of two operands, summed over the shared axes that are no longer needed."""
    left, right = (
        _sum(chain, left, kept | set(right.labels)),
        _sum(chain, right, kept | set(left.labels)),
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
        of_left = _shaped(chain, _transpose(chain, left, [*batch, *rows]), labels)
        of_right = _shaped(chain, _transpose(chain, right, [*batch, *columns]), labels)
        return Operand(chain.add("Mul", of_left, of_right), labels, sizes)
    of_left = _as_matrices(
        chain, _transpose(chain, left, [*batch, *rows, *summed]), len(batch), len(rows)
    )
    of_right = _as_matrices(
        chain, _transpose(chain, right, [*batch, *summed, *columns]), len(batch), len(summed)
    )
    made = chain.add("MatMul", of_left, of_right)
    if len(rows) != 1 or len(columns) != 1:
        made = chain.add("Reshape", made, chain.shape([sizes[label] for label in labels]))
    return Operand(made, labels, sizes)


def _sort(labels: Iterable[str], result: Sequence[str]) -> list[str]:
    """Sort labels in the order of the result; labels that it lacks come last."""
    return sorted(labels, key=lambda label: result.index(label) if label in result else len(result))


def _sum(chain: NodeBuilder, operand: Operand, kept: Iterable[str]) -> Operand:
    """Return the operand summed over the axes that are not kept."""
    wanted = set(kept)
    axes = [axis for axis, label in enumerate(operand.labels) if label not in wanted]
    if not axes:
        return operand
    labels = [label for label in operand.labels if label in wanted]
    return Operand(chain.reduce_sum_as(chain.new_name(), operand.name, axes), labels, operand.sizes)


def _transpose(chain: NodeBuilder, operand: Operand, labels: list[str]) -> Operand:
    """Return the operand with its axes in that order."""
    if operand.labels == labels:
        return operand
    order = [operand.labels.index(label) for label in labels]
    return Operand(chain.add("Transpose", operand.name, perm=order), labels, operand.sizes)


def _shaped(chain: NodeBuilder, operand: Operand, labels: list[str]) -> str:
    """Return the operand with axes of one element for the labels that it lacks."""
    wanted = [operand.sizes[label] if label in operand.labels else 1 for label in labels]
    first = next(
        (place for place, label in enumerate(labels) if label in operand.labels), len(labels)
    )
    if wanted[first:] == operand.shape:
        return operand.name  # broadcasting adds axes in front
    return chain.add("Reshape", operand.name, chain.shape(wanted))


def _as_matrices(chain: NodeBuilder, operand: Operand, batch: int, rows: int) -> str:
    """Return the operand as a stack of matrices: `batch` axes, one axis for `rows` axes, one for
    the rest."""
    shape = operand.shape
    middle = batch + rows
    wanted = [*shape[:batch], math.prod(shape[batch:middle]), math.prod(shape[middle:])]
    return (
        operand.name if wanted == shape else chain.add("Reshape", operand.name, chain.shape(wanted))
    )


@register("replace_nonzero", stage=Stage.PATTERNS)
class ReplaceNonzero(NodeRule):
    """NonZero of a tensor of which exactly one element is not zero becomes ArgMax: a static shape,
    on the user's word, for nobody can see that in a graph."""

    op_types = frozenset(("NonZero",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace a NonZero. ArgMax finds the place in the flattened tensor; divisions by the sizes
        give the index of each axis."""
        shape, source = view.shape(node.input[0]), node.input[0]
        if not shape or 0 in shape or not view.type(source):
            return None
        chain = view.start(node, "place")
        if view.type(source) != TensorProto.BOOL:
            source = chain.add("Cast", source, to=TensorProto.BOOL)
        source = chain.add("Cast", source, to=TensorProto.FLOAT)
        if len(shape) > 1:
            source = chain.add("Reshape", source, chain.shape([-1]))
        place = chain.add("ArgMax", source, axis=0, keepdims=1)
        places = []
        for axis in range(len(shape) - 1):
            inner = chain.shape([math.prod(shape[axis + 1 :])])
            places.append(chain.add("Div", place, inner))
            place = chain.add("Sub", place, chain.add("Mul", places[-1], inner))
        places = [chain.unsqueeze_as(chain.new_name(), each, [0]) for each in (*places, place)]
        chain.add_as(node.output[0], "Concat", *places, axis=0)
        return chain.end(node)
