"""Goodput under overload through HAProxy and Envoy, with the files of `deploy/`.

It reports answers in time over capacity, and the requests sent to the servers for each offered one.
The servers' model computes 80 requests a second, and needs almost no processor time. Over HTTP
Triton does not notice that clients disconnect, so only the proxies' limits keep answers in time.
`make deploy-tools` gets the programs. SERVER_REQUESTS=10000 QUEUE_TIMEOUT=60s in the environment
remove the limits of HAProxy.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import overload
import report
from overload import Found

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fleet.clients import Way
from fleet.models import SLOW
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.repositories import LocalRepository, fill
from fleet.servers import Server, start_all
from fleet.tools import Tools, find_tools
from life_cycle_models import WIDTH
from server_processes import HOST

CAPACITY = 80.0
"""Requests a second of each server."""
MAX_AT_ONCE = 1024
"""Requests of an HTTP client: a thread each."""
GOALS = {3.0: 0.9}
ATTEMPTS = {"HAProxy": "haproxy_server_sessions_total", "Envoy": "envoy_cluster_upstream_rq_total"}
"""Metric that counts each request sent to a server."""


class _Status(NamedTuple):
    name: str


class Client(Protocol):
    """Sends requests; see `overload.Client`."""

    def send(self, number: int, deadline_seconds: float | None) -> Any:
        """Return a call's future."""

    def close(self) -> None:
        """Close the connections."""


class HttpCall:
    """A request over HTTP with the interface of a gRPC call, as far as `overload` uses it."""

    def __init__(self, future: Future[str]) -> None:
        self._future = future

    def add_done_callback(self, function: Callable[[HttpCall], None]) -> None:
        """Have it called once there is a status."""
        self._future.add_done_callback(lambda _: function(self))

    def code(self) -> _Status:
        """Return OK, HTTP's status, or the name of the error raised."""
        return _Status(self._future.result())

    def exception(self) -> BaseException | None:
        """Wait for the end."""
        return self._future.exception()


class HttpClient:
    """Client that sends requests of one row, each over a separate connection that is closed at its
    deadline."""

    def __init__(self, port: int, model: str) -> None:
        self._port, self._path = port, f"/v2/models/{model}/infer"
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}
        self._body = json.dumps({"inputs": [tensor]}).encode()
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE)

    def send(self, number: int, deadline_seconds: float | None) -> HttpCall:  # noqa: ARG002  of a Sender
        """Return a call's future."""
        end = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        return HttpCall(self._pool.submit(self._ask, end))

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()

    def _ask(self, end: float | None) -> str:
        seconds = None if end is None else end - time.monotonic()
        if seconds is not None and seconds <= 0:
            return "NOT_SENT"
        connection = http.client.HTTPConnection(HOST, self._port, timeout=seconds)
        try:
            connection.request("POST", self._path, self._body)
            answer = connection.getresponse()
            answer.read()
            return "OK" if answer.status == http.client.OK else str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()


def make_client(way: Way) -> Client:
    """Return a client that sends requests this way."""
    if way.protocol == "http":
        return HttpClient(way.port, SLOW.name)
    return overload.Client(f"{HOST}:{way.port}", SLOW.name, WIDTH)


@contextmanager
def run_servers(folder: Path, count: int) -> Iterator[list[Server]]:
    """Yield two servers of the model, of which `count` run while the block lasts."""
    fill(LocalRepository(folder / "models"), [SLOW])
    servers = [Server(f"server{number}", folder / "models", folder) for number in (1, 2)]
    with start_all(servers[:count]):
        yield servers


def count_attempts(proxy: Proxy, way: Way) -> float:
    """Return the number of inference requests that a proxy has sent to the servers."""
    name = ATTEMPTS[way.through]
    key = "envoy_cluster_name" if way.through == "Envoy" else "proxy"
    series = (pair for pair in proxy.read_metrics().items() if pair[0].partition("{")[0] == name)
    return sum(value for labels, value in series if f'{key}="{way.protocol}"' in labels)


def measure(
    proxy: Proxy, way: Way, options: argparse.Namespace
) -> Iterator[tuple[str, Found, float, float]]:
    """Yield each load with its result, its answers in time over capacity, and the requests sent for
    each offered."""
    client = make_client(way)
    try:
        overload.load_closed(client, options.clients, 1.0)
        closed = overload.load_closed(client, options.clients, options.seconds)
        capacity = CAPACITY * options.servers
        yield (
            f"{options.clients} clients without deadlines",
            closed,
            closed.per_second / capacity,
            1.0,
        )
        for factor in options.factors:
            before, counted = count_attempts(proxy, way), Counted(client)
            offered = overload.offer(
                counted, factor * capacity, options.seconds, [options.deadline], options.settling
            )
            attempts = (count_attempts(proxy, way) - before) / counted.count
            yield f"{factor:g} x", offered, offered.per_second / capacity, attempts
    finally:
        client.close()


class Counted:
    """Sender that counts the requests it sends by a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.count = 0

    def send(self, number: int, deadline_seconds: float | None) -> Any:
        """Return a call's future."""
        with self._lock:
            self.count += 1
        return self._client.send(number, deadline_seconds)


def iter_proxies(tools: Tools, servers: list[Server], count: int, folder: Path) -> Iterator[Proxy]:
    """Yield the proxies one after the other, each while it is in use."""
    for kind in (HAProxy, Envoy):
        with kind(tools, servers, folder) as proxy:
            proxy.wait_until_up(count)
            yield proxy


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="counted of each load (default 8)"
    )
    parser.add_argument(
        "--settling", type=float, default=4.0, help="not counted before (default 4)"
    )
    parser.add_argument(
        "--deadline", type=float, default=2.0, help="clients' deadline in s (default 2)"
    )
    parser.add_argument("--clients", type=int, default=64, help="closed-loop clients (default 64)")
    parser.add_argument(
        "--factors", type=float, nargs="+", default=[3.0], help="offered over capacity"
    )
    parser.add_argument(
        "--servers", type=int, choices=(1, 2), default=2, help="that run (default 2)"
    )
    options = parser.parse_args()
    console = report.make_console()
    table = report.make_table(
        f"{options.servers} servers",
        "way",
        "load",
        "answers/s in time",
        "of capacity",
        "goal",
        "sent/offered",
        "others",
    )
    with tempfile.TemporaryDirectory() as name, run_servers(Path(name), options.servers) as servers:
        for proxy in iter_proxies(find_tools(), servers, options.servers, Path(name)):
            for way in proxy.ways:
                for load, offered, ratio, attempts in measure(proxy, way, options):
                    goal = GOALS.get(float(load.partition(" ")[0]) if load.endswith(" x") else 0.0)
                    met = (
                        ""
                        if goal is None
                        else f">= {goal:.2f}" + ("" if ratio >= goal else " MISSED")
                    )
                    others = ", ".join(
                        f"{code} {n}" for code, n in sorted(offered.codes.items()) if code != "OK"
                    )
                    table.add_row(
                        way.name,
                        load,
                        f"{offered.per_second:.1f}",
                        f"{ratio:.2f}",
                        met,
                        f"{attempts:.2f}",
                        others,
                    )
    console.print(table)


if __name__ == "__main__":
    main()
