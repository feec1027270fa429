"""Hostile requests over gRPC to a real server, computed in its own process or forwarded.

Each gets one answer, valid ones between them get the right one, and the server is not harmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hostile_models
import pytest
from hostile_tfserving import KINDS, describe_growth, measure, run_cases
from poplar_triton.serving.server import TritonServer
from server_processes import TfServing

pytestmark = [pytest.mark.server, pytest.mark.slow]
WARM_UP, BLOCK = 8 * len(KINDS), 3 * len(KINDS)
STARTS = range(WARM_UP, 20 * len(KINDS), BLOCK)


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
    usages = [measure(server)]
    for start in STARTS:
        report.merge(run_cases(server, range(start, start + BLOCK), 1))
        usages.append(measure(server))
    assert report.faults == []
    assert describe_growth(usages, BLOCK) == []
    assert report.count("grpc") >= WARM_UP + BLOCK * len(STARTS)
    text = server.log.read_text()
    assert "Traceback" not in text
    assert "ended by itself" not in text
