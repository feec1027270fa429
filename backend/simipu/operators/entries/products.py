"""Entries of products, convolutions and recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping

from simipu.operators import counts, guards, nothing, wrapping
from simipu.operators.entries.makers import OF_OTHERS, PRODUCT, family, product
from simipu.operators.entry import Family, Operator, Rounding, first_of
from simipu.operators.formulas import composite, products
from simipu.operators.quantized_operands import biased
from simipu.operators.rules import computing as rows
from simipu.operators.signed_operands import signed_operand
from simipu.operators.windows import window_fault

_BOTH_SCALED = signed_operand(3, zero_point=5, other=0)
"""Guard of products with a scale and a zero point behind each operand."""
_MAX_INPUTS = 100
"""Upper bound on the number of inputs of a node with any number of inputs."""


PRODUCTS: Mapping[str, Operator] = {
    **product(
        "MatMul",
        rows.matmul,
        products.matmul,
        counts.matmul,
        (0, 1),
        PRODUCT,
        reads_mapped_weights=True,
        guard=first_of(guards.vector_product, nothing.unsigned_product),
        family=Family.PRODUCT,
        floats_only=True,
        sdk="yes",
    ),
    **product(
        "Gemm",
        rows.gemm,
        products.gemm,
        counts.gemm,
        (1,),
        PRODUCT,
        reads_mapped_weights=True,
        guard=first_of(biased, wrapping.matrix_product),
        family=Family.PRODUCT,
        floats_only=True,
        sdk=OF_OTHERS,
    ),
    **product(
        "Conv",
        rows.grouped("group"),
        products.convolution,
        counts.convolution,
        (1, 2),
        PRODUCT,
        fault=window_fault(filters=1),
        family=Family.CONVOLUTION,
        sdk="yes",
    ),
    **product(
        "ConvTranspose",
        rows.leading_axis,
        products.convolution,
        counts.transposed_convolution,
        (1, 2),
        Rounding.SUMMED,
        family=Family.CONVOLUTION,
        sdk="yes",
    ),
    # ONNX Runtime multiplies filters by windows, not windows by filters.
    **product(
        "ConvInteger",
        rows.leading_axis,
        composite.WIDENED_CONVOLUTION,
        counts.convolution,
        (1, 2, 3),
        guard=signed_operand(0, zero_point=2, other=1),
        fault=window_fault(filters=1),
        family=Family.CONVOLUTION,
    ),
    **product(
        "QLinearConv",
        rows.leading_axis,
        composite.SCALED_CONVOLUTION,
        counts.convolution,
        range(1, 9),
        guard=_BOTH_SCALED,
        fault=window_fault(filters=3),
        family=Family.CONVOLUTION,
    ),
    **product(
        "DeformConv",
        rows.leading_axes(0, 2, 4),
        composite.deformed,
        counts.convolution,
        (1, 3),
        family=Family.CONVOLUTION,
    ),
    **product(
        "MatMulInteger",
        rows.integer_matmul,
        composite.WIDENED_MATMUL,
        counts.matmul,
        range(4),
        guard=first_of(nothing.integer_product, signed_operand(1, zero_point=3, other=0)),
        family=Family.PRODUCT,
    ),
    **product(
        "QLinearMatMul",
        rows.quantized_matmul,
        composite.SCALED_MATMUL,
        counts.matmul,
        range(1, 8),
        guard=first_of(nothing.quantized_product, _BOTH_SCALED),
        family=Family.PRODUCT,
    ),
    **product(
        "Einsum",
        rows.einsum,
        composite.einsum,
        counts.einsum,
        range(_MAX_INPUTS),
        family=Family.PRODUCT,
        floats_only=True,
        sdk="PopRT's replace_einsum_with_matmul, as far as it is a product",
    ),
    **family("Attention", rows.attention, composite.attention, apart=(3,), unchecked_input=6),
    **product(
        "GRU LSTM RNN",
        rows.recurrent,
        products.recurrent,
        counts.recurrent,
        range(1, 8),
        guard=guards.recurrence,
        family=Family.RECURRENT,
        sdk="yes",
    ),
}
