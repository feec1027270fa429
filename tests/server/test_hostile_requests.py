"""Hostile requests and executables on a real server: each gets one answer, the server no harm.

`make hostile` does the same ten thousand times over.
"""

from __future__ import annotations

import hostile_loads
import hostile_models
import pytest
from hostile_runner import check_models, describe_growth, measure, run_cases, shared_region
from poplar_triton.serving.server import TritonServer

pytestmark = pytest.mark.slow


def test_each_hostile_request_gets_one_answer_and_sound_ones_the_right_one(tmp_path, monkeypatch):
    """Every kind is sent over each protocol three or four times; the first third warms up."""
    count, third = 400, 130
    for name, value in hostile_models.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    hostile_models.write_repository(tmp_path / "repository")
    with TritonServer(
        tmp_path / "repository", options=hostile_models.OPTIONS, log=tmp_path / "log"
    ) as server:
        with shared_region(server):
            report = run_cases(server, range(third), 1)
            before = measure(server)
            report.merge(run_cases(server, range(third, count), 1))
            assert report.faults == []
            assert check_models(server) == []
            growth = describe_growth(before, measure(server), count - third)
        assert growth == []
    assert report.count("http") + report.count("grpc") >= count


def test_each_hostile_executable_loads_or_says_why_not(tmp_path, monkeypatch):
    for name, value in hostile_loads.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    hostile_loads.write_repository(tmp_path / "repository")
    with TritonServer(
        tmp_path / "repository", options=hostile_loads.OPTIONS, log=tmp_path / "log"
    ) as server:
        before = measure(server)
        report = hostile_loads.load_all(
            server, range(3), ["function_bomb", "large_constant", "endless_loop"]
        )
        assert report.faults == []
        assert report.count("load") == 6
        assert describe_growth(before, measure(server), 0) == []
