"""Entries of products, convolutions and recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simipu.operators import counts, guards, nothing, wrapping
from simipu.operators.entries.makers import OF_OTHERS, PRODUCT, family, product
from simipu.operators.entry import Family, Operator, Rounding, Task, Terms, first_of
from simipu.operators.formulas import composite, products
from simipu.operators.quantized_operands import biased, paired
from simipu.operators.rules import computing as rows
from simipu.operators.signed_operands import signed_operand
from simipu.operators.windows import window_fault

_BOTH_SCALED = signed_operand(3, zero_point=5, other=0)
"""Guard of products with a scale and a zero point behind each operand."""
_MAX_INPUTS = 100
"""Upper bound on the number of inputs of a node with any number of inputs."""


def recurrent(
    name: str, gates: int, activations: Sequence[str], ignored: str
) -> dict[str, Operator]:
    """Return the entry of a recurrent network; the reference ignores the attributes `ignored`."""
    return product(
        name,
        rows.recurrent,
        products.recurrent,
        counts.recurrent,
        range(1, 8),
        gates=gates,
        activations=activations,
        guard=guards.recurrence,
        family=Family.RECURRENT,
        sdk="yes",
        wrong_in_reference=True,
        ignored_by_reference=ignored.split(),
    )


PRODUCTS: Mapping[str, Operator] = {
    **product(
        "MatMul",
        rows.matmul,
        products.matmul,
        counts.matmul,
        (0, 1),
        PRODUCT,
        reads_mapped_weights=True,
        guard=first_of(guards.vector_product, nothing.unsigned_product, paired),
        family=Family.PRODUCT,
        floats_only=True,
        sdk="yes",
        adds=Terms.SIGNED,
    ),
    **product(
        "Gemm",
        rows.gemm,
        products.gemm,
        counts.gemm,
        (1,),
        PRODUCT,
        reads_mapped_weights=True,
        guard=first_of(biased, wrapping.matrix_product, paired),
        family=Family.PRODUCT,
        floats_only=True,
        sdk=OF_OTHERS,
        adds=Terms.SIGNED,
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
        adds=Terms.SIGNED,
    ),
    **product(
        "ConvTranspose",
        rows.leading_axis,
        products.convolution,
        counts.transposed_convolution,
        (1, 2),
        Rounding.SUMMED,
        guard=nothing.transposed_convolution,
        family=Family.CONVOLUTION,
        sdk="yes",
        adds=Terms.SIGNED,
        task=Task.ENLARGING,
        wrong_in_reference=True,
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
        is_integer_product=True,
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
        wrong_in_reference=True,
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
        is_integer_product=True,
    ),
    **product(
        "QLinearMatMul",
        rows.quantized_matmul,
        composite.SCALED_MATMUL,
        counts.matmul,
        range(1, 8),
        guard=first_of(nothing.quantized_product, _BOTH_SCALED),
        family=Family.PRODUCT,
        wrong_in_reference=True,
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
        adds=Terms.SIGNED,
    ),
    **family("Attention", rows.attention, composite.attention, apart=(3,), unchecked_input=6),
    **recurrent("GRU", 3, ("Sigmoid", "Tanh"), "activation_alpha activation_beta activations clip"),
    **recurrent(
        "LSTM",
        4,
        ("Sigmoid", "Tanh", "Tanh"),
        "activation_alpha activation_beta activations clip input_forget",
    ),
    **recurrent("RNN", 1, ("Tanh",), "clip"),
}
