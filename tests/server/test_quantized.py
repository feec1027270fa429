"""Calibrated 8-bit models in a real server."""

import numpy as np
import onnx
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, CompilerOptions, Converter
from poprt.quantizer import quantize
from poprt.triton.model_folder import write_triton_model
from sample_models import make_model
from triton_clients import infer

LOSSES = {"searched": ("fp8", "mse"), "adjusted": ("fp8_weight", "gptq")}
WIDTH = 300
"""Width of the weights, 300 x 300, that stay codes when they are served."""


def network() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((WIDTH, WIDTH)),
        "w2": random.standard_normal((WIDTH, 10)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], name="last"),
    ]
    tensors = {name: (value / 20).astype(np.float32) for name, value in weights.items()}
    return make_model(
        nodes,
        {"x": (TensorProto.FLOAT, ["n", WIDTH])},
        {"y": (TensorProto.FLOAT, ["n", 10])},
        tensors,
    )


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    samples = {"x": np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)}
    for name, (precision, loss) in LOSSES.items():
        prepared = Converter(precision=precision, batch_size=4, quantize=True).convert(network())
        made = quantize(prepared, None, folder, samples, precision, loss)
        options = CompilerOptions(ipu_version="ipu21")
        write_triton_model(Compiler.compile(made, None, options), folder / "repository" / name)
    with (
        TritonServer(folder / "repository", log=folder / "log") as server,
        httpclient.InferenceServerClient(server.http_url) as client,
    ):
        yield client


@pytest.mark.parametrize("name", LOSSES)
def test_a_calibrated_model_answers_through_the_server(http, name):
    x = np.random.default_rng(2).standard_normal((3, WIDTH)).astype(np.float16)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in network().graph.initializer}
    expected = np.maximum(x @ weights["w1"], 0) @ weights["w2"]
    found = infer(http, name, {"x": x})["y"]
    assert found.dtype == np.float16
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 1e-4 < error < 0.1  # rounded to 8 bits, and no further off than that
