"""The stub processes of a tritonserver: the instance of each, the instances that have lost theirs,
processes that make no progress, and stubs that run but no longer serve.

Triton gives each instance of a model on a Python-based backend a process of its own. It never
restarts a dead one, and stays ready. A dead one remains a zombie child for ever (up to
python_backend r25.11) or until a client checks readiness (from r25.12 on).

After a load there may be zombies of instances that live again. There may also be old living
processes beside the new ones: when a model is reloaded, Triton 2.51 does not end the old instances
if one of them is dead and has had a request since. Its siblings get no more requests, and each
keeps its memory (100 MiB). Among the processes of an instance the one that was started last counts,
but a process that has ended counts only if its load had succeeded: the old one serves on after a
load that fails.

Triton answers the requests of a stopped stub with errors and stays ready. It may abort once the
stub continues (`boost::interprocess::lock_exception`), because the lock that both share was given
up meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from popef._tools.stalls import (
    MIN_LOOKS,
    PROC,
    STALL_SECONDS,
    StallDetector,
    find_zombies,
    read_stat,
)
from popef._tools.text import escape
from poplar_triton.serving.installation import STUB

_MODEL_FILE, _INSTANCE, _WORDS = 1, 8, 9
"""Indices among a stub's arguments (python_backend, `stub_launcher.cc`), and the minimum number of
arguments."""
_MAX_GENERATIONS = 16
"""Maximum number of parents that are followed from a process to the server: a bound for process ids
that are reused meanwhile."""
MAX_IDLE_TICKS = 10
"""Maximum processor time of an idle process in some tens of seconds."""
Work = tuple[tuple[int, ...], ...]
"""Work that processes have done: the id, clock ticks and page faults of each."""
_DEFAULT_NAME = re.compile(r"(.+)_\d+_\d+(_gpu\d+)?")
"""Name of an instance whose group has none of its own: MODEL_GROUP_INSTANCE."""


@dataclass(frozen=True, slots=True)
class Stub:
    """Stub process. `started` counts clock ticks since the machine was started."""

    pid: int
    started: int
    model: str
    version: str
    instance: str

    @property
    def title(self) -> str:
        """Name of the instance in messages."""
        return f"{self.instance} of model {self.model!r} version {self.version}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of the instance to which the process belongs."""
        return self.model, self.version, self.instance


