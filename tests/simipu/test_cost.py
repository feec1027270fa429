"""The cost model: causes sum, more work costs more, nothing is silent, and published times are met roughly."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from simipu.cost import CostOptions, OperatorCost, estimate
from simipu.cost.products import Product, Settings, plan_product
from simipu.errors import CompileError
from simipu.target import TARGETS, Target

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import networks

C600 = TARGETS["ipu21"]


def one_node(
    op_type: str, shapes: list[list[int]], element: int = TensorProto.FLOAT16, **attributes: object
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(f"x{i}", element, shape) for i, shape in enumerate(shapes)]
    node = helper.make_node(op_type, [value.name for value in inputs], ["y"], name="node", **attributes)
    graph = helper.make_graph([node], "graph", inputs, [onnx.ValueInfoProto(name="y")])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def cycles(model: onnx.ModelProto, target: Target = C600, **options: object) -> int:
    return estimate(model, target, CostOptions(**options)).cycles


def test_a_large_matmul_reaches_most_of_the_peak_and_not_more() -> None:
    size = 4096
    ideal = size**3 / (C600.half_macs_half_partials * C600.num_tiles)
    assert 0.4 < ideal / cycles(networks.matmul(size, size, size)) < 1


def test_float_costs_more_than_half_and_float_partials_more_than_half_partials() -> None:
    half = cycles(networks.matmul(2048, 2048, 2048))
    partials = cycles(networks.matmul(2048, 2048, 2048), partials_type="float")
    assert half < partials < cycles(networks.matmul(2048, 2048, 2048, TensorProto.FLOAT))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2048), st.integers(1, 2048), st.integers(1, 2048))
def test_more_of_any_dimension_never_costs_much_less(rows: int, k: int, n: int) -> None:
    def total(product: Product) -> int:
        plan = plan_product(product, C600, Settings())
        return plan.cycles + plan.steps * C600.internal_sync_cycles

    base = total(Product(1, rows, k, n))
    for grown in (Product(1, 2 * rows, k, n), Product(1, rows, 2 * k, n), Product(1, rows, k, 2 * n)):
        assert total(grown) >= 0.9 * base


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(sorted(TARGETS)),
    st.sampled_from([(1, 2), (2, 2), (2, 4), (4, 4)]), st.floats(0.05, 1.0),
)  # fmt: skip
def test_plans_keep_to_the_tiles_and_to_the_memory_they_say_they_keep_to(
    groups: int, rows: int, k: int, n: int, name: str, widths: tuple[int, int], proportion: float
) -> None:
    target = TARGETS[name]
    plan = plan_product(Product(groups, rows, k, n, *widths), target, Settings(proportion))
    assert 1 <= plan.tiles <= target.num_tiles
    assert plan.compute > 0
    assert plan.exchange >= 0
    assert plan.fits == (plan.temporary_bytes <= proportion * target.bytes_per_tile)


def test_a_narrow_side_streams_past_the_wide_one_whichever_it_is() -> None:
    """Dense products with few columns take what loading the wide operand as coefficients costs (measured on a Bow)."""
    tall, wide = (plan_product(product, C600, Settings()) for product in (Product(1, 8192, 512, 16), Product(1, 16, 512, 8192)))
    assert tall == wide
    assert plan_product(Product(1, 8192, 512, 16, convolution=True), C600, Settings()) != tall


def test_less_memory_never_makes_a_plan_faster() -> None:
    product = Product(1, 4096, 4096, 4096)
    found = [plan_product(product, C600, Settings(proportion)).cycles for proportion in (0.6, 0.2, 0.05)]
    assert found == sorted(found)
    assert found[0] < found[-1]


@pytest.mark.parametrize("options", [{}, {"num_io_tiles": 32}, {"partials_type": "float"}])
def test_every_cycle_of_every_tile_has_one_cause(options: dict[str, object]) -> None:
    result = estimate(networks.resnet50(2), C600, CostOptions(**options))
    causes = result.by_cause()
    assert all(isinstance(value, int) and value >= 0 for value in causes.values())
    assert sum(causes.values()) == result.cycles * C600.num_tiles
    assert sum(result.by_operator().values()) == result.cycles == sum(operator.cycles for operator in result.operators)


def test_an_operator_without_a_formula_is_costed_and_named() -> None:
    found = estimate(one_node("Einsum", [[64, 64], [64, 64]], equation="ij,jk->ik"), C600)
    assert found.fallback_operators == {"Einsum": 1}
    assert found.cycles > cycles(one_node("Add", [[64, 64], [64, 64]]))


def test_views_cost_nothing_and_moved_data_do() -> None:
    assert cycles(one_node("Flatten", [[4, 8, 8]])) == 0
    assert cycles(one_node("Transpose", [[64, 64, 64]], perm=[0, 2, 1])) > 0


@pytest.mark.parametrize(
    "model",
    [
        one_node("Softmax", [[64, 128]]),
        one_node("Pow", [[64, 128], [1]]),
        one_node("MaxPool", [[1, 8, 16, 16]], kernel_shape=[3, 3]),
        one_node("ReduceMean", [[64, 128]]),
        one_node("Concat", [[4, 4], [4, 4]], axis=0),
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


def test_host_transfers_overlap_with_computing_only_where_there_are_io_tiles() -> None:
    model = networks.resnet50(16)
    plain, overlapped = (estimate(model, C600, CostOptions(num_io_tiles=tiles)) for tiles in (0, 32))
    assert plain.seconds_per_batch == pytest.approx(plain.compute_seconds + plain.host_seconds)
    assert overlapped.seconds_per_batch == pytest.approx(max(overlapped.compute_seconds, overlapped.host_seconds + 100e-6))
    assert plain.latency_seconds > plain.seconds_per_batch


def test_memory_grows_with_the_batch_until_it_does_not_fit() -> None:
    found = [estimate(networks.resnet50(batch), C600) for batch in (1, 8, 512)]
    assert [result.fits for result in found] == [True, True, False]
    assert all(sum(result.tile_bytes().values()) == result.peak_tile_bytes for result in found)
    assert found[0].weight_bytes == pytest.approx(25.6e6 * 2 / C600.num_tiles, rel=0.08)


@pytest.mark.parametrize(
    ("model", "tiles", "fits"),
    [
        (networks.resnet50(90), 32, True),
        (networks.resnet50(96), 32, False),
        (networks.bert_base(16, 256, fused_gelu=False, fused_norm=False), 0, True),
        (networks.bert_base(32, 256, fused_gelu=False, fused_norm=False), 0, False),
    ],
)
def test_what_fits_into_a_c600_is_said_to_fit(model: onnx.ModelProto, tiles: int, fits: bool) -> None:
    """With real data (graphcore/PopRT benchmarks); `benchmarks/validation.py` compares with all published verdicts."""
    assert estimate(model, C600, CostOptions(num_io_tiles=tiles)).fits == fits


def test_activations_are_cast_before_each_product_in_fp8() -> None:
    def product(element: int) -> OperatorCost:
        model = networks.matmul(4096, 1024, 1024)
        model.graph.initializer[0].data_type = element
        return estimate(model, C600).operators[0]

    half, quarter = product(TensorProto.FLOAT16), product(TensorProto.FLOAT8E4M3FNUZ)
    assert quarter.work.macs == half.work.macs
    assert quarter.work.code_bytes > half.work.code_bytes
    assert quarter.cycles < half.cycles


@pytest.mark.parametrize(
    ("model", "tiles", "milliseconds"),
    [
        (networks.resnet50(1), 32, 0.274),
        (networks.resnet50(32), 32, 2.247),
        (networks.bert_base(4, 256, fused_gelu=False, fused_norm=False), 0, 3.745),
    ],
)
def test_published_times_are_met_within_a_quarter(model: onnx.ModelProto, tiles: int, milliseconds: float) -> None:
    """C600, fp16 (graphcore/PopRT benchmarks); `benchmarks/validation.py` compares with all of them."""
    result = estimate(model, C600, CostOptions(num_io_tiles=tiles))
    assert result.compute_seconds * 1e3 == pytest.approx(milliseconds, rel=0.25)
