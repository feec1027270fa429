"""A real Prometheus on two servers: the alert for a dead stub fires and resolves.

The dashboard has data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest
from fleet.cases import EXPLICIT
from fleet.clients import Question, Traffic
from fleet.models import MIXED, PLAIN
from fleet.monitoring import Prometheus, read_dashboard
from fleet.proxies import HAProxy
from fleet.repositories import LocalRepository, fill
from fleet.servers import Server, start_all
from fleet.tools import Tools
from server_processes import HOST
from waiting import wait_until

ALERT = "PoplarStubDead"
ASYNCHRONOUS = next(model for model in MIXED if not model.is_synchronous)


class Watched(NamedTuple):
    """Two servers under load and the Prometheus on both.

    The second server only reports a dead stub.
    """

    reloading: Server
    reporting: Server
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    repository = LocalRepository(folder / "models")
    fill(repository, [PLAIN, ASYNCHRONOUS])
    servers = [
        Server(
            mode,
            repository.url,
            folder,
            ["--on-dead-stub", mode, "--canary-seconds", "2"],
            EXPLICIT,
        )
        for mode in ("reload", "report")
    ]
    with ExitStack() as running:
        running.enter_context(start_all(servers))
        proxy = running.enter_context(HAProxy(tools, servers, folder))
        proxy.wait_until_up(2)
        targets = {
            "triton": [server.metrics_port for server in servers],
            "supervisor": [server.health_port for server in servers],
            "haproxy": [proxy.metrics_port],
        }
        prometheus = running.enter_context(Prometheus(tools, targets, folder))
        wait_until(lambda: prometheus.count_up() == 5, "all targets are scraped")
        running.enter_context(Traffic(proxy.ways, [Question(PLAIN), Question(ASYNCHRONOUS)]))
        yield Watched(*servers, prometheus)


def test_no_alert_fires_while_all_is_well(watched):
    # At its start Prometheus reports that it has not seen any server yet.
    wait_until(lambda: not watched.prometheus.find_firing(), "all is well")


def test_the_alert_on_a_dead_stub_fires_and_resolves_and_the_dashboard_has_data(watched):
    watched.reloading.kill_stub(PLAIN.name)
    wait_until(lambda: watched.reloading.read_metric("poplar_supervisor_reloads_total"), "a reload")
    watched.reporting.kill_stub(PLAIN.name)
    alert = (ALERT, f"{HOST}:{watched.reporting.health_port}")
    wait_until(lambda: alert in watched.prometheus.find_firing(), "the alert fires")
    queries = read_dashboard()
    assert len(queries) > 20
    for title, expression in queries:
        wait_until(partial(watched.prometheus.query, expression), f"data in {title}: {expression}")
    assert alert in watched.prometheus.find_firing()
    watched.reporting.unload(PLAIN.name)
    assert not watched.reporting.load(PLAIN.name)
    wait_until(lambda: alert not in watched.prometheus.find_firing(), "the alert resolves")
    assert watched.reporting.is_ready()
