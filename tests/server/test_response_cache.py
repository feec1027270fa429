"""Triton's response cache: its key has the inputs of a request, but not the outputs that it asks
for."""

import itertools

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from life_cycle_models import set_mode, write_model
from onnx import TensorProto, helper
from poplar_triton.serving.installation import find_triton
from poplar_triton.serving.server import TritonServer
from sample_models import make_model
from triton_clients import infer, send
from waiting import PATIENCE_SECONDS

CACHED = "response_cache { enable: true }"
OUTPUTS = {"sum": np.add, "product": np.multiply, "difference": np.subtract}
SUBSETS = [subset for size in (1, 2, 3) for subset in itertools.combinations(OUTPUTS, size)]


def three_outputs():
    spec = (TensorProto.FLOAT, ["n", 2])
    nodes = [
        helper.make_node(kind, ["a", "b"], [name])
        for kind, name in zip(("Add", "Mul", "Sub"), OUTPUTS, strict=True)
    ]
    return make_model(nodes, {"a": spec, "b": spec}, dict.fromkeys(OUTPUTS, spec), {})


@pytest.fixture(scope="module")
def cached_server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("cached")
    for mode in ("synchronous", "asynchronous"):
        write_model(repository / mode, three_outputs(), set_mode(mode), CACHED)
    options = [
        "--cache-config=local,size=16777216",
        f"--cache-directory={find_triton() / 'caches'}",
    ]
    with TritonServer(repository, options=options) as server:
        yield server


def ask(client, module, model, inputs, subset):
    outputs = [module.InferRequestedOutput(name) for name in subset] if subset else None
    return infer(client, model, inputs, outputs=outputs)


@pytest.mark.parametrize("module", [httpclient, grpcclient])
@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
def test_each_response_has_the_outputs_that_it_asks_for(cached_server, model, module):
    """Every subset is first once, and every other one comes after it."""
    url = cached_server.http_url if module is httpclient else cached_server.grpc_url
    client = module.InferenceServerClient(url)
    random = np.random.default_rng(len(model))
    for first in [None, *SUBSETS]:
        inputs = {name: random.standard_normal((3, 2)).astype(np.float32) for name in "ab"}
        for subset in (first, *SUBSETS, None):
            answer = ask(client, module, model, inputs, subset)
            assert set(answer) >= set(subset or OUTPUTS)
            for name in subset or OUTPUTS:
                expected = OUTPUTS[name](inputs["a"], inputs["b"])
                np.testing.assert_array_equal(answer[name], expected)
    client.close()


def test_many_clients_that_ask_for_different_outputs_get_them(cached_server):
    client = grpcclient.InferenceServerClient(cached_server.grpc_url)
    random = np.random.default_rng(0)
    rows = [random.standard_normal((1, 2)).astype(np.float32) for _ in range(30)]
    subsets = [SUBSETS[number] for number in random.integers(0, len(SUBSETS), 240)]
    for model in ("synchronous", "asynchronous"):
        calls = []
        for number, subset in enumerate(subsets):
            inputs = {"a": rows[number % 30], "b": rows[-1 - number % 30] + np.float32(1)}
            outputs = [grpcclient.InferRequestedOutput(name) for name in subset]
            calls.append((inputs, subset, send(client, model, inputs, outputs=outputs)))
        for inputs, subset, call in calls:
            answer = call.result(PATIENCE_SECONDS)
            for name in subset:
                expected = OUTPUTS[name](inputs["a"], inputs["b"])
                np.testing.assert_array_equal(answer[name], expected)
    client.close()
