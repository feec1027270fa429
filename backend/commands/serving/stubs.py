"""The stub processes of a tritonserver: which instance each one is, and which instances have lost theirs.

Triton gives each instance of a model on a Python-based backend a process of its own, never starts a dead
one again, and stays ready. A dead one is a zombie child, for ever (up to python_backend r25.11) or until
somebody asks for readiness (from r25.12 on). After a load there may be zombies of instances that live
again, and, where an old instance cannot be unloaded because a sibling of it is dead, old living ones
beside the new: of the processes of an instance the one that was started last counts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from simipu.progress import PROC, read_stat

from commands.serving.installation import STUB

_MODEL_FILE, _INSTANCE, _WORDS = 1, 8, 9
"""Places among a stub's arguments (python_backend, `stub_launcher.cc`), and how many there are at least."""
_MOST_GENERATIONS = 16
_DEFAULT_NAME = re.compile(r"(.+)_\d+_\d+(_gpu\d+)?")
"""An instance's name where its group has none of its own: MODEL_GROUP_INSTANCE."""


@dataclass(frozen=True, slots=True)
class Stub:
    """A stub process. `started` counts clock ticks since the machine was started."""

    pid: int
    started: int
    model: str
    version: str
    instance: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The instance that it is a process of."""
        return self.model, self.version, self.instance


class StubWatch:
    """Follows the stubs of the tritonserver whose process id is `pid`.

    A server that copies models out of a store (`is_remote`) tells the stub no model's name: it is taken from
    the instance's.
    """

    def __init__(self, pid: int, *, is_remote: bool = False, proc: Path = PROC) -> None:
        self._pid = pid
        self._is_remote = is_remote
        self._proc = proc
        self._stubs: dict[int, Stub] = {}
        self._lost: set[Stub] = set()
        self._others: set[int] = set()
        """Processes that are no stubs of this server and will not become one."""
        self.servers = {pid}
        """The server's processes: a program that the user names may be a script that calls tritonserver."""

    def look(self) -> tuple[list[Stub], list[Stub]]:
        """The living stubs that count, one per instance, and the lost ones: of an instance whose last process
        has ended, in order or not. Who knows that the instance is gone says so by `forget`."""
        self._find_stubs()
        living: dict[tuple[str, str, str], Stub] = {}
        for pid, stub in list(self._stubs.items()):
            if self._is_alive(stub):
                living[stub.key] = max(living.get(stub.key, stub), stub, key=_age)
            else:
                self._lost.add(self._stubs.pop(pid))
        newest: dict[tuple[str, str, str], Stub] = {}
        for stub in self._lost:
            newest[stub.key] = max(newest.get(stub.key, stub), stub, key=_age)
        lost = {
            key: stub for key, stub in newest.items() if key not in living or _age(living[key]) < _age(stub)
        }
        self._lost = set(lost.values())
        return [stub for key, stub in living.items() if key not in lost], list(lost.values())

    def forget(self, stub: Stub) -> None:
        """A lost stub's instance is not served any more."""
        self._lost.discard(stub)

    def give_up(self, stub: Stub) -> None:
        """A stub was killed: it is lost from now on, even where the kernel ends it later."""
        if self._stubs.pop(stub.pid, None) is not None:
            self._others.add(stub.pid)
            self._lost.add(stub)

    def _find_stubs(self) -> None:
        """Looks at each process of the machine once, and at the server's until they are stubs: not every
        kernel says which children a process has."""
        present = {int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal()}
        self._others &= present
        for pid in present - self._others - self._stubs.keys():
            if not self._is_descendant(pid):
                self._others.add(pid)
            elif (stub := self._read(pid)) is not None:
                self._stubs[pid] = stub
                with suppress(OSError, ValueError):
                    self.servers.add(read_stat(pid, self._proc).parent)

    def _is_descendant(self, pid: int) -> bool:
        """Also a child of a child: a program that the user names may be a script that calls tritonserver."""
        for _ in range(_MOST_GENERATIONS):
            with suppress(OSError, ValueError):
                pid = read_stat(pid, self._proc).parent
                if pid == self._pid:
                    return True
                continue
            return False
        return False

    def _read(self, pid: int) -> Stub | None:
        """The stub that a process is; None for another program, one that is dead, or about to become a
        stub."""
        with suppress(OSError, ValueError):
            words = (self._proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if len(words) < _WORDS or not words[0].endswith(STUB):
                return None
            version = Path(words[_MODEL_FILE]).parent
            instance = words[_INSTANCE]
            started = read_stat(pid, self._proc).started
            return Stub(pid, started, self._name(version.parent, instance), version.name, instance)
        return None

    def _name(self, folder: Path, instance: str) -> str:
        if self._is_remote and (found := _DEFAULT_NAME.fullmatch(instance)):
            return found[1]
        return folder.name

    def _is_alive(self, stub: Stub) -> bool:
        """Whether it is there still, and no other process in its place."""
        with suppress(OSError, ValueError):
            stat = read_stat(stub.pid, self._proc)
            return stat.state not in "ZX" and stat.started == stub.started
        return False


def _age(stub: Stub) -> tuple[int, int]:
    return stub.started, stub.pid
