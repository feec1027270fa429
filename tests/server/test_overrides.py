"""A configuration sent with a load request, as documented in docs/configuration.md."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from poplar_triton.serving.server import TritonServer
from sample_models import linear_model
from triton_clients import infer
from tritonclient.utils import InferenceServerException

from .conftest import write_model

MODEL = "mine"
CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overrides")
    write_model(folder / "repository" / MODEL, linear_model())
    options = ["--model-control-mode=explicit", f"--load-model={MODEL}"]
    with TritonServer(folder / "repository", options=options, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    with httpclient.InferenceServerClient(server.http_url) as client:
        yield client


def documented_config():
    """Return the configuration in the load request of the documentation."""
    found = re.search(
        rf"client\.load_model\(\"{MODEL}\", config='(.*)'\)\n", CONFIGURATION.read_text()
    )
    return json.loads(found[1])


def test_one_field_without_the_backend_is_refused_and_the_model_serves_on(http):
    config = {name: value for name, value in documented_config().items() if name != "backend"}
    assert config == {"max_batch_size": "16"}
    with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
        http.load_model(MODEL, config=json.dumps(config))
    assert http.get_model_config(MODEL)["max_batch_size"] == 4000


def test_the_documented_request_overrides_one_field_and_drops_the_parameters(server, http):
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.load_model(MODEL, config=json.dumps(documented_config()))
    found = http.get_model_config(MODEL)
    assert (found["max_batch_size"], found["parameters"]) == (16, {})
    assert [value["name"] for value in found["input"]] == ["x"]
    x = np.ones((16, 4), np.float32)
    np.testing.assert_array_equal(infer(http, MODEL, {"x": x})["z"], 2 * x)
    with pytest.raises(InferenceServerException, match="batch-size must be <= 16"):
        infer(http, MODEL, {"x": np.ones((17, 4), np.float32)})
