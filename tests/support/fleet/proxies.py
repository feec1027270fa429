"""HAProxy and Envoy with the configurations of `deploy/`, in front of servers of this machine.

What differs from a deployment is what those files say that differs: addresses and ports. Retries are taken
out on demand, to see what is lost without them.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from fault_clients import wait_until
from ports import choose_ports

from fleet.clients import Way
from fleet.processes import HOST, Program
from fleet.servers import ASK_SECONDS, Server
from fleet.tools import Tools

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


class Proxy(Program):
    """A proxy in front of two servers, as a context manager; `ways` are those to reach the servers by it."""

    ways: list[Way]

    def count_up(self) -> int:
        """How many servers get requests of each protocol."""
        raise NotImplementedError

    def wait_until_up(self, count: int) -> None:
        """Until so many servers get requests."""
        wait_until(lambda: self.count_up() == count, f"{self.name} sees {count} servers; see {self.log}")


class HAProxy(Proxy):
    """HAProxy with `deploy/haproxy.cfg`."""

    def __init__(
        self, tools: Tools, servers: Sequence[Server], folder: Path, *, retries: bool = True
    ) -> None:
        http_port, grpc_port, self.metrics_port = choose_ports(3)
        environment = {
            "LISTEN_ADDRESS": HOST,
            "LISTEN_HTTP": str(http_port),
            "LISTEN_GRPC": str(grpc_port),
            "LISTEN_METRICS": str(self.metrics_port),
        }
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
        """How many servers get requests of each protocol."""
        page = _read(self.metrics_port, "/metrics")
        up = re.findall(r'^haproxy_server_status\{proxy="(\w+)",.*state="UP"\} 1$', page, re.MULTILINE)
        return min(up.count("http"), up.count("grpc"))


class Envoy(Proxy):
    """Envoy with `deploy/envoy.yaml`."""

    def __init__(
        self, tools: Tools, servers: Sequence[Server], folder: Path, *, retries: bool = True
    ) -> None:
        http_port, grpc_port, self._admin_port = choose_ports(3)
        settings = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
        settings["admin"]["address"]["socket_address"]["port_value"] = self._admin_port
        for listener in settings["static_resources"]["listeners"]:
            port = {"http": http_port, "grpc": grpc_port}[listener["name"]]
            listener["address"]["socket_address"] = {"address": HOST, "port_value": port}
            if not retries:
                _drop_retries(listener)
        for cluster in settings["static_resources"]["clusters"]:
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
        file = folder / f"envoy_{http_port}.yaml"
        file.write_text(yaml.safe_dump(settings))
        self.ways = [Way("Envoy", "http", http_port), Way("Envoy", "grpc", grpc_port)]
        super().__init__("envoy", [tools.envoy, "-c", file, "--disable-hot-restart"], folder)

    def count_up(self) -> int:
        """How many servers get requests of each protocol."""
        page = _read(self._admin_port, "/stats?filter=membership_healthy")
        found = dict(re.findall(r"^cluster\.(\w+)\.membership_healthy: (\d+)$", page, re.MULTILINE))
        return min(int(found.get(protocol, 0)) for protocol in ("http", "grpc"))


def _without_retries(configuration: str) -> str:
    changed, count = re.subn(r"^( +)retries \d+$", r"\1retries 0", configuration, flags=re.MULTILINE)
    assert count == 1, f"haproxy.cfg: expected one line `retries`, found {count}"
    changed, count = re.subn(r"^ +retry-on .*\n", "", changed, flags=re.MULTILINE)
    assert count == 1, f"haproxy.cfg: expected one line `retry-on`, found {count}"
    return changed


def _drop_retries(listener: dict[str, Any]) -> None:
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    for host in manager["typed_config"]["route_config"]["virtual_hosts"]:
        del host["retry_policy"]


def _read(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=ASK_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
