"""Shapes that follow from constants are folded before the compiler refuses them."""

from __future__ import annotations

import model_runtime
import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler
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
