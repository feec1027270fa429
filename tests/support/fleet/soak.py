"""Long test with faults: mixed models on two servers under load.

The servers lose processes, have processes that stop, also while they start, get more requests than
they can compute, and get new versions. The result is what was lost meanwhile, and the servers' resources at the end. The
first server gets new versions, loses engines and is overloaded, and keeps its Triton throughout.
The second one loses stubs, which it heals by reloads, and its Triton, which its supervisor starts
again.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

from fault_clients import children, resident_bytes
from server_processes import STOP_SECONDS
from waiting import wait_until

from fleet.cases import DRAIN_SECONDS, EXPLICIT, QUICK_STOP, find_ways
from fleet.clients import Outcome, Question, Tally, Traffic, Way
from fleet.floods import flood
from fleet.models import MIXED, SLOW, Model, write_version
from fleet.proxies import Envoy, HAProxy, Proxy
from fleet.repositories import LocalRepository, fill
from fleet.servers import START_SECONDS, Server, start_all
from fleet.tools import Tools

PER_SECOND = 2.0
PAUSE_SECONDS = 2
"""Pause after each event, once the servers have recovered."""
NEW_VERSION = 2
MIN_ROUNDS = 3
DEATHS, RESTARTS = "poplar_supervisor_stub_deaths_total", "poplar_supervisor_restarts_total"
STALLS = "poplar_supervisor_stalls_total"
START_FAULTS = (
    ("stub", signal.SIGKILL),
    ("tritonserver", signal.SIGKILL),
    ("first load", signal.SIGKILL),
    ("stub", signal.SIGSTOP),
    ("tritonserver", signal.SIGSTOP),
    ("first load", signal.SIGSTOP),
)
"""Processes of a server that starts, and the signals that they get: two in each round."""
FLOOD_PER_SECOND, FLOOD_SECONDS = 240.0, 6.0
"""Three times the load that SLOW can compute."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its action, the times of its start and of full recovery, and the model whose
    requests it may cost."""

    name: str
    start: float
    end: float
    costs: Model | None

    def explains(self, loss: Outcome) -> bool:
        """Return whether this event may be the cause of a lost request."""
        was_under_way = self.start <= loss.started + loss.seconds and loss.started <= self.end
        return was_under_way and loss.question.model == self.costs


Usage = Mapping[str, int]
"""Resources of a server between two events: the amount of each."""

READY = 200
"""Status of /ready of a server that is."""
SLACK = {"MiB": 24, "files": 32, "threads": 8}
"""Allowed change between two measurements without a leak, by the last word of a resource's name.

