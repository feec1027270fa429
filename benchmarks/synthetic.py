"""ONNX models made for measuring: an identity, a chain of small operators, and three small networks
with random weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Weights = npt.NDArray[Any]
Layer = tuple[list[NodeProto], dict[str, Weights]]
"""Nodes from tensor to tensor, and their weights by name."""

_generator = np.random.default_rng(0)


def make_nothing(width: int) -> ModelProto:
    """Return a model that answers rows of `width` INT32 with themselves."""
    return _make_model(
        "nothing",
        TensorProto.INT32,
        [width],
        [width],
        [([helper.make_node("Identity", ["x"], ["y"])], {})],
    )


def make_steps(count: int) -> ModelProto:
    """Return `count` normalisations of rows of 16, one after the other; each takes the chip 3.9 us
    and the CPU 1 us."""
    tensors = ["x", *(f"h{step}" for step in range(1, count)), "y"]
    nodes = [
        helper.make_node("LayerNormalization", [a, "scale"], [b])
        for a, b in itertools.pairwise(tensors)
    ]
    return _make_model(
        "steps", TensorProto.FLOAT, [16], [16], [(nodes, {"scale": np.ones(16, np.float32)})]
    )


def make_mlp() -> ModelProto:
    """Return layers of 1024, 1024 and 10: 2.1 million multiply-adds a row.

    Reading the weights, which joined rows share, bounds the time.
    """
    layers = [
        _dense("x", "h", 1024, 1024),
        _dense("h", "g", 1024, 1024),
        _dense("g", "y", 1024, 10),
    ]
    return _make_model("mlp", TensorProto.FLOAT, [1024], [10], layers)


def make_convnet() -> ModelProto:
    """Return three convolutions on pictures of 28x28: 7.5 million multiply-adds a row.

    The arithmetic, which is not shared, bounds the time.
    """
    layers = [
        _convolution("x", "h", 1, 32, 1),
        _convolution("h", "g", 32, 64, 2),
        _convolution("g", "f", 64, 128, 2),
    ]
    pool = [
        helper.make_node("GlobalAveragePool", ["f"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
    ]
    return _make_model(
        "convnet",
        TensorProto.FLOAT,
        [1, 28, 28],
        [10],
        [*layers, (pool, {}), _dense("flat", "y", 128, 10)],
    )


def make_lstm() -> ModelProto:
    """Return an LSTM of 256 on sequences of 50 steps of 128 values, which returns its last state to
    a layer of 10: 19.7 million multiply-adds a row.

    Steps follow one another, so that the state's products are small ones.
    """
    hidden, width = 256, 128
    weights = {
        "W": _generator.standard_normal((1, 4 * hidden, width)) / np.sqrt(width),
        "R": _generator.standard_normal((1, 4 * hidden, hidden)) / np.sqrt(hidden),
        "B": _generator.standard_normal((1, 8 * hidden)) / 4,
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "W", "R", "B"], ["", "last"], hidden_size=hidden),
        helper.make_node("Squeeze", ["last", "axis"], ["h"]),
    ]
    layer = {name: value.astype(np.float32) for name, value in weights.items()}
    layer["axis"] = np.array([0])
    layers = [(nodes, layer), _dense("h", "y", hidden, 10)]
    return _make_model("lstm", TensorProto.FLOAT, [50, width], [10], layers)


def _dense(source: str, target: str, width: int, units: int) -> Layer:
    weights = f"{target}.weights"
    nodes = [
        helper.make_node("MatMul", [source, weights], [f"{target}.sums"]),
        helper.make_node("Relu", [f"{target}.sums"], [target]),
    ]
    return nodes, {weights: _make_weights(width, units)}


def _convolution(source: str, target: str, channels: int, filters: int, stride: int) -> Layer:
    weights = f"{target}.weights"
    nodes = [
        helper.make_node(
            "Conv", [source, weights], [f"{target}.sums"], pads=[1] * 4, strides=[stride] * 2
        ),
        helper.make_node("Relu", [f"{target}.sums"], [target]),
    ]
    return nodes, {weights: _make_weights(filters, channels, 3, 3)}


def _make_weights(*shape: int) -> Weights:
    """Return weights scaled so that values neither grow nor vanish from layer to layer."""
    fan_in = shape[0] if not shape[2:] else np.prod(shape[1:])
    weights: Weights = _generator.standard_normal(shape) * np.sqrt(2 / fan_in)
    return weights.astype(np.float32)


def _make_model(
    name: str, element: int, inputs: list[int], outputs: list[int], layers: Sequence[Layer]
) -> ModelProto:
    """Return a model from x to y, both with a free leading dimension."""
    graph = helper.make_graph(
        [node for nodes, _ in layers for node in nodes],
        name,
        [helper.make_tensor_value_info("x", element, ["n", *inputs])],
        [helper.make_tensor_value_info("y", element, ["n", *outputs])],
        [
            numpy_helper.from_array(value, key)
            for _, weights in layers
            for key, value in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
