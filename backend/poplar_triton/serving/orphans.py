"""Stubs that run but no longer serve: the siblings of a dead instance.

When a model is reloaded, Triton 2.51 does not end the old instances if one of them is dead and has
had a request since. Its siblings get no more requests, and each keeps its memory (100 MiB).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from popef._tools.progress import PROC
from poplar_triton.serving.stubs import Stub, Work, is_idle, read_work

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
        known = {stub: idle for stub, idle in self._idle.items() if stub in living}
        for stub in living:
            if stub.model in reloaded and stub not in known:
                known[stub] = _Idle(read_work(stub.pid, self._proc), now)
        for stub, idle in known.items():
            work = read_work(stub.pid, self._proc)
            if not is_idle(idle.work, work):
                known[stub] = _Idle(work, now)
        self._idle = known
        return [stub for stub, idle in known.items() if now >= idle.since + IDLE_SECONDS]