Connections vary, and memory with them. All other resources stay the same.
"""


@dataclass
class Soak:
    """Result of a soak."""

    tallies: dict[Way, Tally] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    updated: list[Usage] = field(default_factory=list)
    """Usage of the first server at the end of each round."""
    restarted: list[Usage] = field(default_factory=list)
    """Usage of the second server at the end of each round, when its Triton is new."""
    floods: list[Tally] = field(default_factory=list)
    """Tally of each time that a server got more requests than it can compute."""
    remains: list[dict[str, int]] = field(default_factory=list)
    """Increase of each resource after a stub died and its model was loaded again."""
    left_overs: list[str] = field(default_factory=list)

    @property
    def wrongs(self) -> list[Outcome]:
        """Answers that are not those to their requests."""
        return [
            outcome for tally in (*self.tallies.values(), *self.floods) for outcome in tally.wrongs
        ]

    @property
    def unexplained_losses(self) -> list[Outcome]:
        """Requests without an answer while nothing went on that may cost one."""
        losses = (outcome for tally in self.tallies.values() for outcome in tally.losses)
        return [loss for loss in losses if not any(event.explains(loss) for event in self.events)]

    @property
    def starved_floods(self) -> list[str]:
        """Floods in whose second half next to nothing was answered."""
        return [
            f"flood {number}: {tally.describe_losses()}"
            for number, tally in enumerate(self.floods)
            if sum(not outcome.loss for outcome in tally.outcomes[tally.sent // 2 :])
            < tally.sent // 20
        ]

    @property
    def growth(self) -> list[str]:
        """Resources of which the servers hold more after the last round than after the second."""
        return [
            f"{server}: {name} was {usages[1][name]}, is {usages[-1][name]}"
            for server, usages in (("server1", self.updated), ("server2", self.restarted))
            for name in usages[1]
            if usages[-1][name] > usages[1][name] + SLACK.get(name.rpartition(" ")[2], 0)
        ]

    def describe(self) -> str:
        """Return the result as lines of text."""
        lines = [
            f"{way.name}: {len(tally.losses)} lost, {len(tally.wrongs)} wrong of {tally.sent}; "
            f"longest answer {tally.longest_seconds:.2f} s {tally.describe_losses()}"
            for way, tally in self.tallies.items()
        ]
        sent, lost = (
            sum(counts)
            for counts in zip(*((t.sent, len(t.losses)) for t in self.floods), strict=True)
        )
        lines.append(f"floods: {sent - lost} of {sent} answered in time, of at most {sent // 3}")
        lines.append(f"{len(self.events)} events in {len(self.updated)} rounds")
        lines += [f"server1: {usage}" for usage in (self.updated[1], self.updated[-1])]
        lines += [f"server2: {usage}" for usage in (self.restarted[1], self.restarted[-1])]
        most = {name: max(remains[name] for remains in self.remains) for name in self.remains[0]}
        return "\n".join([*lines, f"after a stub's death and the reload at most more: {most}"])


class _Trouble:
    """Two servers and the faults to inject; every method returns after full recovery."""

    def __init__(self, tools: Tools, folder: Path, running: ExitStack) -> None:
        self.repository = LocalRepository(folder / "models")
        fill(self.repository, (*MIXED, SLOW))
        self._versions = folder / "versions"
        self._caches = folder / "caches"
        self.servers = [self._make_server(number, folder) for number in (1, 2)]
        running.enter_context(start_all(self.servers))
        self.proxies: list[Proxy] = [
            running.enter_context(kind(tools, self.servers, folder)) for kind in (HAProxy, Envoy)
        ]
        self.wait()

    def _make_server(self, number: int, folder: Path) -> Server:
        options = (
            "--drain-seconds",
            str(DRAIN_SECONDS),
            "--on-dead-stub",
            "reload",
            "--restart",
            "1000",
        )
        return Server(
            f"server{number}",
            self.repository.url,
            folder,
            options,
            (*EXPLICIT, QUICK_STOP),
            {"XDG_CACHE_HOME": str(self._caches / str(number))},
        )

    def wait(self) -> None:
        """Wait until both servers are ready, and every proxy knows it."""
        for server in self.servers:
            server.wait_until_ready()
        for proxy in self.proxies:
            proxy.wait_until_up(2)

    def kill_stub(self, model: Model) -> None:
        """Kill the stub process of one instance of the second server."""
        server = self.servers[1]
        before = self._count_deaths(server)
        server.kill_stub(model.name)
        wait_until(lambda: self._count_deaths(server) > before, "the supervisor has seen a death")
        self.wait()

    def stall_stub(self, model: Model) -> None:
        """Stop a process of the second server, which its supervisor has to kill and to heal."""
        server = self.servers[1]
        before = server.read_metric(STALLS, program="stub")
        server.kill_stub(model.name, signal.SIGSTOP)
        wait_until(
            lambda: server.read_metric(STALLS, program="stub") > before, "a stub is found to stall"
        )
        self.wait()

    def stall_triton(self) -> None:
        """Stop the second server's Triton, which its supervisor has to kill and to start again."""
        self.kill_triton(signal.SIGSTOP)

    def flood(self, model: Model) -> Tally:
        """Offer the first server more than it computes."""
        tally = flood(self.servers[0].grpc_port, Question(model), FLOOD_PER_SECOND, FLOOD_SECONDS)
        self.wait()
        return tally

    def kill_engine(self, model: Model, number: int = signal.SIGKILL) -> None:
        """Kill the engine's child process of one instance of the first server, and wait for
        another."""
        stub = self.servers[0].find_stubs(model.name)[0]
        before = {child.pid for child in children(stub.pid)}
        for pid in before:
            os.kill(pid, number)
        wait_until(
            lambda: any(child.pid not in before for child in children(stub.pid)),
            f"{model.name} has an engine",
        )

    def kill_triton(self, number: int = signal.SIGKILL) -> None:
        """Kill the Triton of the second server, and wait for another."""
        server = self.servers[1]
        before = server.read_metric(RESTARTS)
        server.kill_triton(number)
        wait_until(
            lambda: server.read_metric(RESTARTS) > before, "the supervisor starts Triton again"
        )
        self.wait()

    def hit_start(self, what: str, number: int) -> None:
        """Kill the second server's Triton; then kill or stop a process of the next one while it
        loads models."""
        server = self.servers[1]
        if what == "first load":  # else every model is known, and loaded without a child
            shutil.rmtree(self._caches / "2" / "poplar-triton" / "loads", ignore_errors=True)
        before = server.read_metric(RESTARTS)
        server.kill_triton()
        wait_until(
            lambda: server.read_metric(RESTARTS) > before, "the supervisor starts Triton again"
        )
        find = server.find_loaders if what == "first load" else _find_stubs(server)
        pids: list[int] = []

        def look() -> bool:
            pids[:] = find()
            return bool(pids)

        wait_until(look, f"{what} of a server that starts")
        pid = server.find_triton().pid if what == "tritonserver" else max(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        server.wait_until_ready(3 * START_SECONDS)
        self.wait()

    def update(self, model: Model) -> None:
        """Load a new version on both servers, and go back to the old one."""
        folder = self._versions / model.name
        if not folder.exists():
            write_version(folder, model, NEW_VERSION)
        self.repository.add_version(folder, NEW_VERSION)
        self._load(model, ["1", str(NEW_VERSION)])
        time.sleep(PAUSE_SECONDS)
        self.repository.remove_version(model.name, NEW_VERSION)
        self._load(model, ["1"])
        wait_until(
            lambda: all(
                len(server.find_stubs(model.name)) == model.instances for server in self.servers
            ),
            f"the stubs of the unloaded version of {model.name} have ended",
        )

    def fail_load(self, model: Model) -> None:
        """Load half of an executable on both servers. What serves must go on, and nothing that
        never loaded counts as dead."""
        deaths = [self._count_deaths(server) for server in self.servers]
        file = self.repository.url / model.name / "1" / "executable.popef"
        content = file.read_bytes()
        self._replace(file, content[: len(content) // 2])
        for server in self.servers:
            assert server.load(model.name), f"{server.name} loads half of an executable"
            assert _serves(server, model, ["1"]), f"{server.name} no longer serves {model.name}"
            status, text = server.ask_ready()
            assert status == READY, f"{server.name} is not ready after a failed load: {text}"
        self._replace(file, content)
        self._load(model, ["1"])
        assert deaths == [self._count_deaths(server) for server in self.servers]

    def _replace(self, file: Path, content: bytes) -> None:
        """Rename a file with that content over another, which servers may have mapped."""
        other = self._versions.with_name("other.popef")
        other.write_bytes(content)
        other.replace(file)

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
    """Run rounds of faults for `minutes` minutes, at least three; `tell` gets a line for each
    event."""
    soak = Soak()
    with ExitStack() as running:
        trouble = _Trouble(tools, folder, running)
        first, second = trouble.servers
        questions = [Question(model) for model in (*MIXED, SLOW)]
        with Traffic(find_ways(trouble.proxies), questions, per_second=PER_SECOND) as traffic:
            soak.tallies = traffic.tallies
            end = time.monotonic() + 60 * minutes
            for model, other in zip(cycle(MIXED), cycle(MIXED[1:] + MIXED[:1]), strict=False):
                for name, act, costs in _list_events(trouble, soak, model, other):
                    start = time.monotonic()
                    act()
                    soak.events.append(Event(name, start, time.monotonic(), costs))
                    traffic.wait_for_answers()
                    time.sleep(PAUSE_SECONDS)
                    tell(_describe(soak))
                soak.updated.append(_measure(first))
                soak.restarted.append(_measure(second))
                if time.monotonic() > end and len(soak.updated) >= MIN_ROUNDS:
                    break
        for server in trouble.servers:
            soak.left_overs += _stop(server)
    return soak


def _list_events(
    trouble: _Trouble, soak: Soak, model: Model, other: Model
) -> list[tuple[str, Callable[[], None], Model | None]]:
    """Return the events of a round, each with its name and the model whose requests it may cost."""

    def kill_stub(which: Model) -> None:
        before = _measure(trouble.servers[1])
        trouble.kill_stub(which)
        after = _measure(trouble.servers[1])
        soak.remains.append({name: after[name] - before[name] for name in before})

    def flood_slow_model() -> None:
        soak.floods.append(trouble.flood(SLOW))

    first = 2 * len(soak.updated)
    faults = [START_FAULTS[(first + place) % len(START_FAULTS)] for place in range(2)]
    isolated = (
        model
        if model.is_isolated
        else next(candidate for candidate in MIXED if candidate.is_isolated)
    )
    return [
        (f"update of {model.name}", partial(trouble.update, model), None),
        (f"failed load of {other.name}", partial(trouble.fail_load, other), None),
        (f"stub of {model.name}", partial(kill_stub, model), model),
        (f"engine of {isolated.name}", partial(trouble.kill_engine, isolated), isolated),
        (f"stalled stub of {other.name}", partial(trouble.stall_stub, other), other),
        (
            f"stalled engine of {isolated.name}",
            partial(trouble.kill_engine, isolated, signal.SIGSTOP),
            isolated,
        ),
        (f"flood of {SLOW.name}", flood_slow_model, SLOW),
        ("tritonserver", trouble.kill_triton, None)
        if len(soak.updated) % 2
        else ("stalled tritonserver", trouble.stall_triton, None),
        *(
            (f"{number.name} of {what} at a start", partial(trouble.hit_start, what, number), None)
            for what, number in faults
        ),
    ]


def _find_stubs(server: Server) -> Callable[[], list[int]]:
    return lambda: [stub.pid for stub in server.find_stubs()]


def _stop(server: Server) -> list[str]:
    """Stop a server and return the faults found after that."""
    status = server.stop(STOP_SECONDS)
    faults = [f"{server.name} ended with status {status}"] if status else []
    faults += [f"{server.name}: process {pid} is left" for pid in server.find_processes()]
    return faults + [
        f"{path} is left" for path in (*server.find_segments(), *_find_temporary(server))
    ]


def _serves(server: Server, model: Model, versions: list[str]) -> bool:
    return server.find_versions(model.name) == versions


def _measure(server: Server) -> Usage:
    stubs = server.find_stubs()
    usage = {
        "stubs": len(stubs),
        "stubs, MiB": sum(resident_bytes(stub.pid) for stub in stubs) >> 20,
    }
    for name, pid in (("supervisor", server.pid), ("Triton", server.find_triton().pid)):
        usage[f"{name}, MiB"] = resident_bytes(pid) >> 20
        usage[f"{name}, files"] = len(os.listdir(f"/proc/{pid}/fd"))
        usage[f"{name}, threads"] = len(os.listdir(f"/proc/{pid}/task"))
    usage["processes"] = len(server.find_processes())
    usage["segments"] = len(server.find_segments())
    usage["temporary folders"] = len(_find_temporary(server))
    return usage


def _find_temporary(server: Server) -> list[Path]:
    """Return the files in the server's temporary folder, except ONNX Runtime's one file."""
    return [path for path in server.temporary.iterdir() if path.name != ".ses"]


def _describe(soak: Soak) -> str:
    event, tallies = soak.events[-1], soak.tallies.values()
    sent, lost = sum(tally.sent for tally in tallies), sum(len(tally.losses) for tally in tallies)
    return (
        f"{event.name}: {event.end - event.start:.1f} s; {sent} sent, {lost} lost, "
        f"{len(soak.wrongs)} wrong"
    )
