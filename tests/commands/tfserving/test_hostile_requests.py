"""Strangers' requests over gRPC on a real server, computed in its own process and forwarded: each gets one
answer, sound ones between them the right one, and the server is none the worse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hostile_models
import pytest
from commands.serving.server import TritonServer
from hostile_tfserving import KINDS, describe_growth, measure, run_cases
from tfserving_server import TfServing

pytestmark = pytest.mark.server
COUNT, WARM_UP = 20 * len(KINDS), 8 * len(KINDS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("hostile") / "repository"
    hostile_models.write_repository(repository)
    return repository


@pytest.fixture(params=["in process", "forwarded"])
def server(request, repository, tmp_path, monkeypatch) -> Iterator[TfServing]:
    for name, value in hostile_models.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if request.param == "in process":
        with TfServing(repository, log=tmp_path / "log", rest=False) as server:
            yield server
        return
    with (
        TritonServer(repository, options=hostile_models.OPTIONS, log=tmp_path / "triton") as triton,
        TfServing("--triton", triton.grpc_url, log=tmp_path / "log", rest=False) as server,
    ):
        yield server


def test_each_hostile_request_gets_one_answer_and_sound_ones_the_right_one(server):
    report = run_cases(server, range(WARM_UP), 1)
    before = measure(server)
    report.merge(run_cases(server, range(WARM_UP, COUNT), 1))
    assert report.faults == []
    assert describe_growth(before, measure(server), COUNT - WARM_UP) == []
    assert report.count("grpc") >= COUNT
    text = server.log.read_text()
    assert "Traceback" not in text
    assert "ended by itself" not in text
