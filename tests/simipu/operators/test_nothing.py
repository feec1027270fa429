"""Tests of operators that combine no elements: pools of images without pixels, extremes of no truths,
and convolutions and pools of neither."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, shape_inference
from onnx.reference import ReferenceEvaluator
from simipu import GraphOptions, Lowered, SimIpuError, lower_model, make_graph
from waiting import PATIENCE_SECONDS

EMPTY = [(1, 2, 0), (2, 2, 0, 3), (1, 2, 3, 0), (0, 2, 0, 3), (1, 2, 0, 0)]
WINDOWS = [
    {"pads": 1},
    {"pads": 1, "strides": 2, "ceil_mode": 1},
    {"strides": 3, "ceil_mode": 1},
    {"pads": 2, "dilations": 2},
    {"auto_pad": "SAME_UPPER"},
    {"auto_pad": "VALID"},
]
VALUES = {"AveragePool": np.nan, "LpPool": 0.0, "MaxPool": -np.inf}


def model_of(node, feeds, opset=22):
    """Return a model of one node, with a result of the type of its first input."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    kind = infos[0].type.tensor_type.elem_type
    result = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "nothing", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def answer(model, feeds):
    """Return the result of a model."""
    lowered, weights = lower_model(model, {}, None)
    held = Lowered(lowered.SerializeToString(), weights)
    return make_graph(held, GraphOptions(1), "of nothing").run(["y"], feeds)[0]


def window(axes, *, kernel=2, **settings):
    """Return attributes of a window of some axes."""
    repeated = {"pads": 2 * axes, "strides": axes, "dilations": axes}
    made = {
        name: [value] * repeated[name] if name in repeated else value
        for name, value in settings.items()
    }
    return {"kernel_shape": [kernel] * axes, **made}


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("settings", WINDOWS, ids=str)
@pytest.mark.parametrize("operator", VALUES)
def test_a_pool_of_an_image_without_pixels_has_the_value_of_none(operator, settings, shape):
    feeds = {"x": np.zeros(shape, np.float32)}
    node = helper.make_node(operator, ["x"], ["y"], **window(len(shape) - 2, **settings))
    result = answer(model_of(node, feeds), feeds)
    inferred = shape_inference.infer_shapes(model_of(node, feeds)).graph.output[0]
    sizes = [dim.dim_value for dim in inferred.type.tensor_type.shape.dim]
    # Inference counts a window that would begin in the padding.
    if "ceil_mode" not in settings:
        assert list(result.shape) == [max(0, size) for size in sizes]
    np.testing.assert_array_equal(result, np.full(result.shape, VALUES[operator], np.float32))


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 22])
def test_the_reference_agrees(opset):
    for operator, settings in (
        ("AveragePool", {"pads": 1}),
        ("AveragePool", {"pads": 1, "count_include_pad": 1}),
        ("LpPool", {"pads": 1}),
    ):
        feeds = {"x": np.zeros((2, 3, 0, 2), np.float32)}
        node = helper.make_node(operator, ["x"], ["y"], **window(2, **settings))
        model = model_of(node, feeds, opset)
        with (
            np.errstate(all="ignore"),
            pytest.warns(RuntimeWarning)
            if (operator == "AveragePool" and "count_include_pad" not in settings)
            else np.errstate(),
        ):
            expected = ReferenceEvaluator(model_of(node, feeds)).run(None, feeds)[0]
        np.testing.assert_array_equal(answer(model, feeds), expected)


@pytest.mark.parametrize(
    ("operator", "value"), [("AveragePool", np.nan), ("LpPool", 0.0), ("MaxPool", -np.inf)]
)
def test_a_global_pool_of_nothing(operator, value):
    feeds = {"x": np.zeros((2, 3, 0, 4), np.float32)}
    result = answer(model_of(helper.make_node(f"Global{operator}", ["x"], ["y"]), feeds), feeds)
    np.testing.assert_array_equal(result, np.full((2, 3, 1, 1), value, np.float32))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_pool_of_no_codes_has_the_least(kind):
    feeds = {"x": np.zeros((1, 2, 0, 3), kind)}
    node = helper.make_node("MaxPool", ["x"], ["y"], **window(2, pads=1))
    result = answer(model_of(node, feeds), feeds)
    np.testing.assert_array_equal(result, np.full((1, 2, 1, 4), np.iinfo(kind).min, kind))


