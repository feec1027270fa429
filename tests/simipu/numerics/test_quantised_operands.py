"""Tests of graphs with QuantizeLinear and DequantizeLinear: answers are those of ONNX Runtime without
its optimisers, and products stay products of integers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from random_graphs import Drawn
from random_graphs.fusions import judge_pattern
from random_graphs.judging import EQUAL
from simipu import lower_model
from simipu.numerics import find_unsafe_optimisers, optimisers

node = helper.make_node
CODES = np.random.default_rng(0).integers(0, 256, (3, 4, 8, 32)).astype(np.uint8)


def quantised_model(nodes, constants, feeds, outputs, opset=17):
    """Return a model whose inputs have the types and shapes of `feeds`."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info(key, kinds[key], x.shape) for key, x in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def judge(model, feeds):
    """Judge the answers of a model beside ONNX Runtime without optimisers."""
    return judge_pattern(
        Drawn(model, feeds, dict.fromkeys(each.name for each in model.graph.output))
    )


def between_pairs(op_type, scale, result_scale, inputs=1, **attributes):
    """Return a model of one operator of dequantised tensors, whose result is quantised."""
    names = [f"x{place}" for place in range(inputs)]
    nodes = [node("DequantizeLinear", [x, "scale", "zero"], [f"{x}_float"]) for x in names]
    nodes += [
        node(op_type, [f"{x}_float" for x in names], ["y"], **attributes),
        node("QuantizeLinear", ["y", "result_scale", "zero"], ["codes"]),
    ]
    constants = {
        "scale": np.float32(scale),
        "result_scale": np.float32(result_scale),
        "zero": np.uint8(101),
    }
    feeds = {x: np.roll(CODES, place) for place, x in enumerate(names)}
    return quantised_model(nodes, constants, feeds, ["codes"]), feeds


BETWEEN = {
    "Add": between_pairs("Add", 1 / 16, 1 / 2, 2),
    "Mul": between_pairs("Mul", 1 / 16, 1 / 4, 2),
    "AveragePool": between_pairs("AveragePool", 1 / 4, 1 / 2, kernel_shape=[2, 2]),
    "Softmax": between_pairs("Softmax", 0.043, 0.0031),
    "Sigmoid": between_pairs("Sigmoid", 1 / 16, 1 / 256),
    "LeakyRelu": between_pairs("LeakyRelu", 1 / 16, 1 / 4, alpha=0.25),
    "GlobalAveragePool": between_pairs("GlobalAveragePool", 1 / 16, 1 / 32),
    "Concat": between_pairs("Concat", 1 / 16, 1 / 4, 2, axis=1),
}


