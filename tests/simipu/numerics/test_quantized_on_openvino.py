"""Tests of quantized numbers on OpenVINO: its codes and sums are those of the standard, though it
computes them in float, also where its products of codes saturate."""

import os
import subprocess
import sys

import numpy as np
import pytest
from integer_products import FAMILIES, OPENVINO, Draw, compute, find_error, saturate, wide
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from sample_models import make_model
from simipu import AcceleratorError

pytest.importorskip("simipu.engines.openvino_graph", reason="openvino is not installed")
HALVES = np.arange(-700, 700, dtype=np.float32) / 4
NEIGHBOURS = np.concatenate(
    [np.nextafter(HALVES, np.float32(side)) for side in (-np.inf, 0, np.inf)] + [HALVES]
)
"""Multiples of a half and of a quarter, and the numbers next to them."""
EXTREMES = np.array([0, -0.0, 3e38, -3e38, np.inf, -np.inf], np.float32)
ZEROS = [
    (np.uint8, 0),
    (np.uint8, 1),
    (np.uint8, 127),
    (np.uint8, 255),
    (np.int8, -3),
    (np.int8, 4),
]


def answer(draw, expected, dtype=np.float32, opset=13):
    """Return whether the output on OpenVINO is the expected one."""
    case = draw.case(expected, dtype, 0, opset)
    return find_error(case, compute(case, OPENVINO)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_products_of_codes_are_those_of_64_bit_arithmetic_on_openvino(family):
    for number, case in enumerate(FAMILIES[family](3)):
        if number % 5 == 0:
            error = find_error(case, compute(case, OPENVINO))
            assert not error, f"{case.name} ({number}): error {error:g}"


@pytest.mark.slow
def test_no_product_saturates_where_openvino_has_no_vnni():
    program = """
from integer_products import FAMILIES, OPENVINO, compute, find_error
cases = [case for number, case in enumerate(FAMILIES["quantized"](4)) if number % 5 == 0]
print([case.name for case in cases if find_error(case, compute(case, OPENVINO))])
"""
    environment = {
        **os.environ,
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("scale", [0.25, 1.0])
@pytest.mark.parametrize(("dtype", "zero"), ZEROS)
def test_halves_are_quantized_to_even_with_every_zero_point(dtype, zero, scale):
    draw, x = Draw(0, "halves"), np.concatenate([NEIGHBOURS * np.float32(scale), EXTREMES])
    draw.put("x", x[None], constant=False)
    draw.put("scale", np.float32(scale))
    draw.put("zero", dtype(zero))
    draw.add("QuantizeLinear", ["x", "scale", "zero"])
    assert answer(draw, saturate(x[None].astype(np.float64) / scale, zero, dtype), dtype)


@pytest.mark.parametrize("axis", [1, -2, 2])
def test_halves_are_quantized_to_even_with_a_scale_per_channel(axis):
    draw, x = Draw(0, "channels"), np.resize(HALVES, (1, 4, 9, 30))
    sizes = [1] * x.ndim
    sizes[axis] = x.shape[axis]
    scales = np.float32(2) ** (np.arange(x.shape[axis], dtype=np.float32) % 3)
    zeros = np.arange(x.shape[axis]).astype(np.uint8) + np.uint8(90)
    draw.put("x", x, constant=False)
    draw.put("scale", scales)
    draw.put("zero", zeros)
    draw.add("QuantizeLinear", ["x", "scale", "zero"], axis=axis)
    quotients = np.rint(x / scales.reshape(sizes)) + zeros.reshape(sizes)
    assert answer(draw, np.clip(quotients, 0, 255), np.uint8)


@pytest.mark.parametrize(("low", "high"), [(-127, 128), (-100, 155), (0, 255), (-254.5, 0.5)])
def test_a_tensor_is_quantized_by_its_own_range_as_onnxruntime_does(low, high):
    draw, x = Draw(0, "range"), np.clip(NEIGHBOURS, low, high)
    x[:2] = low, high
    draw.put("x", x[None], constant=False)
    draw.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"]))
    case = draw.case(np.zeros(0), np.uint8, 0, 13)
    assert np.array_equal(compute(case, OPENVINO), compute(case, "unoptimised"))


@pytest.mark.parametrize("zero", [0, 1, 127, 128])
@pytest.mark.parametrize("op_type", ["QLinearMatMul", "QLinearConv"])
def test_halves_of_sums_are_quantized_to_even(op_type, zero):
    draw = Draw(7, op_type)
    a, b = draw.codes(np.uint8, (9, 300), "random"), draw.rng.integers(-1, 2, (300, 8), np.int8)
    bias = draw.rng.integers(-9, 9, 8).astype(np.int32) * (op_type == "QLinearConv")
    sums = wide(a, 128) @ wide(b) + bias
    expected = saturate(sums / 2, zero, np.uint8)
    for name, value in {"one": np.float32(1), "az": np.uint8(128), "bz": np.int8(0)}.items():
        draw.put(name, value)
    draw.put("two", np.float32(2))
    draw.put("yz", np.uint8(zero))
    if op_type == "QLinearConv":
        a, b = a.reshape(1, 9, 300).transpose(0, 2, 1), b.T[:, :, None]
        expected = expected.T[None]
        draw.put("bias", bias)
    draw.put("a", a, constant=False)
    draw.put("b", b)
    draw.add(op_type, [*"a one az b one bz two yz".split(), *["bias"] * (op_type == "QLinearConv")])
    assert answer(draw, expected, np.uint8)


def test_long_sums_in_groups_are_rejected_with_the_node():
    draw = Draw(0, "groups")
    draw.put("x", np.zeros((1, 64, 5, 5), np.uint8), constant=False)
    draw.put("w", np.zeros((2, 32, 3, 3), np.uint8))
    draw.add("ConvInteger", ["x", "w"], group=2)
    with pytest.raises(AcceleratorError, match=r"ConvInteger .*'y'.* sums of 288 products"):
        answer(draw, np.zeros((1, 2, 3, 3)), np.int32)


def test_a_served_model_quantizes_halves_to_even_on_openvino(compile_popef):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    weights = {"s": np.float32(1), "z": np.uint8(3)}
    spec = {"x": (TensorProto.FLOAT, ["N", 4])}
    model = make_model(nodes, spec, {"y": (TensorProto.UINT8, ["N", 4])}, weights)
    config = ModelRunnerConfig(batching_dim=0, accelerator=OPENVINO, num_threads=1)
    with ModelRunner(str(compile_popef(model)), config) as runner:
        x = np.array([[0.5, 1.5, 2.5, -0.5]], np.float32)
        assert runner.execute({"x": x})["y"].tolist() == [[3, 5, 5, 3]]
