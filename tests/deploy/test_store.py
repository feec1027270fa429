"""Two servers whose repository is in an S3 store.

They serve, load a new version, and survive the loss of their store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import cases
from fleet.cases import Fleet, run_fleet
from fleet.models import PLAIN, write_version
from fleet.repositories import Store, fill
from fleet.tools import Tools


@pytest.fixture(scope="module")
def store(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tools, tmp_path_factory.mktemp("store")) as running:
        fill(running, [PLAIN])
        yield running


@pytest.fixture(scope="module")
def fleet(tools: Tools, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with run_fleet(tools, tmp_path_factory.mktemp("fleet"), store) as running:
        yield running


def test_an_update_out_of_the_store_costs_no_request(fleet, tmp_path: Path):
    folder = write_version(tmp_path / PLAIN.name, PLAIN, cases.NEW_VERSION)
    report = cases.update(fleet, folder)
    print(report.describe())
    assert report.lost_nothing, report.describe()


def test_a_lost_store_costs_no_request(fleet, store):
    report = cases.lose_store(fleet, store)
    print(report.describe())
    assert not report.figures["loads meanwhile"]
    assert report.lost_nothing, report.describe()


def test_a_dead_stub_is_healed_once_the_store_is_back(fleet, store):
    report = cases.heal_without_store(fleet, store)
    print(report.describe())
    assert report.most_lost_by_a_client <= 2, report.describe()
    assert report.figures["/ready without the store"] == 503
