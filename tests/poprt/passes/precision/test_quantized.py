"""Models with dynamically quantized weights in half: the sums of integer products are scaled before
they are rounded. The witness is integer arithmetic of numpy."""

import numpy as np
import pytest
from model_runtime import Session
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from sample_models import make_model

ROWS, DEPTH, WIDTH = 4, 512, 8
F = TensorProto.FLOAT
random = np.random.default_rng(0)
WEIGHTS = {
    "matmul": random.integers(-127, 128, (DEPTH, WIDTH)).astype(np.int8),
    "conv": random.integers(-127, 128, (WIDTH, DEPTH, 1)).astype(np.int8),
}
X = random.standard_normal((ROWS, DEPTH)).astype(np.float32)
BIAS = random.integers(-100_000, 100_000, WIDTH).astype(np.int32)


def make_quantized(kind, scale, *, bias=False, reshaped=False, swapped=False):
    """Return the graph that quantizers write around an integer product."""
    scales = {"one": np.float32(3e-4), "per channel": np.linspace(1e-4, 9e-4, WIDTH)}[scale]
    scales = np.asarray(scales, np.float32)
    weights = {"w": WEIGHTS[kind], "scale": scales, "zero": np.int8(0)}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    product = "MatMulInteger" if kind == "matmul" else "ConvInteger"
    source = "q"
    if kind == "conv":
        weights["image"] = np.array([ROWS, DEPTH, 1])
        nodes.append(helper.make_node("Reshape", ["q", "image"], ["r"]))
        source = "r"
    nodes.append(helper.make_node(product, [source, "w", "z", "zero"], ["sum0"]))
    last = "sum0"
    if reshaped or kind == "conv":
        weights["flat"] = np.array([ROWS, WIDTH])
        nodes.append(helper.make_node("Reshape", [last, "flat"], ["sum1"]))
        last = "sum1"
    if bias:
        weights["bias"] = BIAS
        nodes.append(helper.make_node("Add", [last, "bias"], ["sum2"]))
        last = "sum2"
    factors = ["float", "scales"]
    nodes += [
        helper.make_node("Cast", [last], ["float"], to=F),
        helper.make_node("Mul", ["s", "scale"], ["scales"]),
        helper.make_node("Mul", factors[::-1] if swapped else factors, ["y"]),
    ]
    return make_model(nodes, {"x": (F, [ROWS, DEPTH])}, {"y": (F, [ROWS, WIDTH])}, weights), scales


def compute(kind, scales, x, *, bias):
    """Compute the same as the standard defines it, in integers and double."""
    x = x.astype(np.float64)
    low, high = min(0.0, x.min()), max(0.0, x.max())
    step = (high - low) / 255
    zero = np.clip(np.rint(-low / step), 0, 255)
    quantized = np.clip(np.rint(x / step) + zero, 0, 255) - zero
    weights = WEIGHTS[kind].astype(np.float64)
    sums = quantized @ (weights if kind == "matmul" else weights[:, :, 0].T)
    return (sums + (BIAS if bias else 0)) * step * scales.astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "form",
    [{}, {"bias": True}, {"reshaped": True}, {"swapped": True}],
    ids=["plain", "bias", "reshaped", "swapped"],
)
@pytest.mark.parametrize("scale", ["one", "per channel"])
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_sums_of_integer_products_are_scaled_before_they_are_rounded(kind, scale, form, precision):
    model, scales = make_quantized(kind, scale, **form)
    compiled = Compiler.compile(Converter(precision=precision).convert(model))
    dtype = np.float16 if precision == "fp16" else np.float32
    x = X.astype(dtype)
    session = Session(compiled.getPopefModel())
    session.runLoadPrograms()
    found = session.run({"x": x})["y"].astype(np.float64)
    expected = compute(kind, scales, x, bias=form.get("bias", False))
    limit = 2e-3 if precision == "fp16" else 1e-5
    assert np.abs(found - expected).max() < limit * np.abs(expected).max()
