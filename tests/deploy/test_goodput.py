"""Three times a server's capacity, through HAProxy and Envoy.

Answers stay in time, no request is sent twice, and the autoscaler learns of the rejected ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import overload
import pytest
from deploy_files import ALERTS, find_one, render
from fleet.monitoring import Prometheus
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.servers import Server
from fleet.tools import Tools
from proxy_overload import CAPACITY, Counted, count_attempts, make_client, run_servers
from waiting import wait_until

DEADLINE_SECONDS, SETTLING_SECONDS, COUNTED_SECONDS = 3.0, 4.5, 2.5
MIN_GOODPUT = 0.1
"""Minimum share of the capacity: low, for busy machines. Without a limit it is 0.00 by then."""


class Loaded(NamedTuple):
    """Server behind two proxies, and its Prometheus."""

    server: Server
    proxies: list[Proxy]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def loaded(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("loaded")
    with ExitStack() as running:
        servers = running.enter_context(run_servers(folder, 1))
        haproxy = running.enter_context(HAProxy(tools, servers, folder))
        envoy = running.enter_context(Envoy(tools, servers, folder))
        for proxy in (haproxy, envoy):
            proxy.wait_until_up(1)
        targets = {
            "triton": [servers[0].metrics_port],
            "supervisor": [servers[0].health_port],
            "haproxy": [haproxy.metrics_port],
        }
        prometheus = running.enter_context(Prometheus(tools, targets, folder, [envoy.metrics_port]))
        wait_until(lambda: prometheus.count_up() == 4, "all targets are scraped")
        yield Loaded(servers[0], [haproxy, envoy], prometheus)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("index", [0, 1], ids=["HAProxy", "Envoy"])
def test_answers_stay_in_time_and_nothing_is_sent_twice(loaded, index, protocol):
    proxy = loaded.proxies[index]
    (way,) = (each for each in proxy.ways if each.protocol == protocol)
    client = make_client(way)
    try:
        counted, before = Counted(client), count_attempts(proxy, way)
        found = overload.offer(
            counted,
            3 * CAPACITY,
            COUNTED_SECONDS,
            [DEADLINE_SECONDS],
            settling_seconds=SETTLING_SECONDS,
        )
        attempts = count_attempts(proxy, way) - before
    finally:
        client.close()
    print(
        f"{way.name}: {found.per_second:.1f} of {CAPACITY}/s, {attempts:.0f} sent of "
        f"{counted.count}"
    )
    assert found.per_second >= MIN_GOODPUT * CAPACITY, found.codes
    assert attempts <= counted.count
    assert found.codes["503"] + found.codes["UNAVAILABLE"] > 0


def test_the_autoscaler_and_the_alert_see_what_was_refused(loaded, tools):
    documents = render(
        tools.helm, "--set", "autoscaling.enabled=true,autoscaling.keda.serverAddress=http://p"
    )
    triggers = find_one(documents, "ScaledObject")["spec"]["triggers"]
    for trigger in triggers:
        query = re.sub(r"\{namespace=.*?\}", "", trigger["metadata"]["query"])
        (value,) = loaded.prometheus.query(query)
        print(f"{trigger['name']}: {value:.2f}")
        assert value > float(trigger["metadata"]["threshold"]), query
    refuses = re.search(
        r"alert: PoplarProxyRefuses\n[\s\S]*?expr: \|\n([\s\S]*?)\n +for:", ALERTS.read_text()
    )
    assert loaded.prometheus.query(refuses.group(1))
