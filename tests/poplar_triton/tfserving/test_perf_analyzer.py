"""Triton's perf_analyzer as an independent client of TensorFlow Serving's protocol.

It runs on all example models.
"""

from __future__ import annotations

from collections.abc import Iterator

import inputs
import perf_analyzer
import pytest
import repository
from poplar_triton.serving.server import TritonServer
from server_processes import TfServing

pytestmark = [pytest.mark.server, pytest.mark.slow]
MODELS = ("document_orientation", "magika", "sentence_similarity", "text_recognition")
SECONDS = 0.2


@pytest.fixture(scope="module", params=["in process", "forwarded"])
def server(request, tmp_path_factory) -> Iterator[TfServing]:
    folder = tmp_path_factory.mktemp("tfserving")
    if request.param == "in process":
        with TfServing(repository.EXAMPLES, log=folder / "log", rest=False) as server:
            yield server
        return
    with (
        TritonServer(repository.EXAMPLES, log=folder / "triton") as triton,
        TfServing("--triton", triton.grpc_url, log=folder / "log", rest=False) as server,
    ):
        yield server


@pytest.mark.parametrize("model", MODELS)
def test_no_request_fails(server, model, tmp_path):
    """perf_analyzer reports failures by its exit status, which `measure` raises."""
    perf_analyzer.prepare()
    config = repository.read_config(repository.EXAMPLES / model)
    data = inputs.write_inputs(tmp_path, config, inputs.make_rows(config, 4))
    shapes = inputs.whole_shapes(config)
    measured = perf_analyzer.measure(server.grpc_url, model, 4, data, SECONDS, shapes=shapes)
    assert measured.per_second > 0
    with pytest.raises(RuntimeError, match="perf_analyzer"):
        perf_analyzer.measure(server.grpc_url, "none", 1, data, SECONDS, shapes=shapes)