def test_no_elements_have_no_places():
    feeds = {"x": np.zeros((1, 2, 0, 3), np.float32)}
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], **window(2, pads=1))
    with pytest.raises(SimIpuError):
        answer(model_of(node, feeds), feeds)


@pytest.mark.parametrize(("operator", "value"), [("ReduceMax", False), ("ReduceMin", True)])
def test_the_extreme_of_no_truths(operator, value):
    for axes, keepdims, shape in (([1], 1, (2, 1)), ([-1], 0, (2,)), ([0], 1, (1, 0)), ([], 0, ())):
        feeds = {"x": np.zeros((2, 0), np.bool_)}
        node = helper.make_node(
            operator, ["x", "axes"] if axes else ["x"], ["y"], keepdims=keepdims
        )
        model = model_of(node, feeds)
        if axes:
            model.graph.initializer.add(
                name="axes", dims=[1], data_type=onnx.TensorProto.INT64, int64_data=axes
            )
        result = answer(model, feeds)
        assert result.dtype == np.bool_
        np.testing.assert_array_equal(result, np.full(shape, value))


@pytest.mark.parametrize("group", [1, 2, 8])
def test_a_convolution_of_nothing_is_its_bias(group):
    rng = np.random.default_rng(group)
    for image, channels in (((0, 3), 8), ((3, 0), 8), ((0,), 8), ((2, 3), 0), ((0, 2, 2), 8)):
        axes = len(image)
        feeds = {
            "x": np.zeros((2, channels, *image), np.float32),
            "w": rng.normal(size=(16, channels // group, *(2,) * axes)).astype(np.float32),
            "b": rng.normal(size=16).astype(np.float32),
        }
        if not channels and group > 1:
            continue
        for inputs in (["x", "w"], ["x", "w", "b"]):
            used = {name: feeds[name] for name in inputs}
            node = helper.make_node("Conv", inputs, ["y"], group=group, pads=[1] * 2 * axes)
            result = answer(model_of(node, used), used)
            assert result.shape == (2, 16, *(size + 1 for size in image))
            bias = feeds["b"] if "b" in used else np.zeros(16, np.float32)
            expected = np.broadcast_to(bias.reshape(16, *(1,) * axes), result.shape)
            np.testing.assert_array_equal(result, expected)


def test_a_transposed_convolution_of_nothing_ends_no_process(tmp_path):
    # Without the guard ONNX Runtime 1.32 ends with a segmentation fault.
    code = "import test_nothing; test_nothing.check_transposed_convolutions()"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=PATIENCE_SECONDS,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )


def check_transposed_convolutions():
    """Compare ConvTransposes of empty volumes with their bias."""
    for group, settings, sizes in (
        (1, {}, (3, 1, 4)),
        (2, {"strides": [2, 2, 1], "output_padding": [1, 1, 0]}, (5, 1, 4)),
        (1, {"strides": [1, 3, 1]}, (3, 0, 4)),
        (1, {"pads": [0, 0, 1, 0, 0, 1]}, (3, 1, 2)),
        (1, {"dilations": [1, 3, 1]}, (3, 3, 4)),
    ):
        feeds = {
            "x": np.zeros((2, 2, 2, 0, 3), np.float32),
            "w": np.full((2, 4 // group, 2, 2, 2), np.inf, np.float32),
            "b": np.arange(4, dtype=np.float32),
        }
        node = helper.make_node("ConvTranspose", list(feeds), ["y"], group=group, **settings)
        expected = np.broadcast_to(feeds["b"].reshape(4, 1, 1, 1), (2, 4, *sizes))
        np.testing.assert_array_equal(answer(model_of(node, feeds), feeds), expected)
