"""Tiny ONNX models from which tests compile."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_model(nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, weights: dict, opset: int = 17) -> onnx.ModelProto:
    """An ONNX model; inputs and outputs map names to (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear_model(width: int = 4, seed: int = 0) -> onnx.ModelProto:
    """y = relu(x @ w + b), x of shape [batch, width]; z = x * 2."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="multiply"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="add_bias"),
        helper.make_node("Relu", ["sum"], ["y"], name="activate"),
        helper.make_node("Mul", ["x", "two"], ["z"], name="double"),
    ]
    weights = {
        "w": random.standard_normal((width, 3)).astype(np.float32),
        "b": random.standard_normal(3).astype(np.float32),
        "two": np.float32(2),
    }
    shape = ["batch", width]
    return make_model(
        nodes,
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, ["batch", 3]), "z": (TensorProto.FLOAT, shape)},
        weights,
    )
