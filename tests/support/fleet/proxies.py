"""HAProxy and Envoy with the configurations of `deploy/`, in front of servers of this machine.

They differ from a deployment only as those files say: in addresses and ports. Retries are removed
on demand, to measure the losses without them.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from server_processes import HOST, Program, choose_ports
from waiting import wait_until

from fleet.clients import Way
from fleet.servers import ASK_SECONDS
from fleet.tools import Tools

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


class Listening(Protocol):
    """A server of this machine by its ports."""

    http_port: int
    grpc_port: int
    health_port: int


class Proxy(Program):
    """A proxy in front of two servers, as a context manager; `ways` are those to reach the servers
    by it, and `metrics_port` is its own."""

    ways: list[Way]
    metrics_port: int
    metrics_path: str

    def count_up(self) -> int:
        """Return the number of servers that get requests of each protocol."""
        raise NotImplementedError

    def read_metrics(self) -> dict[str, float]:
        """Return the value of each series of its Prometheus page, by name and labels; empty if it
        does not answer."""
        lines = _read(self.metrics_port, self.metrics_path).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, value in pairs}

    def wait_until_up(self, count: int) -> None:
        """Wait until `count` servers get requests."""
        wait_until(
            lambda: self.count_up() == count, f"{self.name} sees {count} servers; see {self.log}"
        )


class HAProxy(Proxy):
    """HAProxy with `deploy/haproxy.cfg`."""

    metrics_path = "/metrics"

    def __init__(
        self,
        tools: Tools,
        servers: Sequence[Listening],
        folder: Path,
        *,
        retries: bool = True,
        response_seconds: int | None = None,
    ) -> None:
        http_port, grpc_port, self.metrics_port = choose_ports(3)
        environment = {
            "LISTEN_ADDRESS": HOST,
            "LISTEN_HTTP": str(http_port),
            "LISTEN_GRPC": str(grpc_port),
            "LISTEN_METRICS": str(self.metrics_port),
        }
        if response_seconds is not None:
            environment["RESPONSE_TIMEOUT"] = f"{response_seconds}s"
        for number, server in enumerate(servers, 1):
            environment[f"SERVER_{number}_HTTP"] = f"{HOST}:{server.http_port}"
            environment[f"SERVER_{number}_GRPC"] = f"{HOST}:{server.grpc_port}"
            environment[f"SERVER_{number}_HEALTH"] = str(server.health_port)
        file = DEPLOY / "haproxy.cfg"
        if not retries:
            file = folder / "haproxy_without_retries.cfg"
            file.write_text(_without_retries((DEPLOY / "haproxy.cfg").read_text()))
        self.ways = [Way("HAProxy", "http", http_port), Way("HAProxy", "grpc", grpc_port)]
        super().__init__("haproxy", [tools.haproxy, "-db", "-f", file], folder, environment)

    def count_up(self) -> int:
        """Return the number of servers that get requests of each protocol."""
        page = _read(self.metrics_port, "/metrics")
        up = re.findall(
            r'^haproxy_server_status\{proxy="(\w+)",.*state="UP"\} 1$', page, re.MULTILINE
        )
        return min(up.count(backend) for backend in ("http", "http_other", "grpc", "grpc_other"))


class Envoy(Proxy):
    """Envoy with `deploy/envoy.yaml`."""

    metrics_path = "/stats/prometheus"

    def __init__(
        self,
        tools: Tools,
        servers: Sequence[Listening],
        folder: Path,
        *,
        retries: bool = True,
        response_seconds: int | None = None,
    ) -> None:
        http_port, grpc_port, self.metrics_port, self.admin_port = choose_ports(4)
        settings = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
        set_admin_port(settings, self.admin_port)
        ports = {"http": http_port, "grpc": grpc_port, "metrics": self.metrics_port}
        for listener in settings["static_resources"]["listeners"]:
            port = ports[listener["name"]]
            listener["address"]["socket_address"] = {"address": HOST, "port_value": port}
            for policy in _find_retries(listener):
                if not retries:
                    policy.clear()
                elif response_seconds is not None and "per_try_timeout" in policy:
                    policy["per_try_timeout"] = f"{response_seconds}s"
        for cluster in settings["static_resources"]["clusters"]:
            if cluster["name"] in ("http", "grpc"):
                _set_servers(cluster, servers)
        file = folder / f"envoy_{http_port}.yaml"
        file.write_text(yaml.safe_dump(settings))
        self.ways = [Way("Envoy", "http", http_port), Way("Envoy", "grpc", grpc_port)]
        command: list[str | Path] = [
            tools.envoy,
            "--concurrency",
            "1",
            "-c",
            file,
            "--disable-hot-restart",
        ]
        super().__init__("envoy", command, folder)

    def count_up(self) -> int:
        """Return the number of servers that get requests of each protocol."""
        page = _read(self.admin_port, "/stats?filter=membership_healthy")
        healthy = dict(
            re.findall(r"^cluster\.(\w+)\.membership_healthy: (\d+)$", page, re.MULTILINE)
        )
        return min(int(healthy.get(protocol, 0)) for protocol in ("http", "grpc"))


def set_admin_port(settings: Mapping[str, Any], port: int) -> None:
    """Set the port on which Envoy's administration listens, and from which its metrics page
    reads."""
    settings["admin"]["address"]["socket_address"]["port_value"] = port
    (admin,) = (
        cluster
        for cluster in settings["static_resources"]["clusters"]
        if cluster["name"] == "admin"
    )
    admin["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"][
        "socket_address"
    ]["port_value"] = port


def _set_servers(cluster: dict[str, Any], servers: Sequence[Listening]) -> None:
    ports = [{"http": s.http_port, "grpc": s.grpc_port}[cluster["name"]] for s in servers]
    (group,) = cluster["load_assignment"]["endpoints"]
    group["lb_endpoints"] = [
        {
            "endpoint": {
                "address": {"socket_address": {"address": HOST, "port_value": port}},
                "health_check_config": {"port_value": server.health_port},
            }
        }
        for server, port in zip(servers, ports, strict=True)
    ]


def _without_retries(configuration: str) -> str:
    changed, count = re.subn(
        r"^( +)retries \d+$", r"\1retries 0", configuration, flags=re.MULTILINE
    )
    assert count == 1, f"haproxy.cfg: expected one line `retries`, found {count}"
    changed, count = re.subn(r"^ +retry-on .*\n", "", changed, flags=re.MULTILINE)
    assert count == 3, f"haproxy.cfg: expected three lines `retry-on`, found {count}"
    return changed


def _find_retries(listener: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the retry policies of a listener's virtual hosts and routes."""
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    hosts = manager["typed_config"]["route_config"]["virtual_hosts"]
    places = [*hosts, *(entry.get("route", {}) for host in hosts for entry in host["routes"])]
    return [place["retry_policy"] for place in places if "retry_policy" in place]


def _read(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=ASK_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
