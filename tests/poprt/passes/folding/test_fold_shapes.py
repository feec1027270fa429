"""Shapes that follow from constants are folded before the compiler refuses them."""

from __future__ import annotations

import model_runtime
import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions
from poprt.passes.folding.constants import FoldShapes
from sample_models import make_model

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = np.array([1])


def compute(nodes, inputs, outputs, weights, feeds):
    """Compile a model that no Converter has folded, and run it."""
    compiled = Compiler.compile(make_model(nodes, inputs, outputs, weights))
    with model_runtime.ModelRunner(compiled.getPopefModel()) as runner:
        return {name: np.asarray(value) for name, value in runner.execute(feeds).items()}


def test_topk_takes_a_count_that_an_input_s_shape_gives():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
        helper.make_node("TopK", ["x", "count"], ["y", "places"]),
    ]
    x = {"x": (TensorProto.FLOAT, [2, 3])}
    found = compute(nodes, x, {"y": (TensorProto.FLOAT, [2, 3])}, {"one": ONE}, {"x": X})
    np.testing.assert_array_equal(found["y"], X[:, ::-1])


@pytest.mark.parametrize("end", ["Add", "Mul"])
def test_slice_takes_an_end_that_constants_give(end):
    nodes = [
        helper.make_node(end, ["one", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end", "one"], ["y"]),
    ]
    columns = {"Add": 2, "Mul": 1}[end]
    found = compute(
        nodes,
        {"x": (TensorProto.FLOAT, [2, 3])},
        {"y": (TensorProto.FLOAT, [2, columns])},
        {"one": ONE, "zero": np.array([0])},
        {"x": X},
    )
    np.testing.assert_array_equal(found["y"], X[:, :columns])


def test_a_model_with_known_shapes_is_left_as_it_is():
    node = [
        helper.make_node("Add", ["w", "w"], ["double"]),
        helper.make_node("Mul", ["x", "double"], ["y"]),
    ]
    spec = (TensorProto.FLOAT, [2, 3])
    model = make_model(node, {"x": spec}, {"y": spec}, {"w": X})
    assert FoldShapes()(model).graph.node == model.graph.node
    assert len(FoldShapes()(model).graph.node) == len(node)


def test_a_model_without_inputs_runs():
    node = [helper.make_node("RandomNormal", [], ["y"], shape=[2, 3])]
    found = compute(node, {}, {"y": (TensorProto.FLOAT, [2, 3])}, {}, {})
    assert found["y"].shape == (2, 3)
    assert found["y"].std() > 0


@pytest.mark.parametrize("constant", [True, False])
def test_a_weight_that_leaves_the_graph_is_not_folded(constant):
    """The graph is folded for its shapes, and reshapes a weight that the program gets later."""
    weight = np.random.default_rng(0).random([16, 4, 8], np.float32)
    nodes = [
        helper.make_node("Reshape", ["w", "square"], ["flat"]),
        helper.make_node("MatMul", ["x", "flat"], ["product"]),
        helper.make_node("Shape", ["product"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["size"]),
        helper.make_node("ReduceProd", ["size"], ["rows"]),  # inference leaves it open
        helper.make_node("Concat", ["rows", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["product", "sizes"], ["y"]),
    ]
    weights = {
        "w": weight,
        "square": np.array([16, 32]),
        "first": np.array([0]),
        "rest": np.array([4, 8]),
    }
    x, y = {"x": (TensorProto.FLOAT, [5, 16])}, {"y": (TensorProto.FLOAT, [5, 4, 8])}
    options = CompilerOptions(constant_weights=constant)
    compiled = Compiler.compile(make_model(nodes, x, y, weights), options=options)
    data = np.random.default_rng(1).random([5, 16], np.float32)
    with model_runtime.ModelRunner(compiled.getPopefModel()) as runner:
        found = runner.execute({"x": data})["y"]
    expected = (data @ weight.reshape(16, 32)).reshape(5, 4, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