@pytest.mark.parametrize("op_type", BETWEEN)
def test_an_operator_between_pairs_has_the_codes_of_the_float_operator(op_type):
    assert judge(*BETWEEN[op_type]).word == EQUAL


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("op_type", ["Relu", "Clip", "Dropout", "Transpose", "Flatten"])
def test_operators_that_are_removed_or_crossed_change_nothing(op_type, kind):
    nodes = [
        node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        node("Add", ["a", "a"], ["b"]),
        node(op_type, ["b"], ["c"]),
        node("QuantizeLinear", ["c", "wide", "zero"], ["y"]),
    ]
    lowest = kind(np.iinfo(kind).min)
    constants = {"scale": np.float32(1 / 16), "wide": np.float32(1 / 2), "zero": lowest}
    feeds = {"x": CODES.view(kind)}
    assert judge(quantised_model(nodes, constants, feeds, ["y"]), feeds).word == EQUAL


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("opset", [13, 21, 23])
def test_saturating_machines_keep_these_operators_in_float_too(opset, kind):
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["first"]),
        node("DequantizeLinear", ["first", "scale", "zero"], ["a"]),
        node("Add", ["a", "a"], ["sum"]),
        node("QuantizeLinear", ["sum", "wide", "zero"], ["second"]),
        node("DequantizeLinear", ["second", "wide", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(1 / 16), "wide": np.float32(1 / 2), "zero": kind(3)}
    feeds = {"x": np.linspace(-20, 20, 4096, dtype=np.float32)}
    assert judge(quantised_model(nodes, constants, feeds, ["y"], opset), feeds).word == EQUAL


def product_model(op_type, bias_scale, channels=4, bias=np.int32):
    """Return a quantised product with a bias."""
    rng = np.random.default_rng(1)
    x = CODES if op_type == "Conv" else CODES[0, :, 0]
    inner = x.shape[1]
    shape = (channels, inner, 1, 1) if op_type == "Conv" else (channels, inner)
    if op_type == "MatMul":
        shape = shape[::-1]
    constants = {
        "scale": np.float32(1 / 16),
        "zero": np.uint8(101),
        "filters": rng.integers(-99, 99, shape).astype(np.int8),
        "filter_scale": np.full(channels, 1 / 64, np.float32),
        "filter_zero": np.zeros(channels, np.int8),
        "bias": rng.integers(-9999, 9999, channels).astype(bias),
        "bias_scale": np.full(channels, bias_scale, np.float32),
        "result_scale": np.float32(1),
    }
    axis = 1 if op_type == "MatMul" else 0
    nodes = [
        node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        node("DequantizeLinear", ["filters", "filter_scale", "filter_zero"], ["b"], axis=axis),
        node("DequantizeLinear", ["bias", "bias_scale"], ["c"], axis=0),
    ]
    if bias == np.float32:
        constants["c"] = constants.pop("bias") / 1024
        del nodes[-1], constants["bias_scale"]
    if op_type == "MatMul":
        nodes += [node("MatMul", ["a", "b"], ["product"]), node("Add", ["product", "c"], ["y"])]
    else:
        turned = {"transB": 1} if op_type == "Gemm" else {}
        nodes.append(node(op_type, ["a", "b", "c"], ["y"], **turned))
    nodes.append(node("QuantizeLinear", ["y", "result_scale", "zero"], ["codes"]))
    return quantised_model(nodes, constants, {"x": x}, ["codes"]), {"x": x}


@pytest.mark.parametrize("bias_scale", [1 / 1024, 1 / 256])
@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
def test_a_bias_counts_with_its_own_scale(op_type, bias_scale):
    assert judge(*product_model(op_type, bias_scale)).word == EQUAL


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_a_bias_of_floats_is_not_rounded(op_type):
    assert judge(*product_model(op_type, 1, bias=np.float32)).word == EQUAL


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_a_product_with_the_usual_bias_stays_one_of_integers(op_type):
    # More than the 1 KiB and the 4 KiB above which constants leave the graph or its shapes.
    model, _ = product_model(op_type, 1 / 1024, channels=2048)
    weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    lowered, _ = lower_model(model, {}, None)
    assert lowered.graph.node == model.graph.node
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="elsewhere")
    lowered, _ = lower_model(model, weights, None)
    assert lowered.graph.node == model.graph.node


def test_a_type_that_is_given_twice_is_given_once():
    feeds = {"x": np.linspace(-9, 9, 64, dtype=np.float32)}
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], output_dtype=TensorProto.INT8),
        node("DequantizeLinear", ["q", "scale", "zero"], ["a"]),
        node("QuantizeLinear", ["a", "scale"], ["y"], output_dtype=TensorProto.INT8),
    ]
    constants = {"scale": np.float32(0.25), "zero": np.int8(3)}
    assert judge(quantised_model(nodes, constants, feeds, ["y"], 21), feeds).word == EQUAL


