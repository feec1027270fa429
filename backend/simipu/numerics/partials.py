"""Products whose sums are kept in half, as the chip keeps them with half partials.

The AMP unit sums the products of one block of input channels in float and stores this sum plus the
previous one as a half: 16 channels of half operands, 32 of fp8 (poplibs, getWeightsPerConvUnit). So
a product becomes a series of small ones, each of whose sums is rounded: the blocks of a matrix
product in order of k, those of a convolution by channels, then by kernel position. The spread of
blocks over tiles by a plan, which changes the order, is not modelled. The order of an unsplit
product also occurs on the chip, and the errors of all orders have the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnxgraph import Tape, attribute

from simipu.numerics.blocks import Round, Shape, multiply_blocks
from simipu.operators import operator_of

HALF_BLOCK, QUARTER_BLOCK = 16, 32
"""Number of input channels whose products are summed before they are rounded."""
BIAS = 2
"""Index of the input of a convolution or a Gemm that is added to its product."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Shapes of a product's operands and result, and how its sums are rounded."""

    left: Shape
    right: Shape
    result: Shape
    block: int
    round: Round

    def has_partials(self, node: onnx.NodeProto) -> bool:
        """Return whether `add_product` can split the node: the sizes that it needs are known, and
        there are products to sum."""
        if operator_of(node).is_convolution:
            sizes = (*self.left[1:], *self.right, *self.result[1:])
            is_same_rank = len(self.left) == len(self.right) == len(self.result)
            return is_same_rank and None not in sizes and 0 not in sizes
        # A vector times a vector is computed by the dot product vertex.
        is_matrix_product = min(len(self.left), len(self.right)) > 1
        return is_matrix_product and bool(self.depth(node))

    def depth(self, node: onnx.NodeProto) -> int | None:
        """Return the number of channels of a matrix product, or None if it is unknown."""
        if not self.left:
            return None
        return self.left[0 if node.op_type == "Gemm" and attribute(node, "transA", 0) else -1]


def add_product(op: Tape, node: onnx.NodeProto, operands: Operands) -> str:
    """Add the nodes that compute a matrix product or a convolution in half partials, and return the
    name of the result, which is not yet rounded if a bias was added."""
    left, right, result = operands.left, operands.right, operands.result
    if operator_of(node).is_convolution:
        # Imported here: most graphs have no convolution that no kernel computes.
        from simipu.numerics.convolution import convolve

        total = convolve(op, node, (left, right, result), operands.block, operands.round)
        return finish_product(op, total, node, result, _add_node)
    names, shapes = list(node.input[:2]), [left, right]
    # A Gemm also transposes and scales: transposing comes before the sums, scaling after them.
    for i, transposed in enumerate(("transA", "transB") if node.op_type == "Gemm" else ()):
        if attribute(node, transposed, 0):
            names[i], shapes[i] = op.add("Transpose", names[i], perm=[1, 0]), shapes[i][::-1]
    sizes = shapes[0], shapes[1]
    total = multiply_blocks(op, names[0], names[1], sizes, operands.block, operands.round)
    return finish_product(op, total, node, result, _add_node)


def has_bias(node: onnx.NodeProto) -> bool:
    """Return whether a convolution or a Gemm has a bias."""
    return len(node.input) > BIAS and bool(node.input[BIAS])


Apply = Callable[[Tape, str, str, str, Shape | None], str]
"""Function that adds an operator of two tensors, with a float result, to a tape, and returns the
name of the result. It gets the shape of the second tensor, or None for a tensor of the model."""


def _add_node(op: Tape, op_type: str, left: str, right: str, _shape: Shape | None) -> str:
    return op.add(op_type, left, right)


def finish_product(op: Tape, total: str, node: onnx.NodeProto, result: Shape, apply: Apply) -> str:
    """Add the bias and the scales of a Gemm or a convolution to its product."""
    if operator_of(node).is_convolution:
        if not has_bias(node):
            return total
        ones = [1] * (len(result) - 2)
        bias = op.add("Reshape", node.input[BIAS], op.ints([-1, *ones]))
        return apply(op, "Add", total, bias, (result[1], *ones))
    if node.op_type != "Gemm":
        return total
    # alpha * (A x B) + beta * C, in float: the caller rounds once, at the end.
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if alpha != 1:
        total = apply(op, "Mul", total, op.constant(alpha), ())
    if not has_bias(node):
        return total
    addend: str = node.input[BIAS]
    if beta != 1:
        addend = op.add("Mul", addend, op.constant(beta))
    return apply(op, "Add", total, addend, None)