class StubWatch:
    """Follows the stubs of the tritonserver whose process id is `pid`.

    A server that copies models from a store (`is_remote`) does not tell the stub its model's name.
    It is taken from the instance's name. `read_loads` returns the models whose last load has
    succeeded, as they are named in messages, with its end in clock ticks since the machine was
    started.
    """

    def __init__(
        self,
        pid: int,
        *,
        is_remote: bool = False,
        read_loads: Callable[[], Mapping[str, float]] = dict,
        proc: Path = PROC,
    ) -> None:
        self._pid = pid
        self._is_remote = is_remote
        self._read_loads = read_loads
        self._proc = proc
        self._stubs: dict[int, Stub] = {}
        self._lost: dict[Stub, bool] = {}
        """Lost stubs, each with whether its load had succeeded when it was found to have ended. A
        later success is another load's."""
        self._ended: dict[int, tuple[Stub, bool]] = {}
        """Stubs that have ended and exist still, by process id, each with whether it had loaded."""
        self._others: set[int] = set()
        """Processes that are not stubs of this server and will not become one."""
        self.replaced: list[Stub] = []
        """Living stubs of instances that have younger ones."""
        self.servers = {pid}
        """Processes of the server; a user's program may be a script that calls tritonserver."""

    def scan(self) -> tuple[list[Stub], list[Stub]]:
        """Return the living stubs that count, one per instance, and the lost ones.

        An instance is lost if its last process that counts has ended, in order or not. A caller
        that knows that the instance is gone calls `forget`.
        """
        self._find_stubs()
        living: dict[tuple[str, str, str], Stub] = {}
        for pid, stub in list(self._stubs.items()):
            if self._is_alive(stub):
                living[stub.key] = max(living.get(stub.key, stub), stub, key=_age)
            else:
                self._lose(self._stubs.pop(pid))
        self.replaced = [stub for stub in self._stubs.values() if living[stub.key] is not stub]
        newest: dict[tuple[str, str, str], Stub] = {}
        for stub in self._lost:
            if not self._is_superseded(stub, living.get(stub.key)):
                newest[stub.key] = max(newest.get(stub.key, stub), stub, key=self._rank)
        self._lost = {stub: self._lost[stub] for stub in newest.values()}
        lost = {
            key: stub
            for key, stub in newest.items()
            if key not in living or (self._lost[stub] and _age(living[key]) < _age(stub))
        }
        return [stub for key, stub in living.items() if key not in lost], list(lost.values())

    def _is_superseded(self, lost: Stub, living: Stub | None) -> bool:
        """Return whether a lost stub counts no more, whatever becomes of the living one of its
        instance. While this one loads, it may still fail."""
        if living is None or _age(living) < _age(lost):
            return False
        return self._is_loaded(living) or not self._lost[lost]

    def had_loaded(self, stub: Stub) -> bool:
        """Return whether the load of a lost stub had succeeded before it ended. Of a load whose end
        the server did not tell this is false."""
        return self._lost.get(stub, False)

    def find_ended(self, pid: int) -> tuple[Stub | None, bool]:
        """Return the stub that this process was, with whether its load had succeeded; None for a
        process that was not seen alive."""
        return self._ended.get(pid, (None, False))

    def forget(self, stub: Stub) -> None:
        """Forget a lost stub, whose instance is no longer served."""
        self._lost.pop(stub, None)

    def forget_reaped(self) -> None:
        """Forget the lost stubs that their server has reaped: it has ended them itself."""
        self._lost = {
            stub: had_loaded for stub, had_loaded in self._lost.items() if self._read_state(stub)
        }

    def ignore(self, stub: Stub) -> None:
        """Count a killed stub as lost from now on, even if the kernel ends it later."""
        if self._stubs.pop(stub.pid, None) is not None:
            self._others.add(stub.pid)
            self._lose(stub)

    def _lose(self, stub: Stub) -> None:
        self._lost[stub] = self._is_loaded(stub)
        self._ended[stub.pid] = stub, self._lost[stub]

    def _is_loaded(self, stub: Stub) -> bool:
        return stub.started <= self._read_loads().get(escape(stub.model), -1)

    def _rank(self, stub: Stub) -> tuple[bool, int, int]:
        return self._lost[stub], *_age(stub)

    def _find_stubs(self) -> None:
        """Check each process of the machine once, and the server's own until they are stubs. Not
        every kernel lists the children of a process."""
        present = {int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal()}
        self._others &= present
        self._ended = {pid: self._ended[pid] for pid in self._ended.keys() & present}
        for pid in present - self._others - self._stubs.keys():
            if not self._is_descendant(pid):
                self._others.add(pid)
            elif (stub := self._read(pid)) is not None:
                self._stubs[pid] = stub
                with suppress(OSError, ValueError):
                    self.servers.add(read_stat(pid, self._proc).parent)

    def _is_descendant(self, pid: int) -> bool:
        """Return whether a process is a child of the server, or a child of a child: a user's
        program may be a script that calls tritonserver."""
        for _ in range(_MAX_GENERATIONS):
            with suppress(OSError, ValueError):
                pid = read_stat(pid, self._proc).parent
                if pid == self._pid:
                    return True
                continue
            return False
        return False

    def _read(self, pid: int) -> Stub | None:
        """Return the stub that a process is. Return None for another program, a dead one, or one
        about to become a stub."""
        with suppress(OSError, ValueError):
            line = (self._proc / str(pid) / "cmdline").read_bytes()
            words = line.decode("utf-8", "replace").split("\0")
            if len(words) < _WORDS or not words[0].endswith(STUB):
                return None
            version = Path(words[_MODEL_FILE]).parent
            instance = words[_INSTANCE]
            started = read_stat(pid, self._proc).started
            return Stub(pid, started, self._name(version.parent, instance), version.name, instance)
        return None

    def _name(self, folder: Path, instance: str) -> str:
        if self._is_remote and (match := _DEFAULT_NAME.fullmatch(instance)):
            return match[1]
        return folder.name

    def _is_alive(self, stub: Stub) -> bool:
        """Return whether the stub still runs."""
        return self._read_state(stub) not in ("", "Z", "X")

    def _read_state(self, stub: Stub) -> str:
        """Return the state of a stub's process; "" if there is none, or another under its id."""
        with suppress(OSError, ValueError):
            stat = read_stat(stub.pid, self._proc)
            return stat.state if stat.started == stub.started else ""
        return ""