def moved_model(op_type, *operands, opset=17, kind=np.uint8, **attributes):
    """Return a model that moves a dequantised tensor, which a branch reads."""
    feeds = {"x": CODES[:1, :2, :, :4].view(kind), "is_first": np.array(True)}
    nodes = [
        node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        node(op_type, ["a", *(f"operand{place}" for place in range(len(operands)))], ["moved"], **attributes),
    ]  # fmt: skip
    constants = {"scale": np.float32(0.1), "zero": kind(3)}
    constants |= {f"operand{place}": np.int64(each) for place, each in enumerate(operands)}
    branches = {}
    for name, function in (("then_branch", "Neg"), ("else_branch", "Abs")):
        info = helper.make_tensor_value_info(function, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(
            [node(function, ["moved"], [function])], name, [], [info]
        )
    nodes.append(node("If", ["is_first"], ["y"], **branches))
    return quantised_model(nodes, constants, feeds, ["y"], opset), feeds


MOVES = {
    "Unsqueeze": moved_model("Unsqueeze", [0]),
    "Squeeze": moved_model("Squeeze", [0]),
    "Transpose": moved_model("Transpose", perm=[0, 2, 3, 1]),
    "Reshape": moved_model("Reshape", [2, -1]),
    "Slice": moved_model("Slice", [0], [1]),
    "MaxPool": moved_model("MaxPool", kernel_shape=[2, 2]),
    "int8": moved_model("Transpose", opset=21, kind=np.int8, perm=[0, 2, 3, 1]),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_branch_reads_a_moved_tensor(name):
    assert judge(*MOVES[name]).word == EQUAL
    assert set(optimisers.SPREAD) <= set(find_unsafe_optimisers(MOVES[name][0], {}))


def chained_pairs(scale, zero):
    feeds = {"x": np.linspace(-9, 40, 64, dtype=np.float32)}
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["a"]),
        node("QuantizeLinear", ["a", "other_scale", "other_zero"], ["r"]),
        node("DequantizeLinear", ["r", "other_scale", "other_zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.1), "zero": np.uint8(3)}
    constants |= {"other_scale": np.float32(scale), "other_zero": np.uint8(zero)}
    return quantised_model(nodes, constants, feeds, ["y"]), feeds


@pytest.mark.parametrize(("scale", "zero"), [(0.2, 3), (0.1, 9), (0.05, 40)])
def test_pairs_with_other_scales_or_zero_points_are_not_joined(scale, zero):
    model, feeds = chained_pairs(scale, zero)
    assert judge(model, feeds).word == EQUAL
    assert set(optimisers.PAIRS) <= set(find_unsafe_optimisers(model, {}))


def turned_model(outputs):
    feeds = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)}
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Transpose", ["a"], ["turned"], perm=[0, 2, 3, 1]),
        node("QuantizeLinear", ["turned", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.1), "zero": np.uint8(3)}
    return quantised_model(nodes, constants, feeds, outputs), feeds


def test_an_output_that_is_turned_and_quantised_stays_as_it_is():
    model, feeds = turned_model(["a", "y"])
    assert judge(model, feeds).word == EQUAL
    assert set(optimisers.TURNED) <= set(find_unsafe_optimisers(model, {}))


@pytest.mark.parametrize(
    "model",
    [chained_pairs(0.1, 3)[0], turned_model(["y"])[0], product_model("Conv", 1 / 1024)[0]],
    ids=["pairs", "turned", "bias"],
)
def test_a_graph_in_which_they_are_right_keeps_the_optimisers_of_quantised_tensors(model):
    left_out = find_unsafe_optimisers(model, {})
    assert left_out == (*optimisers.ALWAYS, *optimisers.QUANTISED)


def test_the_witness_has_codes_between_which_a_value_can_lie():
    model, feeds = BETWEEN["Add"]
    total = (feeds["x0"].astype(int) - 101 + feeds["x1"] - 101) / 8
    assert (total % 1 == 0.5).mean() > 0.1
    expected = np.clip(np.rint(total) + 101, 0, 255)
    assert (unoptimised_session(model).run(None, feeds)[0] == expected).all()


def moved_model(kind, *, opset=21, scale=1 / 8, weight=np.int8, move="Reshape"):
    """Return a product of codes that are moved after they were dequantised, and its input."""
    rng = np.random.default_rng(2)
    feeds = {"x": rng.integers(0, 100, (8, 2, 4)).astype(kind)}
    constants = {
        "scale": np.float32(scale),
        "zero": kind(3),
        "shape": np.int64([8, 8]),
        "w": rng.integers(-9, 9, (8, 5)).astype(weight),
        "weight_scale": np.float32(1 / 4),
        "weight_zero": np.int8(0),
    }
    move_node = node("Reshape", ["a", "shape"], ["moved"])
    if move == "Transpose":
        feeds["x"] = feeds["x"].reshape(8, 8)
        move_node = node("Transpose", ["a"], ["moved"], perm=[1, 0])
    nodes = [node("DequantizeLinear", ["x", "scale", "zero"], ["a"]), move_node]
    if weight == np.int8:
        nodes.append(node("DequantizeLinear", ["w", "weight_scale", "weight_zero"], ["b"]))
    nodes.append(node("MatMul", ["moved", "b" if weight == np.int8 else "w"], ["y"]))
    read = {name for each in nodes for name in each.input}
    constants = {name: value for name, value in constants.items() if name in read}
    return quantised_model(nodes, constants, feeds, ["y"], opset), feeds


@pytest.mark.parametrize("move", ["Reshape", "Transpose"])
@pytest.mark.parametrize("opset", [20, 21, 23])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_product_of_moved_codes_stays_one_of_integers(kind, opset, move):
    model, feeds = moved_model(kind, opset=opset, move=move)
    assert judge(model, feeds).word == EQUAL
    lowered, weights = lower_model(model, {}, None)
    makers = {name: each for each in lowered.graph.node for name in each.output}
    product = next(each for each in lowered.graph.node if each.op_type == "MatMul")
    is_paired = makers[product.input[0]].op_type == "DequantizeLinear"
    spreads = "QDQPropagationTransformer" not in find_unsafe_optimisers(lowered, weights)
    assert is_paired != spreads


@pytest.mark.parametrize(
    "change", [{"scale": 1e37}, {"scale": 0.0}, {"weight": np.float32}], ids=str
)
def test_odd_scales_and_float_products_get_no_pair(change):
    model, feeds = moved_model(np.int8, **change)
    assert judge(model, feeds).word == EQUAL
    lowered, _ = lower_model(model, {}, None)
    assert not any(each.op_type == "QuantizeLinear" for each in lowered.graph.node)


def test_codes_of_int8_without_a_zero_point_are_moved_as_such():
    model, feeds = moved_model(np.int8, opset=17)
    del model.graph.node[0].input[2]
    assert judge(model, feeds).word == EQUAL


def test_a_bias_of_another_scale_is_added_behind_a_product_of_moved_codes():
    feeds = {"x": np.arange(32, dtype=np.int8).reshape(4, 8)}
    constants = {
        "scale": np.float32(1 / 8),
        "zero": np.int8(0),
        "shape": np.int64([4, 8]),
        "turned": np.int64([8, 3]),
        "w": np.ones((3, 8), np.int8),
        "bias": np.int32([5, 6, 7]),
        "bias_scale": np.float32(2),
    }
    nodes = [
        node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        node("Reshape", ["a", "shape"], ["moved"]),
        node("DequantizeLinear", ["w", "scale", "zero"], ["b"]),
        node("Reshape", ["b", "turned"], ["filters"]),
        node("DequantizeLinear", ["bias", "bias_scale"], ["c"]),
        node("Gemm", ["moved", "filters", "c"], ["y"]),
    ]
    for opset in (17, 21):
        model = quantised_model(nodes, constants, feeds, ["y"], opset)
        assert judge(model, feeds).word == EQUAL
