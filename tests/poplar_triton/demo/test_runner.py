"""Tests that the demo's runner passes only if all is equal.

ONNX Runtime behind Triton's client interface stands for the server.
"""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from poplar_triton.demo import runner
from poplar_triton.demo.document_orientation import DocumentOrientation
from poplar_triton.demo.example import Case
from rich.console import Console
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def example(repository):
    return DocumentOrientation(repository / "document_orientation")


class Client:
    """Client that answers like a server with the original model; `change` spoils its outputs."""

    def __init__(self, reference, change=lambda scores: scores):
        self._reference, self._change = reference, change

    def infer(self, model, inputs):
        # Bytes as they go over the wire, so that a wrong cast shows.
        (image,) = (
            np.frombuffer(tensor._get_binary_data(), np.float16).reshape(tensor.shape())
            for tensor in inputs
        )
        case = Case("", {"image": image.astype(np.float32)}, ())
        scores = self._change(self._reference.run(case)["scores"].astype(np.float16))

        class Answer:
            def as_numpy(self, name):
                return {"scores": scores}.get(name)

        return Answer()


def show(example, reference, monkeypatch, change=lambda scores: scores, inputs=("image",)):
    client = Client(reference("document_orientation"), change)
    # One protocol twice: the gRPC tensors keep their bytes elsewhere.
    monkeypatch.setattr(runner, "grpcclient", runner.httpclient)
    monkeypatch.setattr(runner, "TIMED", 1)
    server = runner.Server(
        example.model, dict.fromkeys(inputs, "FP16"), {"scores": "FP16"}, client, client
    )
    screen = io.StringIO()
    console = Console(file=screen, width=160)
    equal = runner.show(
        example, server, reference("document_orientation"), console, lambda model, rows: rows * 1e-6
    )
    return equal, screen.getvalue()


def test_equal_answers_are_shown_and_pass(example, reference, monkeypatch):
    equal, text = show(example, reference, monkeypatch)
    assert equal
    assert "rotated 90°" in text
    assert "4 us" in text
    assert (
        "document_orientation: equal to ONNX Runtime within 0.02 of the largest value: yes" in text
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scores: scores + np.float16(0.1), "HTTP, output scores: error 0.1, tolerance 0.0"),
        (
            lambda scores: scores * np.float16("nan"),
            "HTTP, output scores: error nan, tolerance 0.0",
        ),
        (lambda scores: scores[:, :3], "HTTP, output scores: expected shape [1, 4], got [1, 3]"),
        (lambda scores: None, "HTTP, output scores: expected shape [1, 4], got nothing"),
    ],
)
def test_a_wrong_output_fails_and_is_named(example, reference, monkeypatch, change, message):
    equal, text = show(example, reference, monkeypatch, change)
    assert not equal
    assert f"document_orientation, a page rotated 0°, {message}" in text
    assert "equal to ONNX Runtime within 0.02 of the largest value: no" in text


def test_a_refused_request_fails_and_the_others_are_still_made(example, reference, monkeypatch):
    def refuse(scores):
        if len(scores) == 4:
            raise InferenceServerException("no room")
        return scores

    equal, text = show(example, reference, monkeypatch, refuse)
    assert not equal
    assert "document_orientation, all together, gRPC: no room" in text
    assert "rotated 270°" in text


def test_a_model_with_other_inputs_fails_with_their_names(example, reference, monkeypatch):
    equal, text = show(example, reference, monkeypatch, inputs=("x",))
    assert not equal
    assert "has no input image; see config.pbtxt" in text


def test_another_answer_within_the_tolerance_fails(example):
    verdict = runner.verdict_for(half=True)
    near = [{"scores": np.array([[a, b, 0, 0]])} for a, b in ((0.5, 0.499), (0.499, 0.5))]
    assert verdict.compare("here", "scores", near[0]["scores"], near[1]["scores"])
    runner.compare_decisions(example, near[0], near[1], verdict, "here")
    assert verdict.failures == ["here: answers ['0'], ONNX Runtime answers ['90']"]