class ZombieWatch:
    """Finds the children that have ended and that their parent does not reap.

    Triton (2.51) reaps those that end in order. It never reaps one that has died, and waits for it
    for ever in a load, often in an unload, too.
    """

    def __init__(self, clock: Callable[[], float], proc: Path = PROC) -> None:
        self._clock = clock
        self._proc = proc
        self._zombies: dict[int, tuple[float, int]] = {}
        """Time of the first look at each child, and the number of looks."""

    def scan(self, parents: Collection[int], *, is_paused: bool) -> list[int]:
        """Return the dead children of these processes; none while these are stopped."""
        now, zombies = self._clock(), {}
        for pid in () if is_paused else find_zombies(parents, self._proc):
            since, looks = self._zombies.get(pid, (now, 0))
            zombies[pid] = since, looks + 1
        self._zombies = zombies
        return [
            pid
            for pid, (since, looks) in zombies.items()
            if looks >= MIN_LOOKS and now >= since + STALL_SECONDS
        ]


def read_work(pid: int, proc: Path = PROC) -> Work:
    """Return what a process and its children have computed so far."""
    work = []
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):
                stat = read_stat(int(entry.name), proc)
                if pid in (int(entry.name), stat.parent):
                    work.append((int(entry.name), *stat.work))
    return tuple(sorted(work))


def is_idle(before: Work, now: Work) -> bool:
    """Return whether next to nothing was computed in between, some tens of seconds. Counting and
    accepting requests takes a moment now and then."""
    return _count_ticks(now) - _count_ticks(before) <= MAX_IDLE_TICKS


def _count_ticks(work: Work) -> int:
    """Return the ticks of processor time: hundredths of a second."""
    return sum(user + system for _, _, _, user, system in work)


def _age(stub: Stub) -> tuple[int, int]:
    return stub.started, stub.pid


@dataclass(frozen=True, slots=True)
class Stall:
    """Stalled process; `stub` is None for tritonserver."""

    pid: int
    why: str
    stub: Stub | None = None

    @property
    def program(self) -> str:
        """Name of the program, as a label of metrics."""
        return "tritonserver" if self.stub is None else "stub"

    def __str__(self) -> str:
        stub = self.stub
        name = "tritonserver" if stub is None else stub.title
        return f"stalled: {name} (process {self.pid}) makes no progress: {self.why}"


class StallWatch:
    """Watches the processes of one server."""

    def __init__(self) -> None:
        self._stall_detector = StallDetector()

    def scan(self, servers: Iterable[int], stubs: Iterable[Stub]) -> list[Stall]:
        """Return the processes that are stalled now. `servers` are the process ids of tritonserver,
        and of a script that calls it."""
        stub_of_pid = {stub.pid: stub for stub in stubs}
        stalled = self._stall_detector.find_stalled([*servers, *stub_of_pid])
        return [Stall(pid, why, stub_of_pid.get(pid)) for pid, why in stalled.items()]

    def is_any_paused(self, servers: Iterable[int]) -> bool:
        """Return whether one of the processes was stopped, frozen or waiting for a disk in the last
        scan. It would not answer."""
        return any(map(self._stall_detector.is_paused, servers))


IDLE_SECONDS = 30.0
"""Time after which an old instance answers no more requests, if it and its children have computed
next to nothing meanwhile."""


@dataclass(slots=True)
class _Idle:
    work: Work
    since: float


class OrphanWatch:
    """Follows the old instances of reloaded models.

    Only a reload that has ended makes orphans: while a model loads, its old instances serve.
    """

    def __init__(self, clock: Callable[[], float], proc: Path = PROC) -> None:
        self._clock = clock
        self._proc = proc
        self._idle: dict[Stub, _Idle] = {}

    def scan(self, replaced: Iterable[Stub], reloaded: Collection[str]) -> list[Stub]:
        """Return the orphans among `replaced`: living stubs of instances that have younger ones.
        `reloaded` are the models whose reload has ended since the last look."""
        living = set(replaced)
        now = self._clock()
        idle_stubs = {stub: idle for stub, idle in self._idle.items() if stub in living}
        for stub in living:
            if stub.model in reloaded and stub not in idle_stubs:
                idle_stubs[stub] = _Idle(read_work(stub.pid, self._proc), now)
        for stub, idle in idle_stubs.items():
            work = read_work(stub.pid, self._proc)
            if not is_idle(idle.work, work):
                idle_stubs[stub] = _Idle(work, now)
        self._idle = idle_stubs
        return [stub for stub, idle in idle_stubs.items() if now >= idle.since + IDLE_SECONDS]
