"""HAProxy and Envoy in front of servers that are full, that fail, or whose ports hang.

Tests check what reaches the servers, and what reaches the clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
from deploy_files import PROXY_METRICS
from fleet.clients import Way
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.tools import Tools
from named_servers import EchoServer
from proxy_load import Forwarder, ask, ask_all, count_asked, count_statuses
from server_processes import HOST, choose_ports
from waiting import wait_until

AT_ONCE = 32
"""Requests in flight that a server accepts for each protocol, as in both files."""
MANY = 300
AT_ONCE_FOR_A_BUDGET = {"HAProxy": 32, "Envoy": MANY}
"""Requests at once for a retry budget; HAProxy counts past answers, Envoy requests in flight."""
RESPONSE_SECONDS = 2
WAYS = [(kind, protocol) for kind in (HAProxy, Envoy) for protocol in ("http", "grpc")]


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on which a proxy reaches a server."""

    http_port: int
    grpc_port: int
    health_port: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers and a way to them through a new proxy; their ports for requests may hang."""

    servers: list[EchoServer]
    forwarders: list[Forwarder]
    proxy: Proxy
    way: Way


@pytest.fixture(params=WAYS, ids=lambda param: f"{param[0].__name__} {param[1]}")
def pair(tools: Tools, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    kind, protocol = request.param
    with ExitStack() as running:
        servers = [running.enter_context(EchoServer(HOST, *choose_ports(3))) for _ in range(2)]
        forwarders, there = [], []
        for server in servers:
            ports = [running.enter_context(Forwarder(*choose_ports(1), port)) for port in
                     (server.http_port, server.grpc_port)]  # fmt: skip
            forwarders += ports
            there.append(Ports(ports[0].port, ports[1].port, server.health_port))
        proxy = running.enter_context(
            kind(tools, there, tmp_path, response_seconds=RESPONSE_SECONDS)
        )
        proxy.wait_until_up(2)
        (way,) = (each for each in proxy.ways if each.protocol == protocol)
        yield Pair(servers, forwarders[:2], proxy, way)


def sum_metric(proxy: Proxy, name: str) -> float:
    """Return the sum of all series of that name."""
    found = [
        value for series, value in proxy.read_metrics().items() if series.partition("{")[0] == name
    ]
    assert found, f"{proxy.name} has no {name}"
    return sum(found)


def test_requests_refused_by_an_overloaded_server_are_not_retried(pair):
    for server in pair.servers:
        server.failure = HTTPStatus.SERVICE_UNAVAILABLE
    answers = ask_all(pair.way, 100, at_once=16)
    assert sum(count_statuses(answers)[status] for status in ("503", "UNAVAILABLE")) == 100
    assert count_asked(pair.servers, pair.way) == 100


def test_retries_have_a_budget(pair):
    for server in pair.servers:
        server.failure, server.seconds = HTTPStatus.INTERNAL_SERVER_ERROR, 0.1
    answers = ask_all(pair.way, MANY, AT_ONCE_FOR_A_BUDGET[pair.way.through])
    refused = sum(count_statuses(answers)[status] for status in ("503", "UNAVAILABLE"))
    asked = count_asked(pair.servers, pair.way)
    print(f"{MANY - refused} of {MANY} let through, {asked} asked of the servers")
    # Without a budget, each request would have three tries.
    assert asked <= 2 * (MANY - refused)


def test_an_instance_that_died_costs_a_client_one_request_at_most(pair):
    """It answers with an error after one second, and its supervisor reports it at once."""
    dead = pair.servers[0]
    dead.failure, dead.seconds = HTTPStatus.INTERNAL_SERVER_ERROR, 1.0
    dead.is_ready = False
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: [ask(pair.way).status for _ in range(3)], range(8)))
    lost = [sum(status not in ("200", "OK") for status in each) for each in answers]
    assert max(lost) <= (pair.way.name == "HAProxy grpc"), answers


def test_servers_have_so_many_at_once_and_the_rest_waits_for_a_moment_or_is_refused(pair):
    for server in pair.servers:
        server.seconds = 0.5
    with ThreadPoolExecutor(1) as background:
        load = background.submit(ask_all, pair.way, MANY, MANY)
        wait_until(
            lambda: pair.servers[0].num_most[pair.way.protocol] > AT_ONCE // 2,
            "the servers are full",
        )
        for path in ("/v2/models/m/ready", "/v2/models/m/generate_stream") * (
            pair.way.protocol == "http"
        ):
            assert ask(pair.way, path).status == "200"
        answers = load.result()
    statuses = count_statuses(answers)
    assert max(server.num_most[pair.way.protocol] for server in pair.servers) <= AT_ONCE + 1
    assert statuses["OK"] > 2 * AT_ONCE
    assert statuses["503"] + statuses["UNAVAILABLE"] == MANY - statuses["OK"] > 0
    names = {
        "HAProxy": "haproxy_backend_connection_errors_total",
        "Envoy": "envoy_cluster_upstream_rq_pending_overflow",
    }
    assert sum_metric(pair.proxy, names[pair.way.through]) == MANY - statuses["OK"]


def test_the_proxies_count_what_they_refuse_while_no_server_is_ready(pair):
    for server in pair.servers:
        server.is_ready = False
    wait_until(lambda: ask(pair.way).status in ("503", "UNAVAILABLE"), "no server is ready")
    assert (
        sum(count_statuses(ask_all(pair.way, 20, 4))[status] for status in ("503", "UNAVAILABLE"))
        == 20
    )
    prefix = pair.way.through.lower()
    series = {each.partition("{")[0] for each in pair.proxy.read_metrics()}
    assert {name for name in PROXY_METRICS if name.startswith(prefix)} <= series
    names = {
        "haproxy": "haproxy_backend_connection_errors_total",
        "envoy": "envoy_cluster_upstream_cx_none_healthy",
    }
    assert sum_metric(pair.proxy, names[prefix]) >= 20


def test_a_port_that_hangs_loses_no_request_though_the_health_port_answers(pair):
    assert count_statuses(ask_all(pair.way, 12, at_once=6)) == {"OK": 12}
    for forwarder in pair.forwarders:
        forwarder.is_silent = True
    answers = []

    def is_out() -> bool:
        answers.extend(ask_all(pair.way, 60, at_once=6))
        return max(answer.seconds for answer in answers[-60:]) < RESPONSE_SECONDS

    wait_until(is_out, "one server is out")
    assert count_statuses(answers) == {"OK": len(answers)}
