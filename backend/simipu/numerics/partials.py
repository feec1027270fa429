"""Products whose sums are kept in half, as the chip keeps them with half partials.

The AMP unit adds up the products of one block of input channels in float and stores the sum with what was
there before as a half: 16 channels of half operands, 32 of fp8 (poplibs, getWeightsPerConvUnit). So a product
becomes a series of small ones, each of whose sums is rounded; the blocks of a matrix product in order of k,
those of a convolution by channels, then by kernel position. How a plan spreads the blocks over tiles, which
changes the order, is not followed: the order of an unsplit product is one that the chip has, too, and the
errors of all orders are of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnxgraph import Chain, attribute

from simipu.numerics.blocks import Round, Shape, multiply_blocks
from simipu.numerics.convolution import CONVOLUTIONS, convolve

HALF_BLOCK, QUARTER_BLOCK = 16, 32
"""Input channels whose products are added up before they are rounded."""
BIAS = 2
"""The input of a convolution or a Gemm that is added to its product."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The shapes of a product's operands and result, and how its sums are rounded."""

    left: Shape
    right: Shape
    result: Shape
    block: int
    round: Round

    def has_partials(self, node: onnx.NodeProto) -> bool:
        """Whether `add_product` can take the node apart: what that needs is known, and there are products to
        add up."""
        if node.op_type in CONVOLUTIONS:
            sizes = (*self.left[1:], *self.right, *self.result[1:])
            return (
                len(self.left) == len(self.right) == len(self.result) and None not in sizes and 0 not in sizes
            )
        # A vector times a vector is the dot product vertex's.
        is_matrix_product = min(len(self.left), len(self.right)) > 1
        return is_matrix_product and bool(self.depth(node))

    def depth(self, node: onnx.NodeProto) -> int | None:
        """Channels of a matrix product, as far as they are known."""
        if not self.left:
            return None
        return self.left[0 if node.op_type == "Gemm" and attribute(node, "transA", 0) else -1]


def add_product(chain: Chain, node: onnx.NodeProto, operands: Operands) -> str:
    """The nodes that compute a matrix product or a convolution in half partials; its result, not yet rounded
    where a bias was added."""
    left, right, result = operands.left, operands.right, operands.result
    if node.op_type in CONVOLUTIONS:
        total = convolve(chain, node, (left, right, result), operands.block, operands.round)
        return finish_product(chain, total, node, result, _add_node)
    names, shapes = list(node.input[:2]), [left, right]
    # A Gemm also transposes and scales: it does the one before the sums and the other, `_scale`, after them.
    for i, transposed in enumerate(("transA", "transB") if node.op_type == "Gemm" else ()):
        if attribute(node, transposed, 0):
            names[i], shapes[i] = chain.add("Transpose", names[i], perm=[1, 0]), shapes[i][::-1]
    sizes = shapes[0], shapes[1]
    total = multiply_blocks(chain, names[0], names[1], sizes, operands.block, operands.round)
    return finish_product(chain, total, node, result, _add_node)


def has_bias(node: onnx.NodeProto) -> bool:
    """Whether a convolution or a Gemm has one."""
    return len(node.input) > BIAS and bool(node.input[BIAS])


Apply = Callable[[Chain, str, str, str, Shape | None], str]
"""Adds to a chain an operator of two tensors, which gives a float; its result. Of the second one the shape is
given; None: it is one of the model's."""


def _add_node(chain: Chain, op_type: str, left: str, right: str, _shape: Shape | None) -> str:
    return chain.add(op_type, left, right)


def finish_product(chain: Chain, total: str, node: onnx.NodeProto, result: Shape, apply: Apply) -> str:
    """What a Gemm or a convolution does with its product."""
    if node.op_type in CONVOLUTIONS:
        if not has_bias(node):
            return total
        ones = [1] * (len(result) - 2)
        bias = chain.add("Reshape", node.input[BIAS], chain.shape([-1, *ones]))
        return apply(chain, "Add", total, bias, (result[1], *ones))
    if node.op_type != "Gemm":
        return total
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if alpha != 1:
        total = apply(chain, "Mul", total, chain.constant(alpha), ())
    if not has_bias(node):
        return total
    bias = node.input[BIAS] if beta == 1 else chain.add("Mul", node.input[BIAS], chain.constant(beta))
    return apply(chain, "Add", total, bias, None)
