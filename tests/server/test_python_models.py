"""Python models beside poplar models, with the numpy of this environment, and with numpy 1 in an
environment of their own, which `make .venv/numpy-1` makes once."""

import queue
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from compiled_models import compile_once
from poplar_triton.serving.server import TritonServer
from poprt.triton.model_folder import write_triton_model
from python_models import make_inputs, write_python_models
from sample_models import linear_model
from triton_clients import infer

NUMPY_1 = Path(sys.prefix, "numpy-1")


@pytest.fixture(scope="module", params=["own numpy", "numpy 1"])
def python_server(request, tmp_path_factory):
    environment = NUMPY_1 if request.param == "numpy 1" else None
    if environment and not (environment / "bin" / "activate").exists():
        pytest.skip("make .venv/numpy-1; there is none for Python 3.13")
    repository = tmp_path_factory.mktemp("models")
    write_triton_model(compile_once(linear_model()), repository / "linear")
    write_python_models(repository, "linear", environment)
    with TritonServer(repository) as server:
        assert server.failed_models() == {}
        yield server


@pytest.fixture(params=[httpclient, grpcclient])
def client(request, python_server):
    grpc = request.param is grpcclient
    url = python_server.grpc_url if grpc else python_server.http_url
    with request.param.InferenceServerClient(url) as client:
        yield client


@pytest.mark.parametrize("rows", [0, 1, 2, 17, 1000])
def test_every_type_comes_back_as_it_went(client, rows):
    inputs = make_inputs(rows)
    answer = infer(client, "echo", inputs)
    for name, array in inputs.items():
        back = answer[f"{name}_back"]
        assert back.shape == array.shape
        assert back.tolist() == array.tolist(), name


def test_an_ensemble_computes_in_a_python_model_and_then_in_ours(client):
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_array_equal(infer(client, "ensemble", {"x": x})["y"], 4 * x)


@pytest.mark.parametrize("way", ["exec", "async_exec"])
@pytest.mark.parametrize("model", ["double", "ensemble"])
def test_a_python_model_asks_another_one(client, model, way):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    words = np.array([[model, way]] * 3, object)
    answer = infer(client, "caller", {"x": x, "words": words})
    factor = {"double": 2, "ensemble": 4}[model]
    np.testing.assert_array_equal(answer["y"], factor * x + 1)
    sums = factor * x.sum(axis=1)
    assert answer["said"].ravel().tolist() == [f"{model} said {s:g}".encode() for s in sums]


def test_the_error_of_another_model_reaches_the_client(client):
    x, words = np.ones((1, 4), np.float32), np.array([["nobody", "exec"]], object)
    with pytest.raises(httpclient.InferenceServerException, match="nobody"):
        infer(client, "caller", {"x": x, "words": words})


def test_a_decoupled_model_sends_many_responses(python_server):
    answers = queue.SimpleQueue()
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    with grpcclient.InferenceServerClient(python_server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        client.async_stream_infer("stream", [tensor])
        for row in x:
            result, error = answers.get(timeout=120)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), row[::-1])
        client.stop_stream()


def test_arrays_that_triton_has_no_type_for_are_rejected_as_ever(request, client):
    said = "TritonModelException,TritonModelException,TypeError,TritonModelException,no name"
    version = "1." if "numpy 1" in request.node.name else np.__version__
    with pytest.raises(httpclient.InferenceServerException, match=f"numpy {version}.*{said}"):
        infer(client, "rejected", {"x": np.ones(4, np.float32)})
