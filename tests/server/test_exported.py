"""Exported folders on a real tritonserver, which checks their configurations and calls a stand-in.

The server's wheel has no backend onnxruntime. The stand-in is a Python backend under that name: it
runs ONNX Runtime on model.onnx, and has only the passing of arrays in common with this project.
"""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from compiled_models import compile_once
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.serving import installation
from poplar_triton.serving.server import TritonServer
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model, loudness_model, make_model
from triton_clients import infer

STAND_IN = """
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as utils
from triton_poplar.dlpack import to_capsule


class TritonPythonModel:
    def initialize(self, arguments):
        folder = os.path.join(arguments["model_repository"], arguments["model_version"])
        self.session = onnxruntime.InferenceSession(
            os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"]
        )

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        feeds = {tensor.name(): np.from_dlpack(tensor) for tensor in request.inputs()}
        names = [output.name for output in self.session.get_outputs()]
        values = zip(names, self.session.run(names, feeds))
        make = utils.Tensor.from_dlpack
        return utils.InferenceResponse([make(name, to_capsule(value)) for name, value in values])
"""


def number_model():
    """Return a model of rows that are numbers."""
    shape = (TensorProto.FLOAT, ["n"])
    return make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": shape}, {"y": shape}, {})


MODELS = {"linear": linear_model, "half": linear_model, "number": number_model}
REQUESTS = {
    "linear": [(1, 4), (9, 4)],
    "half": [(1, 4), (9, 4)],
    "number": [(1, 1), (9, 1)],
    "loud": [(4, 4)],
}
"""Shapes of requests to each model."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("exported")
    for name, make in {**MODELS, "loud": loudness_model}.items():
        precision = "fp16" if name == "half" else "fp32"
        compiled = compile_once(make(), precision=precision)
        write_triton_model(compiled, root / "models" / name)
        with (root / "models" / name / "config.pbtxt").open("a") as config:
            kind = f"TYPE_{precision.upper()}"
            dims = "[4, 4]" if name == "loud" else REQUESTS[name][0][1]
            config.write(
                'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value '
                f"{{ data_type: {kind} dims: {dims} zero_data: true }} }} }}"
            )
        arguments = (root / "models" / name, root / "models" / f"{name}_left")
        assert main(["export", *map(str, arguments)]) == 0
    patch = pytest.MonkeyPatch()
    link = installation.link_backends

    def link_with_stand_in(folder, triton):
        backends = link(folder, triton)
        (backends / "onnxruntime").mkdir()
        for name in (installation.STUB, installation.UTILITIES):
            (backends / "onnxruntime" / name).symlink_to((backends / "poplar" / name).resolve())
        (backends / "onnxruntime" / "model.py").write_text(STAND_IN)
        return backends

    patch.setattr(installation, "link_backends", link_with_stand_in)
    with patch.context(), TritonServer(root / "models", log=root / "log") as running:
        yield running
    patch.undo()


@pytest.mark.parametrize("model", REQUESTS)
def test_clients_get_the_same_answers_from_the_exported_model(model, server):
    dtype = np.float16 if model == "half" else np.float32
    tolerance = 0.02 if model == "half" else 1e-6
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for shape in REQUESTS[model]:
            rows = np.random.default_rng(0).standard_normal(shape).astype(dtype)
            expected, found = (
                infer(client, name, {"x": rows}) for name in (model, f"{model}_left")
            )
            assert list(found) == list(expected)
            for name, value in expected.items():
                assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
                np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)


def test_triton_batches_what_it_batched_before(server):
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for model in (*REQUESTS, *(f"{each}_left" for each in REQUESTS)):
            config = client.get_model_config(model).config
            assert config.max_batch_size == (0 if model.startswith("loud") else 4000)
            assert config.HasField("dynamic_batching") == bool(config.max_batch_size)
            assert len(config.model_warmup) == 1
