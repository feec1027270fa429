"""The first cycle estimate: in the right region, monotonic, and never silent about what it cannot cost."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from simipu.cycles import Product, estimate_cycles, plan_product
from simipu.errors import CompileError
from simipu.target import TARGETS

C600 = TARGETS["ipu21"]


def matmul(rows, k, n, element_type=TensorProto.FLOAT16):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "matmul",
        [
            helper.make_tensor_value_info("a", element_type, [rows, k]),
            helper.make_tensor_value_info("b", element_type, [k, n]),
        ],
        [helper.make_tensor_value_info("c", element_type, [rows, n])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_large_matmul_reaches_most_of_the_peak_and_not_more():
    size = 4096
    cycles = estimate_cycles(matmul(size, size, size), C600)
    ideal = size**3 / (C600.half_macs_half_partials * C600.num_tiles)
    assert 0.4 < ideal / cycles < 1


def test_float_costs_more_than_half_and_float_partials_more_than_half_partials():
    half = estimate_cycles(matmul(2048, 2048, 2048), C600)
    partials = estimate_cycles(matmul(2048, 2048, 2048), C600, half_partials=False)
    single = estimate_cycles(matmul(2048, 2048, 2048, TensorProto.FLOAT), C600)
    assert half < partials < single


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2048), st.integers(1, 2048), st.integers(1, 2048))
def test_more_of_any_dimension_never_costs_much_less(rows, k, n):
    base = plan_product(Product(1, rows, k, n, 1, 2, 2), C600)
    for grown in (
        Product(1, 2 * rows, k, n, 1, 2, 2),
        Product(1, rows, 2 * k, n, 1, 2, 2),
        Product(1, rows, k, 2 * n, 1, 2, 2),
    ):
        assert plan_product(grown, C600) >= 0.9 * base


def test_resnet50_at_batch_1_is_within_half_of_the_published_time():
    """C600, fp16: 0.321 ms per iteration measured, of which the host takes a part (graphcore/PopRT benchmarks)."""
    from pathlib import Path

    from poprt import Converter

    light = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    model = Converter(precision="fp16").convert(onnx.load(light))
    milliseconds = C600.seconds(estimate_cycles(model, C600)) * 1e3
    assert 0.16 < milliseconds < 0.48


def test_a_tensor_of_unknown_shape_is_named():
    model = matmul(4, 4, 4)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(CompileError, match="shape of 'a' is not known"):
        estimate_cycles(model, C600)


def test_cycles_are_whole_numbers(linear):
    from poprt import Converter

    cycles = estimate_cycles(Converter(batch_size=4).convert(linear), C600)
    assert isinstance(cycles, int | np.integer)
    assert cycles > 0
