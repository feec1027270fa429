"""Tests of the comparison of outputs in half and float: errors, lost values and answers that name
another class."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt.comparing.outputs import LIMIT, Comparer, Comparison, find_classes


def compare(*runs, classes=(), names=("y",), drawn=None):
    """Return the worst case of the last run and the comparison of all runs. Each run is a pair of
    outputs, or of lists of outputs."""
    comparer = Comparer(names, frozenset(classes))
    for ours, theirs in runs:
        pair = [
            each if isinstance(each, list) and len(names) > 1 else [each] for each in (ours, theirs)
        ]
        worst = comparer.add(*([np.asarray(value) for value in side] for side in pair))
    return worst, comparer.result(drawn)


def test_equal_outputs_have_no_error():
    worst, found = compare(([1.0, -2.0], [1.0, -2.0]))
    assert (worst, found.error, found.lost, found.labels, found.misled) == (0, 0, 0, 0, 0)
    assert not found.is_bad
    assert compare(([0.0], [0.0]))[1].error == 0
    assert compare((np.zeros((0, 3)), np.zeros((0, 3))))[1].error == 0


def test_an_error_is_a_share_of_the_outputs_largest_value_over_all_runs():
    worst, found = compare(([1.0, -3.5], [1.0, -4.0]), ([-8.25, 1.0], [-8.0, 1.0]))
    assert worst == 0.25 / 8, "of this run"
    assert found.error == 0.5 / 8
    assert found.output == "y"
    assert math.isinf(compare(([1.0], [0.0]))[1].error)


def test_the_output_with_the_largest_share_is_named():
    _, found = compare(([[90.0], [1.5]], [[100.0], [1.0]]), names=("large", "small"))
    assert (found.error, found.output) == (0.5, "small")


@pytest.mark.parametrize(
    ("error", "misled", "lost", "bad"),
    [
        (LIMIT, 0, 0, False),
        (1.01 * LIMIT, 0, 0, True),
        (0, 1, 0, True),
        (0, 0, 1, True),
        (0, 0, 0, False),
    ],
)
def test_large_errors_lost_values_and_other_answers_are_each_warned_of(error, misled, lost, bad):
    assert Comparison(error, "y", 0, 0, misled, lost).is_bad == bad


def test_values_are_lost_where_float_has_a_number_only():
    worst, found = compare(([np.nan, np.inf, np.inf, 1.0], [1.0, 2.0, np.inf, 1.0]))
    assert (found.lost, found.error, worst) == (2, 0, 1)
    assert "2 values lost to NaN or infinity" in found.describe()


@pytest.mark.parametrize(
    ("ours", "agreeing", "misled"),
    [
        ([[0.1, 0.9]], 1, 0),
        ([[0.6, 0.4]], 0, 1),
        ([[np.nan, 0.1]], 1, 0),
    ],
)
def test_answers_count_by_the_class_they_name(ours, agreeing, misled):
    _, found = compare((ours, [[0.2, 0.8]]), classes=["y"])
    assert (found.labels, found.agreeing, found.misled) == (1, agreeing, misled)


def test_another_class_does_not_count_if_float_is_undecided():
    _, found = compare(([[3.0, 3.01]], [[3.01, 3.0]]), classes=["y"])
    assert (found.labels, found.agreeing, found.misled) == (1, 0, 0)
    _, found = compare(([[3.0, 3.1]], [[3.1, 3.0]]), classes=["y"])
    assert found.misled == 1


def test_rows_of_shares_are_answers_wherever_they_come_from():
    shares = [[0.25, 0.75], [1.0, 0.0]]
    assert compare((shares, shares))[1].labels == 2
    for others in ([[0.25, 0.5]], [[1.5, -0.5]], [[1.0], [1.0]], [0.25, 0.75]):
        assert compare((others, others))[1].labels == 0


def test_whole_numbers_are_answers_each():
    worst, found = compare(([1, 2, 3], [1, 2, 4]), ([5], [5]))
    assert (found.labels, found.agreeing, found.misled, worst) == (4, 3, 1, 0)
    assert compare(([1], [2]))[0] == 1


def test_a_comparison_is_a_line():
    _, found = compare(([0.5, 2.0], [0.0, 2.0]))
    assert found.describe() == (
        "beside float, on the calibration data: largest error 0.25 of the largest value (output "
        "'y'), no NaN or infinity"
    )
    _, found = compare(([[0.75, 0.25]], [[0.25, 0.75]]), drawn="x: -1 to 1")
    assert "on made-up inputs (x: -1 to 1): " in found.describe()
    assert "labels agree in 0 of 1" in found.describe()


@pytest.mark.parametrize(
    ("last", "shape", "is_found"),
    [
        ("Softmax", [2, 5], True),
        ("LogSoftmax", [2, 3, 5], True),
        ("Softmax", [2, 1], False),
        ("MatMul", [2, 5], True),
        ("MatMul", [2, 3, 5], False),
        ("Relu", [2, 5], False),
        ("Softmax", [], False),
    ],
)
def test_classes_are_what_a_softmax_or_a_last_linear_layer_makes(last, shape, is_found):
    nodes = [helper.make_node(last, ["x", "x"][: 1 + (last == "MatMul")], ["a"])]
    nodes += [
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=1),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [onnx.ValueInfoProto(name="x")], [output])
    )
    assert find_classes(model) == ({"y"} if is_found else set())
