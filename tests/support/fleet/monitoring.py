"""A Prometheus with the configuration and the alerts of `deploy/`, on servers of this machine, and
the queries of its dashboard.

It differs from a deployment in static targets, and in intervals and waits of a second, so that a
test does not take minutes.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from server_processes import HOST, Program, choose_ports

from fleet.proxies import DEPLOY
from fleet.servers import ASK_SECONDS
from fleet.tools import Tools

INTERVAL = "1s"
RATE_INTERVAL = "15s"
"""Value that Grafana would use for $__rate_interval: some scrapes."""


class Prometheus(Program):
    """Prometheus as a context manager; `targets` are the ports of each job, `envoys` those of
    Envoy's pages, which the configuration of `deploy/` leaves to the chart's PodMonitor."""

    def __init__(
        self,
        tools: Tools,
        targets: Mapping[str, Sequence[int]],
        folder: Path,
        envoys: Sequence[int] = (),
    ) -> None:
        (self._port,) = choose_ports(1)
        source = DEPLOY / "prometheus" / "prometheus.yml"
        settings = yaml.safe_load(source.read_text())
        settings["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
        settings["rule_files"] = [
            str(_write_hasty(source.parent / name, folder)) for name in settings["rule_files"]
        ]
        settings["scrape_configs"].append(
            {"job_name": "envoy", "metrics_path": "/stats/prometheus"}
        )
        for job in settings["scrape_configs"]:
            job.pop("dns_sd_configs", None)
            ports = {**targets, "envoy": envoys}[job["job_name"]]
            job["static_configs"] = [{"targets": [f"{HOST}:{port}" for port in ports]}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(settings))
        command: list[str | Path] = [
            tools.prometheus,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={HOST}:{self._port}",
        ]
        super().__init__("prometheus", command, folder)

    def query(self, expression: str) -> list[float]:
        """Return the current values of an expression's series, without those that are not
        numbers."""
        samples = self._ask("query", query=expression)["result"]
        values = (float(series["value"][1]) for series in samples)
        return [value for value in values if not math.isnan(value)]

    def find_firing(self) -> set[tuple[str, str]]:
        """Return the firing alerts, each with its instance, or "" if it has none."""
        firing = (
            alert["labels"] for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"
        )
        return {(labels["alertname"], labels.get("instance", "")) for labels in firing}

    def count_up(self) -> int:
        """Return the number of targets that were scraped with success."""
        try:
            return sum(target["health"] == "up" for target in self._ask("targets")["activeTargets"])
        except OSError:
            return 0

    def _ask(self, what: str, **words: str) -> Any:
        url = f"http://{HOST}:{self._port}/api/v1/{what}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as answer:
            return json.load(answer)["data"]


def read_dashboard() -> list[tuple[str, str]]:
    """Return the panel's title and the expression of each query of the dashboard, with all
    variables replaced."""
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    return [
        (title, expression.replace("$model", ".*").replace("$__rate_interval", RATE_INTERVAL))
        for title, expression in _iter_queries(dashboard["panels"])
    ]


def _iter_queries(panels: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for panel in panels:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
        yield from _iter_queries(panel.get("panels", ()))


def _write_hasty(rules: Path, folder: Path) -> Path:
    """Write a copy of the rules in which alerts wait for INTERVAL only."""
    file = folder / rules.name
    file.write_text(
        re.sub(r"^( +for:) \w+$", rf"\1 {INTERVAL}", rules.read_text(), flags=re.MULTILINE)
    )
    return file
