"""Two clients at once of a model that divides by the loudest row of the batch.

One client sends loud rows and the other quiet ones.
Each gets its own answer, whichever way its requests reach the model.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from compiled_models import compile_once
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import loudness_model, steps_model
from triton_clients import infer
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_SECONDS

REQUESTS = 60
BATCH = 4

BATCHING = """
name: "{name}"
backend: "poplar"
max_batch_size: 64
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }}]
parameters {{ key: "synchronous_execution" value: {{ string_value: "{synchronous}" }} }}
"""

JOIN = 'parameters { key: "join_dependent_rows" value: { string_value: "1" } }\n'

ENSEMBLE = """
name: "ensemble"
platform: "ensemble"
max_batch_size: 64
input [{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }]
ensemble_scheduling { step [
    { model_name: "batching" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
] }
"""

BLS = """
name: "bls"
backend: "python"
max_batch_size: 64
dynamic_batching { max_queue_delay_microseconds: 20000 }
input [{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }]
instance_group [{ kind: KIND_CPU count: 2 }]
"""

BLS_MODEL = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Asks the batching model with what it was asked with."""

    def execute(self, requests):
        answers = []
        for request in requests:
            inner = pb_utils.InferenceRequest(
                model_name="batching",
                requested_output_names=["y"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "x")],
            ).exec()
            if inner.has_error():
                answers.append(pb_utils.InferenceResponse(error=inner.error()))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(inner, "y")]))
        return answers
'''


@pytest.fixture(scope="module")
def dependent(tmp_path_factory):
    root = tmp_path_factory.mktemp("dependent")
    repository = root / "repository"
    write_model(repository / "generated")
    write_model(repository / "completed", 'backend: "poplar"\n')
    write_model(repository / "batching", BATCHING.format(name="batching", synchronous="1"))
    write_model(repository / "asynchronous", BATCHING.format(name="asynchronous", synchronous="0"))
    write_model(repository / "joined", BATCHING.format(name="joined", synchronous="1") + JOIN)
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    (repository / "bls" / "1").mkdir(parents=True)
    (repository / "bls" / "config.pbtxt").write_text(BLS)
    (repository / "bls" / "1" / "model.py").write_text(BLS_MODEL)
    compiled = Compiler.compile(
        Converter(batch_size=BATCH, batch_axis=1).convert(steps_model()), batch_axis=1
    )
    write_triton_model(compiled, repository / "steps")
    log = root / "tritonserver.log"
    with TritonServer(repository, log=log) as running:
        running.log = log
        yield running


def write_model(folder: Path, config: str | None = None) -> None:
    write_triton_model(compile_once(loudness_model(), batch=BATCH), folder)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)


def ask_often(
    server: TritonServer, model: str, rows: int, loudest: float, protocol: str
) -> list[np.ndarray]:
    module, url = (
        (httpclient, server.http_url) if protocol == "http" else (grpcclient, server.grpc_url)
    )
    x = np.full((rows, 4), loudest, np.float32)
    x[:, 1:] /= 2
    with module.InferenceServerClient(url) as client:
        return [infer(client, model, {"x": x})["y"] for _ in range(REQUESTS)]


def ask_at_once(server: TritonServer, model: str, rows: dict[float, int]) -> list[np.ndarray]:
    """Return the answers to one client per protocol and loudness, which all run at once."""
    with ThreadPoolExecutor(2 * len(rows)) as pool:
        waits = [
            pool.submit(ask_often, server, model, count, loudest, protocol)
            for loudest, count in rows.items()
            for protocol in ("http", "grpc")
        ]
        return [answer for wait in waits for answer in wait.result(PATIENCE_SECONDS)]


@pytest.mark.parametrize("model", ["batching", "asynchronous", "ensemble", "bls"])
def test_a_quiet_client_beside_a_loud_one_gets_its_own_rows(dependent, model):
    answers = ask_at_once(dependent, model, {1.0: 1, 100.0: 2, 10_000.0: BATCH})
    assert len(answers) == 6 * REQUESTS
    for answer in answers:
        np.testing.assert_array_equal(answer, [[1, 0.5, 0.5, 0.5]] * len(answer))


@pytest.mark.parametrize("model", ["generated", "completed"])
def test_a_generated_configuration_takes_whole_batches_only(dependent, model):
    with httpclient.InferenceServerClient(dependent.http_url) as client:
        config = client.get_model_config(model)
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [4, 4])
        assert "dynamic_batching" not in config
        with pytest.raises(InferenceServerException, match="unexpected shape"):
            infer(client, model, {"x": np.ones((5, 4), np.float32)})["y"]
    for answer in ask_at_once(dependent, model, {1.0: BATCH, 100.0: BATCH}):
        np.testing.assert_array_equal(answer, [[1, 0.5, 0.5, 0.5]] * BATCH)


@pytest.mark.parametrize("model", ["batching", "asynchronous", "ensemble", "bls"])
def test_a_request_of_more_rows_than_the_batch_is_refused_by_the_nodes_name(dependent, model):
    with grpcclient.InferenceServerClient(dependent.grpc_url) as client:
        with pytest.raises(InferenceServerException, match=r"4 rows, found 5.*loudest_of_all"):
            infer(client, model, {"x": np.ones((5, 4), np.float32)})["y"]
        np.testing.assert_array_equal(
            infer(client, model, {"x": np.ones((3, 4), np.float32)})["y"], np.ones((3, 4))
        )


def test_the_real_backends_way_can_be_asked_for(dependent):
    with grpcclient.InferenceServerClient(dependent.grpc_url) as client:
        x = np.ones((8, 4), np.float32)
        x[1] = 100
        answer = infer(client, "joined", {"x": x})["y"]
    np.testing.assert_allclose(answer[:, 0], [0.01, 1, 0.01, 0.01, 1, 1, 1, 1])


def test_the_log_warns_of_the_node(dependent):
    text = dependent.log.read_text()
    assert (
        "model 'batching' has max_batch_size 64, but the rows of its compiled batch of 4 are not "
        "proven" in text
    )
    assert "'loudest_of_all' (ReduceMax): it reduces over the rows" in text


def test_any_number_of_sequences_is_taken_along_the_second_axis(dependent):
    x = np.random.default_rng(0).standard_normal((5, 9, 2)).astype(np.float32)
    with httpclient.InferenceServerClient(dependent.http_url) as client:
        assert client.get_model_config("steps")["input"][0]["dims"] == [5, -1, 2]
        whole = infer(client, "steps", {"x": x})["y"]
        assert whole.shape == (5, 9, 3)
        for rows in (1, 3, BATCH):
            found = infer(client, "steps", {"x": np.ascontiguousarray(x[:, :rows])})
            np.testing.assert_allclose(found["y"], whole[:, :rows], atol=1e-6)
            np.testing.assert_array_equal(found["last"], found["y"][-1])