@pytest.mark.parametrize(
    ("half", "size", "tolerance"),
    [(True, 4, 0.08), (True, 0.5, 0.01), (False, 4, 4e-4), (False, 0.5, 1e-4)],
)
def test_the_tolerance_follows_the_largest_value(half, size, tolerance):
    assert runner.verdict_for(half).tolerance(np.array([size, -size / 2])) == pytest.approx(
        tolerance
    )


def test_a_server_that_is_not_there_fails_with_its_models_named(repository):
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    nowhere = "127.0.0.1:9"
    assert not runner.run(
        nowhere, nowhere, repository, console, ipu_seconds=lambda model, rows: 0.0
    )
    assert screen.getvalue().count("cannot be shown") == 4


def test_the_first_answer_is_not_timed_and_of_the_others_the_median_counts(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    asked = []
    outputs, seconds = runner.timed(lambda case: asked.append(case) or len(asked), Case("", {}, ()))
    assert (outputs, seconds, len(asked)) == (1, 2.0, 1 + runner.TIMED)


class ManySubjects:
    """Example with several rows in one case."""

    model = "many"

    def __init__(self, rows):
        self._rows = rows

    def cases(self):
        names = tuple(map(str, range(self._rows)))
        return [Case("rows", {"x": np.ones((self._rows, 1), np.float32)}, names)]

    def decide(self, outputs):
        return []

    def describe(self, outputs, case):
        return [f"answer {name}" for name in case.subjects]


@pytest.mark.parametrize(
    ("rows", "shown", "more"), [(6, 6, ""), (7, 5, "... and 2 more"), (9, 5, "... and 4 more")]
)
def test_of_many_answers_the_first_are_shown(monkeypatch, rows, shown, more):
    monkeypatch.setattr(runner, "TIMED", 1)
    outputs = {"y": np.ones((rows, 1), np.float32)}
    server = SimpleNamespace(ask_http=lambda case: outputs, ask_grpc=lambda case: outputs)
    reference = SimpleNamespace(run=lambda case: outputs)
    example = ManySubjects(rows)
    verdict = runner.verdict_for(half=False)
    (row,) = runner._iter_rows(
        example, server, reference, verdict, example.cases()[0], lambda *_: 1.5e-6
    )
    title, answer, count, http, grpc, modelled = row
    lines = answer.splitlines()
    assert lines[:shown] == [f"answer {index}" for index in range(shown)]
    assert lines[shown:] == ([more] if more else [])
    assert (title, count, modelled) == ("rows", str(rows), "2 us")
    assert http.endswith(" ms")
    assert grpc.endswith(" ms")
    assert verdict.failures is None


def test_the_worst_error_is_kept_with_what_was_allowed_there():
    verdict = runner.verdict_for(half=True)
    for error, size in ((0.01, 10.0), (0.005, 100.0), (0.02, 1.0)):
        verdict.compare("here", "y", np.array([size + error]), np.array([size]))
    assert verdict.worst == pytest.approx(0.02)
    assert verdict.allowed_there == pytest.approx(0.02)
    verdict.compare("here", "y", np.array([np.nan]), np.array([1.0]))
    verdict.compare("here", "y", np.array([5.0]), np.array([1.0]))
    assert np.isnan(verdict.worst), "nothing is worse"


def test_a_server_says_the_names_and_types_of_its_tensors():
    metadata = {
        "inputs": [{"name": "x", "datatype": "FP32"}],
        "outputs": [{"name": "y", "datatype": "FP16"}, {"name": "z", "datatype": "INT32"}],
    }
    http = SimpleNamespace(get_model_metadata=lambda model: metadata)
    server = runner.ask_metadata("m", http, None)
    assert (server.inputs, server.outputs) == ({"x": "FP32"}, {"y": "FP16", "z": "INT32"})
    assert server.half
    assert not runner.Server("m", {"x": "FP16"}, {"y": "FP32"}, None, None).half
