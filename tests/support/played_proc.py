"""A /proc of files: processes that a test plays."""

from __future__ import annotations

from pathlib import Path


class PlayedProc:
    """Fake /proc: processes have the state that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(
        self,
        pid: int,
        state: str,
        *,
        parent: int = 1,
        started: int = 5,
        cpu: int = 0,
        faults: int = 0,
    ) -> None:
        """Set the state of a process, its used clock ticks, and its page faults."""
        path = self.folder / str(pid)
        path.mkdir(parents=True, exist_ok=True)
        fields = [state, parent, *[0] * 7, faults, 0, cpu, *[0] * 7, started, 0]
        (path / "stat").write_text(f"{pid} (triton) (x) Z 1) {' '.join(map(str, fields))}\n")

    def wait_in(self, pid: int, place: str) -> None:
        """Set the kernel function in which a process waits."""
        (self.folder / str(pid) / "wchan").write_text(place)
