"""Tests of the costs of single operators relative to each other: each has a formula, or is reported
as guessed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cost_models import C600, cycles, one_node
from onnx import TensorProto, helper, numpy_helper
from poprt.pipeline import estimate
from simipu.cost import CostOptions, Estimate, OperatorCost
from simipu.errors import CompileError
from simipu.operators import names_where
from simipu.operators.formulas.elementwise import guess

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import networks


def test_an_operator_without_a_formula_is_costed_and_named() -> None:
    found = estimate(one_node("Det", [[64, 8, 8]]), C600)
    assert found.fallback_operators == {"Det": 1}
    assert found.cycles > cycles(one_node("Add", [[64, 8, 8], [64, 8, 8]]))


def test_only_what_depends_on_its_values_and_resembles_nothing_is_guessed() -> None:
    guessed = names_where(lambda operator: operator.cost is guess and not operator.refusal)
    apart = names_where(lambda operator: operator.taken_apart)
    assert guessed - apart == {
        "Det",
        "If",
        "Loop",
        "MaxRoiPool",
        "Multinomial",
        "Scan",
        "TfIdfVectorizer",
    }


def weighted(op_type: str, inputs: list[list[int]], element: int, **attributes: object) -> Estimate:
    """Estimate a node whose inputs after the first are weights."""
    model = one_node(op_type, inputs, element, **attributes)
    for value in list(model.graph.input)[1:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(TensorProto(name=value.name, data_type=element, dims=shape))
        model.graph.input.remove(value)
    return estimate(model, C600, CostOptions(partials_type="float"))


def test_an_einsum_of_two_operands_costs_what_its_product_does() -> None:
    einsum = one_node("Einsum", [[64, 128], [128, 32]], equation="ij,jk->ik")
    assert cycles(einsum) == cycles(one_node("MatMul", [[64, 128], [128, 32]]))
    heads = one_node("Einsum", [[2, 64, 8, 16], [2, 64, 8, 16]], equation="bqhd,bkhd->bhqk")
    assert cycles(heads) == cycles(one_node("MatMul", [[2, 8, 64, 16], [2, 8, 16, 64]]))
    assert cycles(one_node("Einsum", [[64, 128]], equation="ij->i")) == cycles(
        one_node("ReduceSum", [[64, 128]], keepdims=0)
    )


def test_whole_numbers_are_multiplied_as_halves_with_float_sums_and_cast_before_and_after() -> None:
    whole = weighted("MatMulInteger", [[64, 256], [256, 512]], TensorProto.INT8)
    half = weighted("MatMul", [[64, 256], [256, 512]], TensorProto.FLOAT16)
    assert not whole.fallback_operators
    assert whole.operators[0].work.macs == half.operators[0].work.macs
    assert half.cycles < whole.cycles < 2 * half.cycles


@pytest.mark.parametrize("rank", [3, 4])
def test_an_attention_costs_its_two_products_and_the_softmax_between(rank: int) -> None:
    shape = [2, 8, 64, 16] if rank == 4 else [2, 64, 128]
    heads = {} if rank == 4 else {"q_num_heads": 8, "kv_num_heads": 8}
    plain, masked = (
        estimate(with_opset(one_node("Attention", [shape] * 3 + more, **heads), 23), C600)
        for more in ([], [[64, 64]])
    )
    parts = [
        one_node("MatMul", [[2, 8, 64, 16], [2, 8, 16, 64]]),
        one_node("Softmax", [[2, 8, 64, 64]]),
        one_node("MatMul", [[2, 8, 64, 64], [2, 8, 64, 16]]),
    ]
    assert not plain.fallback_operators
    assert plain.operators[0].work.macs == 2 * 2 * 8 * 64 * 64 * 16
    # Except for the operands' layouts, which a single operator need not change.
    assert 0.5 * sum(map(cycles, parts)) < plain.cycles <= sum(map(cycles, parts))
    assert plain.cycles < masked.cycles < 1.5 * plain.cycles


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_attention_without_all_of_its_operands_is_guessed(missing: int) -> None:
    model = with_opset(one_node("Attention", [[2, 8, 64, 16]] * 3), 23)
    model.graph.node[0].input[missing] = ""
    assert estimate(model, C600).fallback_operators == {"Attention": 1}


def with_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    model.opset_import[0].version = version
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_sorting_more_values_takes_more_rounds() -> None:
    few, many = (
        estimate(one_node_of_constants("TopK", [64, length], np.array([4])), C600).operators[0].work
        for length in (16, 256)
    )
    assert (few.steps, many.steps) == (4 * 5 // 2, 8 * 9 // 2)
    assert few.compute < many.compute


def one_node_of_constants(
    op_type: str, shape: list[int], *constants: np.ndarray, opset: int = 20, **attributes: object
) -> onnx.ModelProto:
    """Return a model of one node whose inputs after the first are the given constants."""
    x = helper.make_tensor_value_info("x0", TensorProto.FLOAT16, shape)
    tensors = [numpy_helper.from_array(value, f"x{i}") for i, value in enumerate(constants, 1)]
    outputs = ["y", "indices"] if op_type == "TopK" else ["y"]
    inputs = ["x0", *(tensor.name for tensor in tensors)]
    node = helper.make_node(op_type, inputs, outputs, name="node", **attributes)
    graph = helper.make_graph([node], "graph", [x], [onnx.ValueInfoProto(name="y")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


@pytest.mark.parametrize(
    "model",
    [
        one_node_of_constants("STFT", [2, 512], np.array(64), np.ones(128, np.float16)),
        one_node_of_constants("DFT", [2, 128, 1]),
        one_node_of_constants("AffineGrid", [2, 2, 3], np.array([2, 1, 8, 8])),
        one_node_of_constants("Col2Im", [1, 8 * 9, 36], np.array([8, 8]), np.array([3, 3])),
        one_node_of_constants("RandomNormalLike", [64, 64]),
        one_node("GridSample", [[2, 8, 16, 16], [2, 9, 9, 2]]),
        one_node("DeformConv", [[1, 8, 16, 16], [4, 8, 3, 3], [1, 18, 14, 14]]),
        one_node("Shrink", [[64, 64]]),
        one_node("BitwiseAnd", [[64, 64], [64, 64]], TensorProto.INT32),
        with_opset(one_node("RotaryEmbedding", [[2, 8, 64, 16], [2, 64, 8], [2, 64, 8]]), 23),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_rarer_operators_have_formulas_too(model: onnx.ModelProto) -> None:
    result = estimate(model, C600)
    assert result.cycles > 0
    assert not result.fallback_operators


def test_random_operators_without_inputs_cost_time_in_every_run() -> None:
    draw = helper.make_node(
        "RandomNormal", [], ["y"], name="draw", shape=[64, 1472], dtype=TensorProto.FLOAT
    )
    graph = helper.make_graph([draw], "graph", [], [onnx.ValueInfoProto(name="y")])
    found = estimate(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), C600)
    assert found.cycles > 0
    assert found.by_memory()["live"] >= 64 * 4


def test_views_cost_nothing_and_moved_data_do() -> None:
    assert cycles(one_node("Flatten", [[4, 8, 8]])) == 0
    assert cycles(one_node("Transpose", [[64, 64, 64]], perm=[0, 2, 1])) == 0
    assert cycles(one_node("DepthToSpace", [[1, 64, 64, 64]], blocksize=2)) > 0


@pytest.mark.parametrize(
    "model",
    [
        one_node("Softmax", [[64, 128]]),
        one_node("Pow", [[64, 128], [1]]),
        one_node("MaxPool", [[1, 8, 16, 16]], kernel_shape=[3, 3]),
        one_node("ReduceMean", [[64, 128]]),
        one_node("Einsum", [[4, 8, 6], [4, 6, 5], [5, 9]], equation="bij,bjk,kl"),
        one_node("Einsum", [[3, 4, 6], [6, 5]], equation="...j,jk->...k"),
        one_node("LRN", [[1, 8, 16, 16]], size=5),
        one_node("ArgMax", [[64, 128]], axis=1),
        one_node("Conv", [[1, 32, 16, 16], [32, 1, 3, 3]], group=32),
        one_node("Conv", [[1, 32, 16, 16], [64, 8, 3, 3]], group=4),
        one_node("ConvTranspose", [[1, 8, 16, 16], [8, 16, 2, 2]], strides=[2, 2]),
        one_node("LSTM", [[5, 2, 16], [1, 64, 16], [1, 64, 16]], hidden_size=16),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_common_operators_have_formulas(model: onnx.ModelProto) -> None:
    result = estimate(model, C600)
    assert result.cycles > 0
    assert not result.fallback_operators


def test_a_tensor_of_unknown_shape_is_named() -> None:
    model = networks.matmul(4, 4, 4)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    with pytest.raises(CompileError, match="shape of 'x' is not known"):
        estimate(model, C600)


def test_activations_are_cast_before_each_product_in_fp8() -> None:
    def product(element: int) -> OperatorCost:
        model = networks.matmul(4096, 1024, 1024)
        model.graph.initializer[0].data_type = element
        return estimate(model, C600).operators[0]

    half, quarter = product(TensorProto.FLOAT16), product(TensorProto.FLOAT8E4M3FNUZ)
    assert quarter.work.macs == half.work.macs
    assert quarter.work.code.vertices > half.work.code.vertices
    assert quarter.cycles < half.cycles


@pytest.mark.parametrize(
    "model",
    [
        one_node("Gemm", [[0, 8], [8, 4]]),
        one_node("Gemm", [[4, 0], [0, 4]]),
        one_node("Gemm", [[4, 8], [8, 0]]),
        one_node("MatMul", [[0, 8], [8, 4]]),
        one_node("MatMul", [[2, 0, 8], [2, 8, 0]]),
        one_node("Einsum", [[0, 8], [8, 4]], equation="ij,jk->ik"),
        one_node("Conv", [[0, 8, 4, 4], [4, 8, 3, 3]]),
        one_node("Conv", [[0, 8, 4, 4], [8, 1, 3, 3]], group=8),
        one_node("Softmax", [[0, 8]]),
        one_node("Add", [[0, 8], [0, 8]]),
        one_node("Transpose", [[0, 8]], perm=[1, 0]),
        one_node("Gather", [[4, 0], [2, 2]]),
        one_node("ReduceSum", [[0, 8]], keepdims=0),
        one_node("MaxPool", [[0, 8, 4, 4]], kernel_shape=[3, 3]),
        one_node("DFT", [[0, 128, 1]]),
        one_node("DFT", [[4, 0, 1]]),
        one_node("Det", [[0, 8, 8]]),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_a_tensor_without_elements_is_costed_without_a_fault(model: onnx.ModelProto) -> None:
    (operator,) = estimate(model, C600).operators
    assert operator.cycles >= 0
    assert operator.work.macs == 0 or operator.op_type in {
        "Gemm",
        "Conv",
        "MatMul",
        "Einsum",
        "DFT",
    }


def test_the_statistics_of_a_norm_have_a_layout_of_their_own() -> None:
    """They have one axis, and the norm's result four, in pieces of its last; a Cast reads them."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 4, 2, 2])]
    outputs = [helper.make_tensor_value_info("half", TensorProto.FLOAT16, [4])]
    weights = [numpy_helper.from_array(np.ones(4, np.float16), name) for name in ("s", "b")]
    product = helper.make_node("MatMul", ["x", "x"], ["m"])
    norm = helper.make_node(
        "GroupNormalization",
        ["m", "s", "b"],
        ["y", "mean", "deviation"],
        domain="ai.graphcore",
        num_groups=2,
    )
    cast = helper.make_node("Cast", ["mean"], ["half"], to=TensorProto.FLOAT16)
    graph = helper.make_graph([product, norm, cast], "norm", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.graphcore", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert estimate(model, C600).cycles > 0
