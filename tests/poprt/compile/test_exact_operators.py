"""Tests of single operators beside exact arithmetic: integers, quantized tensors, empty tensors,
windows and slices. `make exact-operators` computes all cases."""

import itertools

import numpy as np
import pytest
from exact_operators.families import FAMILIES
from exact_operators.forms import judge, make_case
from onnx import helper
from poprt import Converter
from random_graphs.judging import EQUAL

STEPS = {
    "binary": 300,
    "casts": 61,
    "codes": 79,
    "convolutions": 131,
    "dynamic": 7,
    "moved": 97,
    "norms": 11,
    "others": 67,
    "pools": 311,
    "products": 53,
    "recurrent": 379,
    "reductions": 230,
    "remainders": 19,
    "resized": 41,
    "running": 19,
    "slices": 101,
    "steps": 501,
    "unary": 83,
    "windows": 151,
}
"""Families, each with the distance of the cases that are tried: primes and such,
so that no attribute is the same in all."""


@pytest.mark.slow
@pytest.mark.parametrize("family", STEPS)
def test_operators_are_exact(family):
    for case in itertools.islice(FAMILIES[family](), 1, None, STEPS[family]):
        outcome = judge(case)
        assert outcome.word == EQUAL, f"{case.name}: {outcome.word}: {outcome.why}"


def find(family, words):
    return next(case for case in FAMILIES[family]() if words in case.name)


INT32 = np.iinfo(np.int32)


@pytest.mark.parametrize(
    ("operator", "inputs", "expected"),
    [
        ("Pow", ([3, -2, -1, 2, 1], [21, 33, -3, -1, -7]), [1870418611, 0, -1, 0, 1]),
        ("ReduceSum", ([INT32.max, 5],), [INT32.min + 4]),
        ("ReduceProd", ([INT32.max, 5, 3],), [2147483633]),
        ("ReduceSumSquare", ([INT32.max, 2],), [5]),
        ("ReduceL1", ([INT32.min, 1],), [INT32.min + 1]),
        ("ReduceMean", ([INT32.max, INT32.max],), [INT32.max]),
    ],
)
def test_integers_wrap(operator, inputs, expected):
    arrays = [np.array(numbers, np.int32) for numbers in inputs]
    case = make_case(operator, (operator, {}), arrays, [np.array(expected, np.int32)], 13)
    assert judge(case).word == EQUAL, judge(case).why


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("products", "Gemm int32 1 1 1 3"),
        ("products", "Gemm uint32 0 0 0 0"),
        ("codes", "MatMulInteger uint8 x int8 (2, 0) (0, 3)"),
        ("codes", "QLinearMatMul int8 x int8 (2, 2, 0) (2, 0, 3)"),
        ("norms", "InstanceNormalization (2, 4, 0)"),
        ("norms", "GroupNormalization (2, 4, 2, 0)"),
        ("recurrent", "LSTM bidirectional layout 1 (3, 2, 0) bias True states True"),
        ("recurrent", "GRU forward layout 0 (3, 2, 0) bias True states False"),
        ("recurrent", "LSTM forward layout 1 (0, 2, 4) bias True states True"),
        ("slices", "Slice float32 (2, 0) [(0, 2), (1, 1000)], opset 1"),
        ("slices", "Slice float32 (0,) [(2, 1)], opset 1"),
        ("moved", "ScatterElements (0, 4) -1 (1, 2)"),
        ("moved", "Scatter (0, 0) 1 (1, 2)"),
        ("resized", "Resize linear to (1, 2, 0, 4), opset 13"),
        ("resized", "Resize nearest by (1, 2, 3, 0), opset 10"),
        ("pools", "LpPool (2, 1, 4, 6) {'auto_pad': 'SAME_UPPER', 'kernel_shape': (1, 2)"),
    ],
)
def test_cases_that_were_refused_or_wrong_are_exact(family, words):
    outcome = judge(find(family, words))
    assert outcome.word == EQUAL, f"{outcome.word}: {outcome.why}"


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool", "LpPool"])
def test_windows_smaller_than_their_stride_have_no_padding(operator, auto_pad):
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    attributes = {"kernel_shape": [1], "strides": [4], "auto_pad": auto_pad}
    if operator == "AveragePool":
        attributes["count_include_pad"] = 1
    case = make_case(operator, (operator, attributes), [x], [x[:, :, ::4].copy()], 11)
    assert judge(case).word == EQUAL, judge(case).why


def test_positions_behind_the_padding_are_not_counted_in_a_window():
    x = np.ones((1, 1, 4, 6), np.float32)
    attributes = {
        "kernel_shape": [2, 3],
        "strides": [4, 5],
        "ceil_mode": 1,
        "count_include_pad": 1,
        "pads": [0, 0, 0, 1],
    }
    expected = np.array([[[[1, 0.5]]]], np.float32)
    case = make_case("pool", ("AveragePool", attributes), [x], [expected], 19)
    assert judge(case).word == EQUAL, judge(case).why


def test_operators_of_nothing_that_only_move_elements_keep_their_rows():
    node = helper.make_node("Relu", ["x"], ["y"])
    value = [helper.make_tensor_value_info(name, 1, [3, 0]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert [node.op_type for node in Converter().convert(model).graph.node] == ["Relu"]


def test_a_result_of_nothing_becomes_a_constant_of_its_settled_shape():
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[4], ceil_mode=1, name="pool"
    )
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", 1, [0, 1, 4])],
            [helper.make_tensor_value_info("y", 1, None)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = Converter().convert(model).graph
    assert [node.op_type for node in graph.node] == ["Identity"]
    shape = graph.output[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [0, 1, 1]
