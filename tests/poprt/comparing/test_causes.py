"""Tests of the causes that are named for a node's error: each is given where it accounts for the
error, and is not where the same thing happens beside an error that it does not explain."""

import re

import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.comparing.causes import Bench, RoundedOperands, find_cause
from poprt.comparing.sides import Side
from sample_models import make_model

F = TensorProto.FLOAT
INF, NAN = np.inf, np.nan


def explain(op_type, inputs, half, result_half, constants=()):
    """Return the cause of a node's error. `inputs` are in float, by name; `half` has those that are
    other values in half."""
    arrays = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
    shown = helper.make_node(op_type, list(arrays), ["y"], name="n")
    values = [helper.make_tensor_value_info(name, F, array.shape) for name, array in arrays.items()]
    output = helper.make_tensor_value_info("y", F, np.shape(result_half))
    model = helper.make_model(
        helper.make_graph([shown], "g", values, [output]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    side = Side(model, {}, None)
    ((result,),) = side.run([arrays])
    in_half = {**arrays, **{name: np.asarray(value, np.float32) for name, value in half.items()}}
    operands = RoundedOperands(
        shown,
        arrays,
        in_half,
        frozenset(constants),
        result,
        np.asarray(result_half, np.float32),
    )
    return find_cause(Bench(side, side, arrays), operands).text


@pytest.mark.parametrize(
    ("op_type", "inputs", "half", "result_half", "cause"),
    [
        ("Mul", {"a": [300, 1], "b": [300, 1]}, {}, [65504, 1], "overflow, 9e+04 is beyond 65504"),
        ("Mul", {"a": [300, 1], "b": [300, 1]}, {}, [INF, 1], "overflow, 9e+04 is beyond 65504"),
        ("Log", {"a": [1e-9, 1]}, {"a": [0, 1]}, [-1e3, 0], "underflow, values of 'a' are below"),
        ("Log", {"a": [1e-9, 1]}, {"a": [0, 1]}, [-INF, 0], "underflow, values of 'a' are below"),
        ("Sqrt", {"a": [1e-9, 2e-9]}, {"a": [0, 0]}, [0, 0], "underflow, values of 'a' are below"),
        (
            "Exp",
            {"a": [10, -20]},
            {"a": [10.018, -20]},
            [22426, 0],
            "it magnifies rounding: 'a' is off by 0.0009 of its largest value, the result by 0.018",
        ),
        (
            "Mul",
            {"a": [1e-4, 1e-4], "b": [1e-4, 5e-5]},
            {},
            [0, 0],
            "underflow, results below 3e-08 are 0 in half, and none is beyond 1e-08",
        ),
        (
            "Mul",
            {"a": [1e-3], "b": [3.1e-4]},
            {},
            [2.98e-7],
            "underflow, results up to 3.1e-07 are rounded to steps of 6e-08",
        ),
        (
            "Sub",
            {"a": [3000, 2000], "b": [2999, 1999]},
            {"b": [3000, 2000]},
            [0, 0],
            "cancellation, of values up to 3e+03 no more than 1 is left",
        ),
        (
            "MatMul",
            {"a": [[1000, 1000]], "b": [[1], [-0.999]]},
            {},
            [[0.5]],
            "cancellation, of values up to 2e+03 no more than 1 is left",
        ),
        ("Softmax", {"a": [1, 2]}, {}, [NAN, 1], "its result is NaN or infinite in half"),
        ("Relu", {"a": [1, 1]}, {}, [0.5, 1], "rounding, its result is off by 0.5 of the largest"),
    ],
)
def test_a_cause_is_named_that_accounts_for_the_error(op_type, inputs, half, result_half, cause):
    assert explain(op_type, inputs, half, result_half).startswith(cause)


@pytest.mark.parametrize(
    ("op_type", "inputs", "half", "result_half"),
    [
        # 65600 becomes 65504, which is no error beside the other one.
        ("Add", {"a": [4e4, 1e3], "b": [25600, 0]}, {}, [65504, 3e3]),
        # Values of a are 0 in half, which the results beside them do not depend on.
        ("Div", {"a": [1e-9, 1], "b": [1, 1]}, {"a": [0, 1]}, [0, 1.5]),
        ("Sqrt", {"a": [1e-9, 1]}, {"a": [0, 1]}, [0, 1.05]),
        ("Add", {"a": [1e-9, 1], "b": [1, 1]}, {"a": [0, 1]}, [1, 2.1]),
        # Results are 0 in half, but the error is that of a large one.
        ("Mul", {"a": [1e-4, 1], "b": [1e-4, 1]}, {}, [0, 1.018]),
        ("Mul", {"a": [1e-3, 1], "b": [3e-4, 1]}, {}, [2.98e-7, 1.018]),
        # Inputs are rounded, but by far less than the result is off.
        ("Exp", {"a": [1, 2]}, {"a": [1.0001, 2]}, [2.7, 7]),
        # Large values are subtracted, but most is left of them.
        ("Sub", {"a": [3000, 1], "b": [1, 1]}, {"b": [1, 1]}, [2900, 0]),
        # Operands cancel in one element, which is right.
        ("MatMul", {"a": [[1, 1]], "b": [[1, 1], [1, -1]]}, {}, [[2.1, 0]]),
    ],
)
def test_causes_that_do_not_explain_the_error_are_not_named(op_type, inputs, half, result_half):
    assert explain(op_type, inputs, half, result_half).startswith("rounding, its result is off by")


@pytest.mark.parametrize(
    ("constant", "in_half", "cause"),
    [
        (1e-8, 1.19e-7, "constant 'w' is 1e-08 in float and 1.19e-07 in half"),
        ([1e-9, 2e-9], [0, 0], "underflow, weights 'w' of at most 2e-09 are rounded to steps of"),
        ([1e5, 1e5], [65504, 65504], "overflow, weights 'w' reach 1e+05, beyond 65504"),
        ([3.0, 3.0], [3.1, 3.1], "half cannot hold weights 'w': they are off by 0.033"),
    ],
)
def test_constants_that_are_others_in_half_are_named(constant, in_half, cause):
    inputs, half = {"a": [1e-2, 2e-2], "w": constant}, {"w": in_half}
    result = np.float32([1e-2, 2e-2]) * np.float32(in_half)
    assert explain("Mul", inputs, half, result, ["w"]).startswith(cause)
    far = np.float32([1e-2, 2e-2]) * np.float32(constant) + 9e8
    assert explain("Mul", inputs, half, far, ["w"]).startswith("rounding")


def test_small_probabilities_do_not_explain_the_error_of_a_large_one(caplog):
    """Most of a softmax of large scores is below the smallest half, and none of its error is."""
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="the_scores"),
        helper.make_node("Add", ["scores", "far"], ["l"], name="the_l"),
        helper.make_node("Softmax", ["l"], ["y"], name="the_y"),
    ]
    weights = {
        "w": 9 * random.standard_normal((8, 40)).astype(np.float32),
        "far": np.float32(1000),
    }
    model = make_model(nodes, {"x": (F, ["n", 8])}, {"y": (F, ["n", 40])}, weights)
    half, whole = Converter(precision="fp16", batch_size=4).convert_beside_float(model)
    Compiler.compile(half, None, CompilerOptions(partials_type="float"), float_model=whole)
    assert re.search(r"They first differ at node 'the_y' \(Softmax\): it magnifies", caplog.text)
    assert "underflow" not in caplog.text


def test_the_second_result_of_a_node_is_read_too():
    split = helper.make_node("Split", ["x"], ["a", "b"], name="n")
    values = [helper.make_tensor_value_info(*spec) for spec in (("x", F, [4]), ("b", F, [2]))]
    model = helper.make_model(
        helper.make_graph([split], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    side = Side(model, {}, None)
    (operands,) = Bench(side, side, {"x": np.arange(4, dtype=np.float32)}).read(["b"])
    np.testing.assert_array_equal(operands.result, [2, 3])
    assert not operands.inputs
