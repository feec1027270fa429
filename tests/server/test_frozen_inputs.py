"""Models on a real tritonserver with inputs of special kinds.

PopEF files hold the inputs' data, the host concatenates them, or they are packed samples.
"""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from frozen_inputs import scale_model, write_data
from model_runtime import ModelRunner
from onnx import TensorProto, helper
from packable_models import row_sums_model
from poplar_triton.serving.server import TritonServer
from poprt import Compiler
from poprt.passes import get_pass
from poprt.runtime import PackAlgorithm, PackRunnerConfig
from poprt.runtime.pack_layout import PackLayout
from sample_models import make_model
from triton_clients import infer
from tritonclient.utils import InferenceServerException

SCALE = np.array([1, 10, 100], np.float32)
BATCHED = """
backend: "poplar"
max_batch_size: 64
dynamic_batching { max_queue_delay_microseconds: 1000 }
input [{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 3 ] }]
"""
SERVED = ("completed", "batched", "joined", "packed")
MINIMAL = 'backend: "poplar"\n'
TOO_MANY = BATCHED.replace(
    "dims: [ 3 ] }]\noutput",
    'dims: [ 3 ] }, { name: "scale" data_type: TYPE_FP32 dims: [ 3 ] }]\noutput',
)


def joined_model():
    """Return the model y = concat(a, b, c), of which apply_host_concat_split makes one input."""
    model = make_model(
        [helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=1)],
        dict.fromkeys("abc", (TensorProto.FLOAT, [4, 1])),
        {"y": (TensorProto.FLOAT, [4, 3])},
        {},
    )
    return get_pass("apply_host_concat_split", [(TensorProto.FLOAT, (4, 1))])(model)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("frozen")
    scaled = Compiler.compile(scale_model())
    for name, config in (("completed", MINIMAL), ("batched", BATCHED), ("too_many", TOO_MANY)):
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        scaled.export(folder / "executable.popef")
        write_data(folder / "weights.popef", {"scale": SCALE})
        (repository / name / "config.pbtxt").write_text(config)
    for name, model in (("joined", joined_model()), ("packed", row_sums_model())):
        (repository / name / "1").mkdir(parents=True)
        Compiler.compile(model).export(repository / name / "1" / "executable.popef")
        (repository / name / "config.pbtxt").write_text(MINIMAL)
    log = repository.parent / "frozen.log"
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in SERVED)]
    with TritonServer(repository, log=log, options=options) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module, url = {
        "http": (httpclient, server.http_url),
        "grpc": (grpcclient, server.grpc_url),
    }[request.param]
    with module.InferenceServerClient(url) as made:
        yield made


@pytest.mark.parametrize(("name", "rows"), [("completed", 4), ("batched", 1), ("batched", 9)])
def test_a_frozen_input_is_not_asked_for(client, name, rows):
    x = np.random.default_rng(rows).random((rows, 3), np.float32)
    np.testing.assert_array_equal(infer(client, name, {"x": x})["y"], x * SCALE + x)


def test_a_configuration_that_asks_for_it_is_refused(client):
    with pytest.raises(
        InferenceServerException, match="input 'scale', but the PopEF files contain its data"
    ):
        client.load_model("too_many")


def test_inputs_that_the_host_joins_are_one_input(client):
    parts = np.random.default_rng(0).random((3, 4), np.float32)
    np.testing.assert_array_equal(infer(client, "joined", {"host_concat_0": parts})["y"], parts.T)


def test_samples_that_a_client_packs_get_their_own_sums(client):
    config = PackRunnerConfig(dynamic_input_name="ids", algorithm=PackAlgorithm.first_fit)
    config.enable_input_single_row_mode("mask")
    compiled = runner_descriptions()
    layout = PackLayout(*compiled, config)
    group = layout.open()
    samples = []
    for length in (5, 3, 8, 2):
        ids = np.arange(length, dtype=np.int32) + length
        taken = layout.read(
            {"ids": ids, "mask": np.ones(length, np.int32)}, {"sums": np.zeros(length, np.float32)}
        )
        assert layout.put(group, taken)
        samples.append(taken)
    layout.seal(group)
    found = infer(client, "packed", group.arrays)
    for taken in samples:
        layout.give(taken, found)
        np.testing.assert_array_equal(
            taken.outputs["sums"], np.full(taken.lengths, taken.inputs["ids"].sum())
        )


def runner_descriptions():
    with ModelRunner(Compiler.compile(row_sums_model()).getPopefModel()) as runner:
        return runner.getExecuteInputs(), runner.getExecuteOutputs()
