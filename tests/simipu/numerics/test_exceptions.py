"""Tests of debug.floatPointOpException: a run ends only where a result in half is too large or
NaN."""

from dataclasses import replace

import numpy as np
import pytest
from half_models import (
    FLOAT_PARTIALS,
    HALF_PARTIALS,
    NAN_ON_OVERFLOW,
    compute,
    half_model,
    halves,
    quarter_model,
)
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from simipu import LoadError, RunError
from simipu.engines.computed import GraphOptions, Lowered, make_graph
from simipu.kernels import find_kernels
from simipu.numerics import KernelUse, lower
from simipu.numerics.quarter import F143, encode

needs_kernels = pytest.mark.skipif(not find_kernels().are_there, reason="no kernels")
ALL = [replace(each, raises=True) for each in (HALF_PARTIALS, NAN_ON_OVERFLOW, FLOAT_PARTIALS)]
INF, NAN = np.inf, np.nan


def one(operator, *shapes, **attributes):
    """Return a graph of one operator whose operands are inputs."""
    names = "xyz"[: len(shapes)]
    node = helper.make_node(operator, list(names), ["r"], **attributes)
    return half_model([node], dict(zip(names, shapes, strict=True)), "r", {})


def filled(shape, *values):
    """Return zeros with `values` at the start."""
    found = np.zeros(shape, np.float16)
    found.reshape(-1)[: len(values)] = values
    return found


LOUD = filled((1, 32), *[200.0] * 2, *[0] * 14, *[-200.0] * 2)
EXCEPTIONS = {
    "a sum": (
        one("MatMul", (1, 8), (8, 3)),
        filled((1, 8), 300, 300),
        filled((8, 3), 300, 0, 0, 300),
    ),
    "a partial sum": (one("MatMul", (1, 32), (32, 3)), LOUD, np.full((32, 3), 200, np.float16)),
    "a sum of infinities": (
        one("MatMul", (1, 4), (4, 3)),
        filled((1, 4), INF, INF),
        filled((4, 3), 1, 0, 0, -1),
    ),
    "an infinity times zero": (
        one("MatMul", (1, 4), (4, 1)),
        filled((1, 4), INF),
        filled((4, 1), 0),
    ),
    "a convolution": (
        one("Conv", (1, 16, 4), (2, 16, 1)),
        np.full((1, 16, 4), 90, np.float16),
        np.full((2, 16, 1), 90, np.float16),
    ),
    "a depthwise convolution": (
        one("Conv", (1, 8, 6, 6), (8, 1, 3, 3), group=8),
        np.full((1, 8, 6, 6), 200, np.float16),
        np.full((8, 1, 3, 3), 200, np.float16),
    ),
    "a transposed convolution": (
        one("ConvTranspose", (1, 16, 4), (16, 2, 2), strides=[2]),
        np.full((1, 16, 4), 90, np.float16),
        np.full((16, 2, 2), 90, np.float16),
    ),
    "a bias": (
        one("Gemm", (2, 4), (4, 3), (3,)),
        filled((2, 4), 1),
        filled((4, 3), 60000),
        np.full(3, 60000, np.float16),
    ),
    "a product": (one("Mul", (4,), (4,)), filled(4, 300), filled(4, 300)),
    "a difference of infinities": (one("Sub", (4,), (4,)), filled(4, INF), filled(4, INF)),
    "a division by zero": (one("Div", (4,), (4,)), np.ones(4, np.float16), filled(4, 1, 1, 1)),
    "zero over zero": (one("Div", (4,), (4,)), filled(4), filled(4, 1, 1, 1)),
    "an exponential": (one("Exp", (4,)), filled(4, 12)),
    "a far exponential": (one("Exp", (4,)), filled(4, 1000)),
    "a root": (one("Sqrt", (4,)), filled(4, -1)),
    "a value that comes in": (one("Add", (4,), (4,)), filled(4, NAN), filled(4)),
    "the last of many": (
        one("Mul", (4999,), (4999,)),
        filled(4999, *[1] * 4998, 300),
        filled(4999, *[1] * 4998, 300),
    ),
}
ORDINARY = {
    "sums": (one("MatMul", (7, 40), (40, 9)), halves((7, 40), 1), halves((40, 9), 2)),
    "the largest half": (one("Add", (4,), (4,)), filled(4, 65504, -65504), filled(4, 15, -15)),
    "a product with an infinity": (
        one("MatMul", (2, 4), (4, 3)),
        filled((2, 4), INF, 1, 1, 1),
        np.ones((4, 3), np.float16),
    ),
    "a mask": (one("Add", (4,), (4,)), filled(4, -INF), filled(4, 7)),
    "an infinity times 2": (
        one("Mul", (4,), (4,)),
        filled(4, -INF, INF, 1, 1),
        np.full(4, 2, np.float16),
    ),
    "a number over an infinity": (
        one("Div", (4,), (4,)),
        filled(4, 1, 2),
        filled(4, INF, -INF, 1, 1),
    ),
    "between two rows": (
        # Windows across the end of a row are no results: there 40,000 is added to 40,000.
        one("Conv", (1, 8, 6, 6), (8, 1, 1, 3), group=8),
        np.tile(np.float16([200, 0, 0, 0, 0, 200]), (1, 8, 6, 1)),
        np.full((8, 1, 1, 3), 200, np.float16),
    ),
}


