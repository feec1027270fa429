"""Effects of clients and models on the server's log: few lines, and no control characters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fault_clients import Client
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import gather_model, loudness_model

REQUESTS = 1_000
MODES = ["sync", "async"]

CONFIG = """
name: "{name}"
backend: "poplar"
max_batch_size: 64
{tensors}
parameters {{ key: "synchronous_execution" value: {{ string_value: "{synchronous}" }} }}
"""
TENSORS = {
    "gather": 'input { name: "ids" data_type: TYPE_INT32 dims: 2 } output { name: "rows" '
    "data_type: "
    "TYPE_FP32 dims: [ 2, 3 ] }",
    "loud": 'input [{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }] output [{ name: "y" data_type: '
    "TYPE_FP32 dims: [ 4 ] }]",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("log")
    loud = loudness_model()
    loud.graph.node[1].name = "loud\x1b[2J\nest"
    for name, model in (("gather", gather_model()), ("loud", loud)):
        compiled = Compiler.compile(Converter(batch_size=4).convert(model))
        for mode in MODES:
            model_folder = folder / "repository" / f"{name}_{mode}"
            write_triton_model(compiled, model_folder)
            config = CONFIG.format(
                name=model_folder.name, tensors=TENSORS[name], synchronous=int(mode == "sync")
            )
            (model_folder / "config.pbtxt").write_text(config)
    with TritonServer(folder / "repository", log=folder / "log") as running:
        running.log = folder / "log"  # type: ignore[attr-defined]
        yield running


def ours(log: Path) -> list[str]:
    """Return the log lines not written by Triton, even in the middle of one of Triton's."""
    lines = log.read_bytes().decode().split("\n")
    lines = [line[max(0, line.find("[poplar]")) :] for line in lines]
    return [line for line in lines if line.startswith("[poplar]") or "onnxruntime" in line.lower()]


REFUSED = {
    "a wrong shape": ("gather", {"ids": np.zeros((1, 3), np.int32)}, (), "INVALID_ARGUMENT"),
    "values": ("gather", {"ids": np.full((1, 2), 99, np.int32)}, (), "INTERNAL"),
    "too many rows": ("loud", {"x": np.ones((9, 4), np.float32)}, (), "INVALID_ARGUMENT"),
    "an unknown output": (
        "gather",
        {"ids": np.zeros((1, 2), np.int32)},
        ("q",),
        "INVALID_ARGUMENT",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", REFUSED)
def test_refused_requests_write_a_few_lines_with_the_instances_name(server, mode, kind):
    model, inputs, outputs, code = REFUSED[kind]
    before = len(ours(server.log))
    with Client(server, "grpc") as client:
        answers = [client.ask(f"{model}_{mode}", inputs, outputs) for _ in range(REQUESTS)]
    assert {answer.code for answer in answers} == {code}
    assert all(answer.message.isprintable() for answer in answers)
    lines = ours(server.log)[before:]
    assert len(lines) < REQUESTS / 50
    assert all(line.startswith(f"[poplar] {model}_{mode}_0: ") for line in lines), lines
    assert lines or kind != "values"


def test_names_reach_the_log_escaped(server):
    told = [line for line in ours(server.log) if "are not proven to be independent" in line]
    assert all(any(f"'loud_{mode}'" in line for line in told) for mode in MODES)
    assert all(r"loud\x1b[2J\nest" in line and line.isprintable() for line in told), told
