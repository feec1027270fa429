"""Half precision as the chip has it: every operator's result is rounded, and overflow is not hidden."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from simipu.numerics import lower


def half_chain(*operators: str) -> onnx.ModelProto:
    """x (op) w1 (op) w2 ... in half."""
    nodes = []
    previous = "x"
    for index, operator in enumerate(operators):
        nodes.append(helper.make_node(operator, [previous, f"w{index}"], [f"t{index}"]))
        previous = f"t{index}"
    random = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(random.uniform(0.5, 2, (8, 8)).astype(np.float16), f"w{index}")
        for index in range(len(operators))
    ]
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 8])],
        [helper.make_tensor_value_info(previous, TensorProto.FLOAT16, ["n", 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_elementwise_chains_equal_numpy_half_operator_by_operator(seed):
    x = np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float16)
    model = half_chain("Add", "Mul", "Sub", "Div")
    w = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    expected = ((x + w[0]) * w[1] - w[2]) / w[3]
    np.testing.assert_array_equal(run(lower(model), x), expected)


def test_a_matmul_rounds_its_float_sum_once():
    x = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float16)
    model = half_chain("MatMul", "MatMul")
    w = [numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer]
    first = (x.astype(np.float64) @ w[0]).astype(np.float16)
    expected = (first.astype(np.float64) @ w[1]).astype(np.float16)
    np.testing.assert_allclose(run(lower(model), x), expected, rtol=2**-10)


def test_overflow_reaches_infinity_where_onnx_runtime_alone_hides_it():
    model = half_chain("Mul", "Div")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.full((8, 8), 100, np.float16), tensor.name))
    x = np.full((8, 8), 1000, np.float16)
    assert np.isinf(run(lower(model), x)).all()


def test_names_and_types_at_the_borders_stay():
    model = half_chain("Add")
    lowered = lower(model)
    assert lowered.graph.input == model.graph.input
    assert lowered.graph.output == model.graph.output
    onnx.checker.check_model(lowered)


def test_a_model_without_halves_comes_back_as_it_is(linear):
    assert lower(linear) is linear


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_operators_that_choose_among_values_are_not_rounded_again(operator):
    lowered = lower(half_chain(operator))
    assert [node.op_type for node in lowered.graph.node] == ["Cast", operator, "Cast"]
