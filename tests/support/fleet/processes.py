"""Programs that run while a block lasts, and all that they started: nothing stays, whatever was
killed.

A process belongs to a program if it has inherited the program's mark in its environment, so that
also the children of one that was killed are found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from waiting import PATIENCE_SECONDS, wait_until

HOST = "127.0.0.1"
_MARK = "POPLAR_FLEET_MARK"


class Program:
    """One program as a context manager: started again and again on the way, gone on exit with all
    that it started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(word) for word in command]
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **(environment or {}), _MARK: self._mark}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process; its output is appended to that of earlier starts."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def stop(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Send SIGTERM and return the exit status; raises AssertionError if the process has not
        ended in time."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait until the process ends by itself, and return its exit status; raises AssertionError
        if it is late."""
        wait_until(lambda: self.poll() is not None, f"{self.name} ends; see {self.log}", seconds)
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """Kill -9 all of its processes, until none is left."""

        def gone() -> bool:
            left = self.find_processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(gone, f"no process of {self.name} is left")
        if self._process is not None:
            self._process.wait()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The process id of the newest start."""
        assert self._process is not None
        return self._process.pid

    def find_processes(self) -> list[int]:
        """Return the ids of all its living processes, of this start and of earlier ones."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            # A zombie's environment is empty.
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found