@needs_kernels
@pytest.mark.parametrize("numerics", ALL, ids=["largest", "nan", "float"])
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_ends_the_run_and_names_its_node(name, numerics):
    model, *inputs = EXCEPTIONS[name]
    if name == "a partial sum" and not numerics.half_partials:
        compute("kernels", model, numerics, *inputs)
        return
    with pytest.raises(InvalidArgument, match=r"simipu\.\w+ r/.*: floating-point exception"):
        compute("kernels", model, numerics, *inputs)


@needs_kernels
@pytest.mark.parametrize("numerics", ALL, ids=["largest", "nan", "float"])
@pytest.mark.parametrize("name", ORDINARY)
def test_results_without_exceptions_equal_those_with_exceptions_off(name, numerics):
    model, *inputs = ORDINARY[name]
    found = compute("kernels", model, numerics, *inputs)
    np.testing.assert_array_equal(found, compute("kernels", model, numerics.quiet(), *inputs))


@needs_kernels
def test_an_8_bit_value_that_is_too_large_is_an_exception():
    codes = encode(halves((80, 7), 1), F143, -2)
    model = quarter_model(
        helper.make_node("MatMul", ["a", "b"], ["y"]), (6, 80), codes, scales=(0, 0)
    )
    x = halves((6, 80), 2)
    compute("kernels", model, ALL[0], x)
    x[3, 7] = 300  # the largest F143 is 240
    with pytest.raises(InvalidArgument, match="floating-point exception"):
        compute("kernels", model, ALL[0], x)


@needs_kernels
def test_the_request_is_told_and_the_next_one_is_answered():
    model, x, y = EXCEPTIONS["a product"]
    lowered = lower(model, ALL[0], kernels=KernelUse.FUSED)
    graph = make_graph(Lowered(lowered.SerializeToString(), {}), GraphOptions(), "0 (main)")
    with pytest.raises(
        RunError, match="floating-point exception: a value is NaN, or too large for"
    ):
        graph.run(["r"], {"x": x, "y": y})
    np.testing.assert_array_equal(graph.run(["r"], {"x": x, "y": filled(4, 2)})[0], filled(4, 600))


def test_without_kernels_nothing_would_be_seen_and_the_graph_is_refused():
    model = one("Mul", (4,), (4,))
    with pytest.raises(LoadError, match=r"debug\.floatPointOpException needs the kernels"):
        lower(model, ALL[0])


def in_float(operator, num_inputs=1, made=TensorProto.FLOAT):
    """Return a graph of one operator in float."""
    names = "xy"[:num_inputs]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in names]
    result = helper.make_tensor_value_info("r", made, [4])
    node = helper.make_node(operator, list(names), ["r"])
    graph = helper.make_graph([node], "g", values, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TRUTH = TensorProto.BOOL


@needs_kernels
@pytest.mark.parametrize(
    ("operator", "values", "made"),
    [
        ("Div", ([1, 1, 1, 1], [1, 1, 1, 0]), TensorProto.FLOAT),
        ("Mul", ([0, 1, 1, 1], [INF, 1, 1, 1]), TensorProto.FLOAT),
        ("Sqrt", ([1, -1, 1, 1],), TensorProto.FLOAT),
        ("Exp", ([1, 1, 1, 3800],), TensorProto.FLOAT),
        ("Add", ([3e38, 1, 1, 1], [3e38, 1, 1, 1]), TensorProto.FLOAT),
        ("Greater", ([1, 1, 1, 1], [1, NAN, 1, 1]), TRUTH),
    ],
)
def test_an_exception_in_float_ends_the_run_and_names_its_node(operator, values, made):
    arrays = [np.float32(each) for each in values]
    model = in_float(operator, len(arrays), made)
    with pytest.raises(InvalidArgument, match=r"simipu\.Chain r/check/.*floating-point exception"):
        compute("kernels", model, ALL[0], *arrays)


@needs_kernels
@pytest.mark.parametrize(
    ("operator", "values", "made"),
    [
        ("Add", ([-INF, 1, 1, 1], [1, 1, 1, 1]), TensorProto.FLOAT),
        ("Neg", ([0, -0.0, INF, 3e38],), TensorProto.FLOAT),
        ("Exp", ([-INF, -1e4, 0, 88],), TensorProto.FLOAT),
        ("Identity", ([NAN, INF, 0, -0.0],), TensorProto.FLOAT),
        ("Greater", ([INF, 1, 1, 1], [1, INF, 1, 0]), TRUTH),
    ],
)
def test_results_in_float_without_exceptions_equal_those_with_exceptions_off(
    operator, values, made
):
    arrays = [np.float32(each) for each in values]
    model = in_float(operator, len(arrays), made)
    found = compute("kernels", model, ALL[0], *arrays)
    expected = compute("kernels", model, ALL[0].quiet(), *arrays)
    assert found.tobytes() == expected.tobytes()


def test_a_model_of_integers_has_nothing_to_check():
    values = [helper.make_tensor_value_info(name, TensorProto.INT32, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert lower(model, ALL[0]) is model
