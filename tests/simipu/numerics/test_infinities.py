"""Tests of infinities in half: values that stay infinite, rows that are masked everywhere, and
exponentials that do not overflow."""

import numpy as np
import pytest
from half_models import FLOAT_PARTIALS, HALF_PARTIALS, compute, every_witness, half_model
from onnx import helper


@every_witness
def test_infinities_stay_where_too_large_values_become_the_largest_half(witness):
    weights = {"w": np.array([-np.inf, np.inf, 60000, -60000, 0], np.float16)}
    model = half_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [5]}, "y", weights)
    x = np.array([3, -65504, 60000, -60000, -np.inf], np.float16)
    expected = np.array([-np.inf, np.inf, 65504, -65504, -np.inf], np.float16)
    for numerics in (FLOAT_PARTIALS, HALF_PARTIALS):
        np.testing.assert_array_equal(compute(witness, model, numerics, x), expected)
    over_zero = half_model(
        [helper.make_node("Div", ["x", "w"], ["y"])],
        {"x": [5]},
        "y",
        {"w": np.zeros(5, np.float16)},
    )
    expected = np.array([np.inf, -np.inf, np.inf, -np.inf, -np.inf], np.float16)
    np.testing.assert_array_equal(compute(witness, over_zero, FLOAT_PARTIALS, x), expected)


@every_witness
@pytest.mark.parametrize("numerics", [FLOAT_PARTIALS, HALF_PARTIALS])
def test_a_row_that_is_masked_everywhere_is_nan_as_in_float(witness, numerics):
    """Exporters write scaled_dot_product_attention this way: NaN becomes 0."""
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("IsNaN", ["weights"], ["masked"]),
        helper.make_node("Where", ["masked", "zero", "weights"], ["y"]),
    ]
    infinity = np.float16(np.inf)
    mask = np.array([[0, 0, -infinity], [-infinity] * 3, [0, -infinity, -infinity]], np.float16)
    model = half_model(nodes, {"x": [3, 3]}, "y", {"mask": mask, "zero": np.float16([0])})
    x = np.array([[1, 1, 9], [3, 2, 1], [-8, 5, 6]], np.float16)
    found = compute(witness, model, numerics, x)
    np.testing.assert_array_equal(
        found, np.array([[0.5, 0.5, 0], [0, 0, 0], [1, 0, 0]], np.float16)
    )
    log = half_model(
        [nodes[0], helper.make_node("LogSoftmax", ["scores"], ["y"], axis=-1)],
        {"x": [3, 3]},
        "y",
        {"mask": mask},
    )
    found = compute(witness, log, numerics, x)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(mask) & [[True], [False], [True]])
    assert np.isnan(found[1]).all()


@every_witness
@pytest.mark.parametrize("operator", ["ReduceLogSumExp", "LogSoftmax", "Softmax"])
@pytest.mark.parametrize("size", [20.0, 1000.0, -1000.0, 60000.0])
def test_exponentials_are_taken_of_what_is_left_of_the_largest(witness, operator, size):
    x = (size + np.array([[0, -1, 2, 0.5], [1, 1, 1, 1]])).astype(np.float16)
    attributes = {"axes": [1]} if operator == "ReduceLogSumExp" else {"axis": 1}
    model = half_model(
        [helper.make_node(operator, ["x"], ["y"], **attributes)], {"x": [2, 4]}, "y", {}, None
    )
    wide = x.astype(np.float64)
    largest = wide.max(1, keepdims=True)
    total = largest + np.log(np.exp(wide - largest).sum(1, keepdims=True))
    expected = {
        "ReduceLogSumExp": total,
        "LogSoftmax": wide - total,
        "Softmax": np.exp(wide - total),
    }[operator]
    found = compute(witness, model, HALF_PARTIALS, x)
    np.testing.assert_allclose(found, expected, rtol=2**-10, atol=2**-20)
