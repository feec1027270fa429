"""Long trouble: mixed models on two servers under load, which lose processes and get new versions. What was
lost meanwhile, and what the servers hold in the end.

The first server gets new versions and loses engines, and keeps its Triton throughout. The second one loses
stubs, which it heals by reloads, and its Triton, which its supervisor starts again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

from fault_clients import children, resident_bytes, wait_until

from fleet.cases import DRAIN_SECONDS, EXPLICIT, QUICK_STOP, find_ways
from fleet.clients import Outcome, Question, Tally, Traffic, Way
from fleet.models import MIXED, Model, write_version
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.repositories import LocalRepository, fill
from fleet.servers import STOP_SECONDS, Server, start_all
from fleet.tools import Tools

PER_SECOND = 2.0
PAUSE_SECONDS = 5
"""After each event, once all is well again."""
NEW_VERSION = 2
LEAST_ROUNDS = 3
DEATHS, RESTARTS = "poplar_supervisor_stub_deaths_total", "poplar_supervisor_restarts_total"


@dataclass(frozen=True, slots=True)
class Event:
    """What was done, from when until all was well again, and whether it may cost requests."""

    name: str
    start: float
    end: float
    may_lose: bool

    def covers(self, outcome: Outcome) -> bool:
        """Whether a request was under way while this went on."""
        return self.start <= outcome.started + outcome.seconds and outcome.started <= self.end


Usage = Mapping[str, int]
"""What a server holds between two events: how much of each thing."""

SLACK = {"MiB": 24, "files": 32, "threads": 8}
"""What may change between two looks with no leak, by the last word of a thing's name: connections come and
go, and with them memory. All else stays as it is."""


@dataclass
class Soak:
    """What a soak came to."""

    tallies: dict[Way, Tally] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    updated: list[Usage] = field(default_factory=list)
    """Of the first server, at the end of each round."""
    restarted: list[Usage] = field(default_factory=list)
    """Of the second server, at the end of each round, when its Triton is new."""
    remains: list[dict[str, int]] = field(default_factory=list)
    """By how much more of each thing there was after a stub had died and its model was loaded anew."""
    left_overs: list[str] = field(default_factory=list)

    @property
    def wrongs(self) -> list[Outcome]:
        """Answers that are not those to their requests."""
        return [outcome for tally in self.tallies.values() for outcome in tally.wrongs]

    @property
    def unexplained_losses(self) -> list[Outcome]:
        """Requests without an answer while nothing went on that may cost one."""
        costly = [event for event in self.events if event.may_lose]
        losses = (outcome for tally in self.tallies.values() for outcome in tally.losses)
        return [loss for loss in losses if not any(event.covers(loss) for event in costly)]

    @property
    def growth(self) -> list[str]:
        """What the servers hold more of after the last round than after the second."""
        return [
            f"{server}: {name} was {usages[1][name]}, is {usages[-1][name]}"
            for server, usages in (("server1", self.updated), ("server2", self.restarted))
            for name in usages[1]
            if usages[-1][name] > usages[1][name] + SLACK.get(name.rpartition(" ")[2], 0)
        ]

    def describe(self) -> str:
        """In lines."""
        lines = [
            f"{way.name}: {len(tally.losses)} lost, {len(tally.wrongs)} wrong of {tally.sent}; longest "
            f"answer {tally.longest_seconds:.2f} s {tally.describe_losses()}"
            for way, tally in self.tallies.items()
        ]
        lines.append(f"{len(self.events)} events in {len(self.updated)} rounds")
        lines += [f"server1: {usage}" for usage in (self.updated[1], self.updated[-1])]
        lines += [f"server2: {usage}" for usage in (self.restarted[1], self.restarted[-1])]
        most = {name: max(found[name] for found in self.remains) for name in self.remains[0]}
        return "\n".join([*lines, f"after a stub's death and the reload at most more: {most}"])


class _Trouble:
    """Two servers, and what can be done to them; every method returns once all is well again."""

    def __init__(self, tools: Tools, folder: Path, running: ExitStack) -> None:
        self.repository = LocalRepository(folder / "models")
        fill(self.repository, MIXED)
        self._versions = folder / "versions"
        self.servers = [self._make_server(number, folder) for number in (1, 2)]
        running.enter_context(start_all(self.servers))
        self.proxies: list[Proxy] = [
            running.enter_context(kind(tools, self.servers, folder)) for kind in (HAProxy, Envoy)
        ]
        self.wait()

    def _make_server(self, number: int, folder: Path) -> Server:
        options = ("--drain-seconds", str(DRAIN_SECONDS), "--on-dead-stub", "reload", "--restart", "1000")
        return Server(
            f"server{number}",
            self.repository.url,
            folder,
            options,
            (*EXPLICIT, QUICK_STOP),
        )

    def wait(self) -> None:
        """Until both servers are ready, and every proxy knows it."""
        for server in self.servers:
            server.wait_until_ready()
        for proxy in self.proxies:
            proxy.wait_until_up(2)

    def kill_stub(self, model: Model) -> None:
        """One instance of the second server loses its process."""
        server = self.servers[1]
        before = self._count_deaths(server)
        server.kill_stub(model.name)
        wait_until(lambda: self._count_deaths(server) > before, "the supervisor has seen a death")
        self.wait()

    def kill_engine(self, model: Model) -> None:
        """One instance of the first server loses the child in which it computes, and gets another."""
        stub = self.servers[0].find_stubs(model.name)[0]
        before = {child.pid for child in children(stub.pid)}
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: any(child.pid not in before for child in children(stub.pid)),
            f"{model.name} has an engine",
        )

    def kill_triton(self) -> None:
        """The second server loses its Triton, and gets another."""
        server = self.servers[1]
        before = server.read_metric(RESTARTS)
        server.kill_triton()
        wait_until(lambda: server.read_metric(RESTARTS) > before, "the supervisor starts Triton again")
        self.wait()

    def update(self, model: Model) -> None:
        """Both servers load a new version, and go back to the old one."""
        folder = self._versions / model.name
        if not folder.exists():
            write_version(folder, model, NEW_VERSION)
        self.repository.add_version(folder, NEW_VERSION)
        self._load(model, ["1", str(NEW_VERSION)])
        time.sleep(PAUSE_SECONDS)
        self.repository.remove_version(model.name, NEW_VERSION)
        self._load(model, ["1"])

    def _load(self, model: Model, versions: list[str]) -> None:
        for server in self.servers:
            error = server.load(model.name)
            assert not error, f"{server.name} does not load {model.name}: {error}"
            wait_until(partial(_serves, server, model, versions), f"{versions} of {model}")
        self.wait()

    @staticmethod
    def _count_deaths(server: Server) -> float:
        return server.read_metric(DEATHS) + server.read_metric(RESTARTS)


def run_soak(tools: Tools, folder: Path, minutes: float, tell: Callable[[str], None]) -> Soak:
    """Rounds of trouble for so many minutes, three at least; `tell` gets a line for each event."""
    soak = Soak()
    with ExitStack() as running:
        trouble = _Trouble(tools, folder, running)
        first, second = trouble.servers
        questions = [Question(model) for model in MIXED]
        with Traffic(find_ways(trouble.proxies), questions, per_second=PER_SECOND) as traffic:
            soak.tallies = traffic.tallies
            end = time.monotonic() + 60 * minutes
            for model, other in zip(cycle(MIXED), cycle(MIXED[1:] + MIXED[:1]), strict=False):
                for name, act, may_lose in _list_events(trouble, soak, model, other):
                    start = time.monotonic()
                    act()
                    soak.events.append(Event(name, start, time.monotonic(), may_lose))
                    traffic.wait_for_answers()
                    time.sleep(PAUSE_SECONDS)
                    tell(_describe(soak))
                soak.updated.append(_measure(first))
                soak.restarted.append(_measure(second))
                if time.monotonic() > end and len(soak.updated) >= LEAST_ROUNDS:
                    break
        for server in trouble.servers:
            soak.left_overs += _stop(server)
    return soak


def _list_events(
    trouble: _Trouble, soak: Soak, model: Model, other: Model
) -> list[tuple[str, Callable[[], None], bool]]:
    """What is done in a round, with its name and whether it may cost requests."""

    def kill_stub(which: Model) -> None:
        before = _measure(trouble.servers[1])
        trouble.kill_stub(which)
        after = _measure(trouble.servers[1])
        soak.remains.append({name: after[name] - before[name] for name in before})

    isolated = model if model.is_isolated else next(each for each in MIXED if each.is_isolated)
    return [
        (f"update of {model.name}", partial(trouble.update, model), False),
        (f"stub of {model.name}", partial(kill_stub, model), True),
        (f"engine of {isolated.name}", partial(trouble.kill_engine, isolated), True),
        (f"stub of {other.name}", partial(kill_stub, other), True),
        ("tritonserver", trouble.kill_triton, False),
    ]


def _stop(server: Server) -> list[str]:
    """Stop a server: what is not as it should be after that."""
    status = server.stop(STOP_SECONDS)
    found = [f"{server.name} ended with status {status}"] if status else []
    found += [f"{server.name}: process {pid} is left" for pid in server.find_processes()]
    return found + [f"{path} is left" for path in (*server.find_segments(), *_find_temporary(server))]


def _serves(server: Server, model: Model, versions: list[str]) -> bool:
    return server.find_versions(model.name) == versions


def _measure(server: Server) -> Usage:
    stubs = server.find_stubs()
    held = {"stubs": len(stubs), "stubs, MiB": sum(resident_bytes(stub.pid) for stub in stubs) >> 20}
    for name, pid in (("supervisor", server.pid), ("Triton", server.find_triton().pid)):
        held[f"{name}, MiB"] = resident_bytes(pid) >> 20
        held[f"{name}, files"] = len(os.listdir(f"/proc/{pid}/fd"))
        held[f"{name}, threads"] = len(os.listdir(f"/proc/{pid}/task"))
    held["processes"] = len(server.find_processes())
    held["segments"] = len(server.find_segments())
    held["temporary folders"] = len(_find_temporary(server))
    return held


def _find_temporary(server: Server) -> list[Path]:
    """What is in the server's temporary folder, but for ONNX Runtime's one file."""
    return [path for path in server.temporary.iterdir() if path.name != ".ses"]


def _describe(soak: Soak) -> str:
    event, tallies = soak.events[-1], soak.tallies.values()
    sent, lost = sum(tally.sent for tally in tallies), sum(len(tally.losses) for tally in tallies)
    return (
        f"{event.name}: {event.end - event.start:.1f} s; {sent} sent, {lost} lost, {len(soak.wrongs)} wrong"
    )
