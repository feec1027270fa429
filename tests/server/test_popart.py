"""A PopART session's PopEF file, served by a real tritonserver, beside the session itself."""

import numpy as np
import popart
import pytest
import tritonclient.http as httpclient
from poplar_triton.serving.server import TritonServer
from triton_clients import infer

ROWS = 4
INPUT, ANCHORS = "in/x:0", ["encoder/MatMul:0", "Tanh:0"]


def make_model() -> bytes:
    random = np.random.default_rng(0)
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [ROWS, 8]), INPUT)
    w = builder.addInitializedInputTensor(random.standard_normal((8, 5), np.float32), "w:0/part")
    with builder.nameScope("encoder"):
        product = builder.aiOnnx.matmul([x, w])
    builder.aiOnnx.tanh([product])
    return builder.getModelProto()


def make_session(
    device: popart.DeviceInfo, batches: int, *, constant_weights: bool = True
) -> popart.InferenceSession:
    options = popart.SessionOptions()
    options.constantWeights = constant_weights
    flow = popart.DataFlow(batches, ANCHORS)
    return popart.InferenceSession(make_model(), flow, device, userOptions=options)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("popart")
    device = popart.DeviceManager().createOfflineIPUDevice({"ipuVersion": "ipu21"})
    for name, batches, constant in (("constant", 1, True), ("streamed", 3, False)):
        session = make_session(device, batches, constant_weights=constant)
        session.compileAndExport(folder / "repository" / name / "1" / "executable.popef")
        config = folder / "repository" / name / "config.pbtxt"
        config.write_text('backend: "poplar"\nmax_batch_size: 64\n')
    with (
        TritonServer(folder / "repository", log=folder / "log") as server,
        httpclient.InferenceServerClient(server.http_url) as client,
    ):
        yield client


@pytest.mark.parametrize(("name", "batches"), [("constant", 1), ("streamed", 3)])
def test_a_server_answers_a_sessions_file_bit_for_bit_as_the_session_does(client, name, batches):
    x = np.random.default_rng(1).standard_normal((batches, ROWS, 8)).astype(np.float32)
    session = make_session(popart.DeviceManager().createCpuDevice(), batches)
    session.prepareDevice()
    expected = session.initAnchorArrays()
    session.run(popart.PyStepIO({INPUT: x}, expected))
    found = infer(client, name, {INPUT: x.reshape(-1, 8)})
    for anchor in ANCHORS:
        assert np.array_equal(found[anchor], expected[anchor].reshape(-1, 5))
