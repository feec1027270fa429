"""Programs and servers that run while a block lasts, and all that they started: nothing stays,
whatever was killed.

A process belongs to a program if it has inherited the program's mark in its environment, so that
also the children of one that was killed are found.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from waiting import PATIENCE_SECONDS, wait_until

_Program = TypeVar("_Program", bound="Program")
_Server = TypeVar("_Server", bound="CommandServer")

HOST = "127.0.0.1"
COMMAND = Path(sys.executable).parent / "poplar-triton"
START_SECONDS = 300
"""Time limit for loading the models, on a machine with other work."""
STOP_SECONDS = 60
"""Time to stop: more than Triton's own exit timeout and what the supervisor adds to it."""
_PORTS = range(20000, 32000)
"""Ports below those that the kernel gives to clients, so that no client takes the port of a
restarting server."""
_untried = random.sample(_PORTS, len(_PORTS))
_MARK = "POPLAR_FLEET_MARK"
_READY = "Ctrl-C stops the server."
"""Line that `serve` and `tfserving` print when they are ready."""


def choose_ports(count: int) -> list[int]:
    """Return `count` free ports that no earlier call has returned.

    Programs get their ports before any of them listens, and two proxies would share one port
    (SO_REUSEPORT) without an error.
    """
    chosen: list[int] = []
    while len(chosen) < count:
        assert _untried, f"no port of {_PORTS} is left"
        port = _untried.pop()
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            chosen.append(port)
    return chosen


class Program:
    """One program as a context manager: started again and again on the way, gone on exit with all
    that it started. Its log is `folder`/`name`.log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        working_folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(word) for word in command]
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **(environment or {}), _MARK: self._mark}
        self._working_folder = working_folder
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: _Program) -> _Program:
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
            self._log_start = log.tell()
            self._start(log)

    def _start(self, output: IO[bytes] | int) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._working_folder,
            start_new_session=True,
        )

    def stop(self, seconds: float = STOP_SECONDS, number: int = signal.SIGTERM) -> int:
        """Send SIGTERM, or another signal, and return the exit status; raises AssertionError if the
        process has not ended in time."""
        assert self._process is not None
        self._process.send_signal(number)
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

    def read_log(self) -> str:
        """Return the output of the newest start so far."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def find_processes(self) -> list[int]:
        """Return the ids of all its living processes, of this start and of earlier ones."""
        mark = f"{_MARK}={self._mark}".encode()
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            # A zombie's environment is empty.
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
        return pids


class CommandServer(Program):
    """`poplar-triton serve` or `tfserving` with the given `arguments`: a context manager, ready on
    entry, stopped on exit, with its output in the file `log`. Without `waits` it is not waited
    for."""

    def __init__(
        self,
        *arguments: str | Path | int,
        log: Path,
        waits: bool = True,
        working_folder: Path | None = None,
    ) -> None:
        words = [str(word) for word in arguments]
        super().__init__(log.stem, [COMMAND, *words], log.parent, working_folder=working_folder)
        self.log = log
        self._waits = waits

    def __enter__(self: _Server) -> _Server:
        self.start()
        if self._waits:
            try:
                self.wait_until_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.poll() is None and kind is None:
                self.stop()
        finally:
            self.kill()

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until the server says that it is ready; raises AssertionError with its output if it
        ends instead, or takes too long."""

        def is_ready() -> bool:
            has_ended = self.poll() is not None  # first: then it has written all its output
            ready = _READY in self.read_log().splitlines()
            assert ready or not has_ended, f"{self.name} did not start: {self.read_log()}"
            return ready

        wait_until(is_ready, f"{self.name} is ready; see {self.log}", seconds)


class TfServing(CommandServer):
    """`poplar-triton tfserving` on free ports of 127.0.0.1. With `rest` False it serves gRPC
    alone."""

    def __init__(
        self, *arguments: str | Path, log: Path, rest: bool = True, **options: Any
    ) -> None:
        self.grpc_port, self._health_port, rest_port = choose_ports(3)
        self.rest_port = rest_port if rest else 0
        ports = ("--port", self.grpc_port, "--rest_api_port", self.rest_port)
        words = ("tfserving", *arguments, *ports, "--health-port", self._health_port)
        super().__init__(*words, log=log, **options)

    @property
    def grpc_url(self) -> str:
        """host:port of its gRPC."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        """URL of its models over REST."""
        return f"http://{HOST}:{self.rest_port}/v1/models"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"http://{HOST}:{self._health_port}/metrics"
