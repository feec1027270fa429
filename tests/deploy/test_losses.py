"""Requests lost by two servers behind HAProxy and Envoy.

One of the servers is killed, restarted, updated or loses a stub.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import cases
from fleet.cases import Fleet, Report, run_fleet
from fleet.models import PLAIN, write_version
from fleet.repositories import LocalRepository, fill
from fleet.tools import Tools

MAX_LOST_BY_A_CLIENT = {"HAProxy": 1, "Envoy": 0}


@pytest.fixture(scope="module")
def fleet(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    repository = LocalRepository(folder / "models")
    fill(repository, [PLAIN])
    with run_fleet(tools, folder, repository) as running:
        yield running


def check_nothing_lost(report: Report) -> None:
    print(report.describe())
    assert report.lost_nothing, report.describe()


def check_little_lost(report: Report) -> None:
    print(report.describe())
    for way, tally in report.tallies.items():
        assert not tally.wrongs, report.describe()
        assert tally.most_lost_by_a_client <= MAX_LOST_BY_A_CLIENT[way.through], report.describe()
    assert report.figures["seconds to 503"] < math.inf, report.describe()


def test_a_killed_server_costs_no_request(fleet):
    check_nothing_lost(cases.kill_server(fleet))


def test_a_killed_tritonserver_costs_no_request(fleet):
    check_nothing_lost(cases.kill_triton(fleet))


def test_a_rolling_restart_costs_no_request_though_nothing_is_tried_again(fleet):
    report = cases.roll(fleet)
    check_nothing_lost(report)
    assert (report.figures["exit status 1"], report.figures["exit status 2"]) == (0, 0)


def test_a_dead_stub_is_healed_by_a_reload(fleet):
    check_little_lost(cases.heal_by_reload(fleet))


def test_a_dead_stub_is_healed_by_a_restart(fleet):
    check_little_lost(cases.heal_by_restart(fleet))


def test_an_update_costs_no_request_and_both_versions_answer_meanwhile(fleet, tmp_path: Path):
    folder = write_version(tmp_path / PLAIN.name, PLAIN, cases.NEW_VERSION)
    report = cases.update(fleet, folder)
    check_nothing_lost(report)
    versions = [value for name, value in report.figures.items() if name.startswith("versions")]
    assert versions == [2, 2, 2, 2]
