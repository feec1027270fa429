"""Processes of a server that exist but make no progress: tritonserver itself, or a stub.

Triton answers the requests of a stopped stub with errors and stays ready. It may abort once the
stub continues (`boost::interprocess::lock_exception`), because the lock that both share was given
up meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from popef._tools.progress import ProgressWatch
from poplar_triton.serving.stubs import Stub


@dataclass(frozen=True, slots=True)
class Stall:
    """Process that makes no progress; `stub` is None for tritonserver."""

    pid: int
    why: str
    stub: Stub | None = None

    @property
    def program(self) -> str:
        """Name of the program, as a label of metrics."""
        return "tritonserver" if self.stub is None else "stub"

    def __str__(self) -> str:
        stub = self.stub
        name = (
            "tritonserver"
            if stub is None
            else f"{stub.instance} of model {stub.model!r} version {stub.version}"
        )
        return f"stalled: {name} (process {self.pid}) makes no progress: {self.why}"


class StallWatch:
    """Watches the processes of one server."""

    def __init__(self) -> None:
        self._progress = ProgressWatch()

    def scan(self, servers: Iterable[int], stubs: Iterable[Stub]) -> list[Stall]:
        """Return the processes that are stalled now. `servers` are the process ids of tritonserver,
        and of a script that calls it."""
        known = {stub.pid: stub for stub in stubs}
        stalled = self._progress.find_stalled([*servers, *known])
        return [Stall(pid, why, known.get(pid)) for pid, why in stalled.items()]
