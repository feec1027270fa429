"""PopTorch's files on a real tritonserver, beside the executors that wrote them.

The models are whole: BERT-base of transformers and ResNet-50 of torchvision, with random weights.
Answers over HTTP are compared bit for bit with what the executor returns in this process.
"""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

httpclient = pytest.importorskip("tritonclient.http")

import poptorch  # noqa: E402
from poplar_triton.serving.server import TritonServer  # noqa: E402
from poptorch.execution import files  # noqa: E402
from triton_clients import infer  # noqa: E402

SECONDS = 1800
MINUTE = 60.0
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(SECONDS)]


def make_mlp():
    torch.manual_seed(5)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 5)
    return torch.nn.Sequential(*layers).eval()


class Accumulator(torch.nn.Module):
    """Module that adds its inputs up in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2))

    def forward(self, x):
        self.total += x
        return self.total * 1


class Trap:
    """Object that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def write_model(repository, name, model, rows):
    """Write the file of a compiled model into a repository."""
    model.save(repository / name / "1" / "executable.popef", export_model=False)
    text = f'backend: "poplar"\nmax_batch_size: {rows}\n'
    (repository / name / "config.pbtxt").write_text(text)


def serve(repository):
    return TritonServer(repository, log=repository.parent / "log", start_seconds=SECONDS)


def ask(server, name, inputs):
    """Return the outputs of a model by name."""
    url = server.http_url
    patient = {"network_timeout": 10 * MINUTE, "connection_timeout": MINUTE}
    with httpclient.InferenceServerClient(url, **patient) as client:
        return infer(client, name, inputs)


def are_bits_equal(found, expected):
    expected = expected.detach().numpy()
    same_kind = (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return same_kind and found.tobytes() == expected.tobytes()


def test_small_models_answer_as_their_executors(tmp_path):
    repository, trap = tmp_path / "repository", tmp_path / "trap"
    x = torch.randn(8, 16)
    iterating = poptorch.inferenceModel(make_mlp(), poptorch.Options().deviceIterations(4))
    half = poptorch.inferenceModel(make_mlp().half())
    state = poptorch.inferenceModel(Accumulator())
    expected = iterating(x), half(x.half())
    step = torch.tensor([[1.0, 2.0]])
    totals = [state(step) for _ in range(2)]
    for name, model, rows in (("iterating", iterating, 2), ("half", half, 8), ("state", state, 0)):
        write_model(repository, name, model, rows)
    file = repository / "iterating" / "1" / "executable.popef"
    executable = files.Executable(file)
    executable.appendOpaqueBlobs({files.BLOB: pickle.dumps(Trap(trap))})
    executable.export(file)
    with serve(repository) as server:
        parts = [ask(server, "iterating", {"input": part.numpy()}) for part in x.split(2)]
        (name,) = parts[0]
        assert are_bits_equal(np.concatenate([part[name] for part in parts]), expected[0])
        (found,) = ask(server, "half", {"input": x.half().numpy()}).values()
        assert are_bits_equal(found, expected[1])
        # The client carries the state: it sends the buffer and gets its new value.
        total = np.zeros((1, 2), np.float32)
        for expected_total in totals:
            outputs = ask(server, "state", {"input": step.numpy(), "total": total})
            total, found = take_state(outputs, state)
            assert are_bits_equal(found, expected_total)
    assert not trap.exists()


def take_state(outputs, model):
    """Return the new value of the buffer, and the result."""
    (state,) = model._loaded.captured.state
    (result,) = (value for name, value in outputs.items() if name != state.output)
    return outputs[state.output], result


def test_bert_base_answers_as_its_executor(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    module = transformers.BertForSequenceClassification(transformers.BertConfig()).eval()
    ids, mask = torch.randint(0, 30522, (2, 32)), torch.ones(2, 32, dtype=torch.int32)
    mask[1, 20:] = 0
    model = poptorch.inferenceModel(module)
    expected = model(ids, mask).logits
    torch.testing.assert_close(expected, module(ids, mask).logits, atol=1e-5, rtol=1e-4)
    write_model(tmp_path / "repository", "bert", model, 2)
    model.destroy()
    with serve(tmp_path / "repository") as server:
        inputs = {"input": ids.numpy().astype(np.int32), "input/1": mask.numpy()}
        (found,) = ask(server, "bert", inputs).values()
    assert are_bits_equal(found, expected)


def test_resnet_50_answers_as_its_executor(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = torchvision.models.resnet50(weights=None).eval()
    x = torch.randn(2, 3, 224, 224)
    model = poptorch.inferenceModel(module)
    expected = model(x)
    torch.testing.assert_close(expected, module(x), atol=1e-4, rtol=1e-4)
    write_model(tmp_path / "repository", "resnet", model, 2)
    model.destroy()
    with serve(tmp_path / "repository") as server:
        outputs = ask(server, "resnet", {"input": x.numpy()})
    assert list(outputs) == ["fc/Gemm:0"]
    assert are_bits_equal(outputs["fc/Gemm:0"], expected)
