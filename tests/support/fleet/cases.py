"""Faults and operations on two servers, while clients of every way send requests, and their costs.

Every case leaves the servers as it found them: ready, and reached by every way. Nothing is asserted
about the losses: tests and benchmarks share the cases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server_processes import STOP_SECONDS
from waiting import wait_until

from fleet.clients import Question, Tally, Traffic, Way
from fleet.models import PLAIN
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.repositories import Repository, Store
from fleet.servers import START_SECONDS, Server, start_all, watch
from fleet.tools import Tools

AFTER_SECONDS = 2
"""Time for which the clients go on after the event has been noticed everywhere."""
DRAIN_SECONDS = 3
NEW_VERSION = 2
RELOADS = "poplar_supervisor_reloads_total"
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
QUICK_STOP = "--exit-timeout-secs=5"
"""Option for a short exit: with a dead stub Triton 2.51 waits for its whole exit timeout."""


@dataclass
class Report:
    """Result of a case: the outcomes by way, and named times and other figures."""

    tallies: dict[Way, Tally] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def lost_nothing(self) -> bool:
        """True if all clients of all ways got right answers to all of their requests."""
        return all(
            tally.sent and not tally.losses and not tally.wrongs for tally in self.tallies.values()
        )

    @property
    def most_lost_by_a_client(self) -> int:
        """The losses of the client that has most of them."""
        return max(tally.most_lost_by_a_client for tally in self.tallies.values())

    def describe(self) -> str:
        """Return the report as lines of text."""
        lines = [
            f"{way.name}: {len(tally.losses)} lost, {len(tally.wrongs)} wrong of {tally.sent}; at "
            f"most {tally.most_lost_by_a_client} lost by one client; longest answer "
            f"{tally.longest_seconds:.2f} s {tally.describe_losses()}"
            for way, tally in self.tallies.items()
        ]
        return "\n".join(
            [*lines, *(f"{name}: {value:.2f}" for name, value in self.figures.items())]
        )


@dataclass
class Fleet:
    """Two servers of one repository, and the proxies before them: with retries, as a deployment has
    them, and without."""

    repository: Repository
    servers: list[Server]
    proxies: list[Proxy]
    bare_proxies: list[Proxy]

    def wait_until_up(self, count: int = 2) -> None:
        """Wait until every proxy sends requests to `count` servers."""
        for proxy in (*self.proxies, *self.bare_proxies):
            proxy.wait_until_up(count)

    def start_again(self, server: Server) -> float:
        """Start a server that has ended; the seconds until it gets requests again."""
        start = time.monotonic()
        server.start()
        server.wait_until_ready()
        self.wait_until_up()
        return time.monotonic() - start


@contextmanager
def run_fleet(tools: Tools, folder: Path, repository: Repository) -> Iterator[Fleet]:
    """Run two servers of a repository with the plain model behind HAProxy and Envoy while the block
    lasts.

    The first one heals itself by a reload, the second by a restart. Neither restarts a Triton that
    was killed; the second restarts it for its dead stubs only.
    """
    drain = ("--drain-seconds", str(DRAIN_SECONDS), "--on-dead-stub")
    restart = ("exit", "--restart", "50")
    servers = [
        Server(
            "server1", repository.url, folder, (*drain, "reload"), EXPLICIT, repository.environment
        ),
        Server(
            "server2",
            repository.url,
            folder,
            (*drain, *restart),
            (*EXPLICIT, QUICK_STOP),
            repository.environment,
        ),
    ]
    with ExitStack() as running:
        running.enter_context(start_all(servers))
        groups: list[list[Proxy]] = [
            [
                running.enter_context(kind(tools, servers, folder, retries=retries))
                for kind in (HAProxy, Envoy)
            ]
            for retries in (True, False)
        ]
        fleet = Fleet(repository, servers, *groups)
        fleet.wait_until_up()
        yield fleet


def find_ways(proxies: Sequence[Proxy]) -> list[Way]:
    """Return all ways through these proxies."""
    return [way for proxy in proxies for way in proxy.ways]


def kill_server(fleet: Fleet) -> Report:
    """Kill -9 supervisor, Triton and stubs at once, as when a machine fails."""
    return _lose(fleet, Server.kill)


def kill_triton(fleet: Fleet) -> Report:
    """Kill -9 tritonserver alone; its supervisor, which must not restart it, ends."""

    def kill(server: Server) -> None:
        server.kill_triton()
        server.wait(STOP_SECONDS)

    return _lose(fleet, kill)


def _lose(fleet: Fleet, kill: Callable[[Server], None]) -> Report:
    server, report = fleet.servers[0], Report()
    with Traffic(find_ways(fleet.proxies), [Question(PLAIN)]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        kill(server)
        fleet.wait_until_up(1)
        time.sleep(AFTER_SECONDS)
        report.figures["seconds from start to traffic"] = fleet.start_again(server)
        traffic.wait_for_answers()
    return report


def roll(fleet: Fleet) -> Report:
    """Send SIGTERM to one server after the other, restart each and wait for it; the proxies retry
    nothing."""
    report = Report()
    with Traffic(find_ways(fleet.bare_proxies), [Question(PLAIN)]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        for number, server in enumerate(fleet.servers, 1):
            start = time.monotonic()
            report.figures[f"exit status {number}"] = server.stop(STOP_SECONDS)
            report.figures[f"seconds of stop {number}"] = time.monotonic() - start
            report.figures[f"seconds from start to traffic {number}"] = fleet.start_again(server)
            traffic.wait_for_answers()
    return report


def heal_by_reload(fleet: Fleet) -> Report:
    """Kill -9 the only stub of the server that reloads its model."""
    return _kill_stub(fleet, fleet.servers[0])


def heal_by_restart(fleet: Fleet) -> Report:
    """Kill -9 the only stub of the server that restarts Triton."""
    return _kill_stub(fleet, fleet.servers[1])


def _kill_stub(fleet: Fleet, server: Server) -> Report:
    report = Report()
    with watch(server) as watched, Traffic(find_ways(fleet.proxies), [Question(PLAIN)]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        moment = time.monotonic()
        server.kill_stub(PLAIN.name)
        wait_until(
            lambda: watched.find_change(503, moment) is not None, f"{server.name}: /ready is 503"
        )
        report.figures["seconds to 503"] = watched.find_change(503, moment) or math.inf
        wait_until(server.is_ready, f"{server.name} is healed; see {server.log}", START_SECONDS)
        report.figures["seconds to 200"] = time.monotonic() - moment
        fleet.wait_until_up()
        traffic.wait_for_answers()
        time.sleep(AFTER_SECONDS)
    return report


def update(fleet: Fleet, folder: Path) -> Report:
    """Add a new version of the plain model, from this folder, to the repository and load it on each
    server in turn.

    Then the old version is loaded in the same way. Half of the questions are for version 1.
    """
    report = Report()
    with Traffic(find_ways(fleet.proxies), [Question(PLAIN), Question(PLAIN, "1")]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        fleet.repository.add_version(folder, NEW_VERSION)
        start = time.monotonic()
        report.figures["seconds of both loads"] = _load_all(fleet)
        traffic.wait_for_answers()
        end = time.monotonic()
        fleet.repository.remove_version(PLAIN.name, NEW_VERSION)
        report.figures["seconds of both loads back"] = _load_all(fleet)
        wait_until(
            lambda: all(server.find_versions(PLAIN.name) == ["1"] for server in fleet.servers),
            "both servers have version 1 alone",
        )
        time.sleep(AFTER_SECONDS)
    for way, tally in report.tallies.items():
        report.figures[f"versions that answered {way.name}"] = len(
            tally.versions_between(start, end)
        )
    return report


def lose_store(fleet: Fleet, store: Store) -> Report:
    """Kill -9 the store, request a load that cannot succeed, and start the store again."""
    report = Report()
    with Traffic(find_ways(fleet.proxies), [Question(PLAIN)]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        store.kill()
        time.sleep(AFTER_SECONDS)
        start = time.monotonic()
        report.figures["loads meanwhile"] = not fleet.servers[0].load(PLAIN.name)
        report.figures["seconds of a load meanwhile"] = time.monotonic() - start
        traffic.wait_for_answers()
        store.start()
        report.figures["seconds of both loads after it"] = _load_all(fleet)
        traffic.wait_for_answers()
    return report


def heal_without_store(fleet: Fleet, store: Store) -> Report:
    """Kill -9 the store, then a stub that cannot be healed without it, and start the store
    again."""
    server, report = fleet.servers[0], Report()
    with watch(server) as watched, Traffic(find_ways(fleet.proxies), [Question(PLAIN)]) as traffic:
        report.tallies = traffic.tallies
        traffic.wait_for_answers()
        store.kill()
        before = server.read_metric(RELOADS, outcome="failure")
        moment = time.monotonic()
        server.kill_stub(PLAIN.name)
        wait_until(
            lambda: server.read_metric(RELOADS, outcome="failure") > before, "a reload has failed"
        )
        report.figures["seconds to 503"] = watched.find_change(503, moment) or math.inf
        report.figures["/ready without the store"] = server.ask_ready()[0]
        store.start()
        start = time.monotonic()
        wait_until(server.is_ready, f"{server.name} is healed; see {server.log}", START_SECONDS)
        report.figures["seconds to 200 once the store is back"] = time.monotonic() - start
        fleet.wait_until_up()
        traffic.wait_for_answers()
    return report


def _load_all(fleet: Fleet) -> float:
    """Load the model, one server after the other; the seconds that it took."""
    start = time.monotonic()
    for server in fleet.servers:
        error = server.load(PLAIN.name)
        assert not error, f"{server.name} does not load {PLAIN.name}: {error}"
    return time.monotonic() - start


CASES: dict[str, Callable[[Fleet], Report]] = {
    "kill -9 of a server": kill_server,
    "kill -9 of tritonserver": kill_triton,
    "rolling restart, no retries": roll,
    "kill -9 of a stub, reload": heal_by_reload,
    "kill -9 of a stub, restart": heal_by_restart,
}
"""Cases other than the update, which needs a second version."""
