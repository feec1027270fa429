"""`poplar-triton serve` as a deployment runs it: supervisor, Triton and stubs, on ports that
stay."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import tritonclient.grpc as grpcclient
from fault_clients import Process, find_process
from server_processes import COMMAND, HOST, Program, choose_ports
from tritonclient.utils import InferenceServerException
from waiting import wait_until

START_SECONDS = 120
ASK_SECONDS = 10
SHARED_MEMORY = Path("/dev/shm")
LOADER = "simipu.engines.engine_process"
"""Module in the command line of a process that loads a model first, or computes it."""
STUB = "triton_python_backend_stub"
_INSTANCE = 8
"""The place of the instance's name among a stub's arguments."""
LOOK_SECONDS = 0.02
"""Interval between two checks of /ready, by which measured times are too long."""


class Server(Program):
    """A supervised server as a context manager: started and not waited for, so that several start
    at once."""

    def __init__(
        self,
        name: str,
        repository: Path | str,
        folder: Path,
        options: Sequence[str] = (),
        triton_options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.http_port, self.grpc_port, self.metrics_port, self.health_port = choose_ports(4)
        ports = {
            "http": self.http_port,
            "grpc": self.grpc_port,
            "metrics": self.metrics_port,
            "health": self.health_port,
        }
        command = [
            COMMAND,
            "serve",
            repository,
            *(f"--{what}-port={port}" for what, port in ports.items()),
            *options,
            "--",
            *triton_options,
        ]
        self.temporary = folder / f"temporary_{name}"
        """Its temporary folder, and that of all that it starts."""
        self.temporary.mkdir()
        self._supervisors: list[int] = []
        super().__init__(
            name, command, folder, {**(environment or {}), "TMPDIR": str(self.temporary)}
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for segment in self.find_segments():
            if segment.is_dir():  # that of its lock
                shutil.rmtree(segment, ignore_errors=True)
            else:
                segment.unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server; its output is appended to that of earlier starts."""
        super().start()
        self._supervisors.append(self.pid)

    def find_segments(self) -> list[Path]:
        """Return its segments in /dev/shm, of this start and of earlier ones."""
        return [path for pid in self._supervisors for path in SHARED_MEMORY.glob(f"poplar_{pid}_*")]

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until /ready is 200; raises AssertionError if the server ends, or does not get
        ready."""

        def settled() -> bool:
            assert self.poll() is None, f"{self.name} ended, status {self.poll()}; see {self.log}"
            return self.is_ready()

        wait_until(settled, f"{self.name} is ready: {self.ask_ready()}; see {self.log}", seconds)

    def is_ready(self) -> bool:
        """Return whether /ready is 200."""
        return self.ask_ready()[0] == http.client.OK

    def ask_ready(self) -> tuple[int, str]:
        """Return the status and text of /ready; 0 and the error if there is no answer."""
        try:
            status, text = self.ask(self.health_port, "GET", "/ready")
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        return status, text.decode(errors="replace")

    def ask(
        self,
        port: int,
        method: str,
        path: str,
        body: bytes | None = None,
        seconds: float = ASK_SECONDS,
    ) -> tuple[int, bytes]:
        """Send one HTTP request to a port of the server; return status and body."""
        connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def read_metrics(self) -> str:
        """Return the supervisor's Prometheus page."""
        return self.ask(self.health_port, "GET", "/metrics")[1].decode()

    def read_metric(self, name: str, **labels: str) -> float:
        """Return the sum of the supervisor's series of that name whose labels include these."""
        total = 0.0
        for series, value in re.findall(
            rf"^{name}(?:{{(.*)}})? (\S+)$", self.read_metrics(), re.MULTILINE
        ):
            if labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', series)).items():
                total += float(value)
        return total

    def load(self, model: str) -> str:
        """Have Triton load a model: why it does not, or "".

        Over gRPC: a load over HTTP keeps the requests of all connections that share its thread
        waiting.
        """
        with grpcclient.InferenceServerClient(f"{HOST}:{self.grpc_port}") as client:
            try:
                client.load_model(model, client_timeout=START_SECONDS)
            except InferenceServerException as error:
                return str(error)
        return ""

    def unload(self, model: str) -> None:
        """Have Triton unload a model."""
        with grpcclient.InferenceServerClient(f"{HOST}:{self.grpc_port}") as client:
            client.unload_model(model, client_timeout=START_SECONDS)

    def find_versions(self, model: str) -> list[str]:
        """Return the versions of a model that are ready."""
        _, text = self.ask(self.http_port, "POST", "/v2/repository/index", b"{}")
        index = [entry for entry in json.loads(text) if entry["name"] == model]
        return sorted(entry["version"] for entry in index if entry.get("state") == "READY")

    def find_triton(self) -> Process:
        """Return the living tritonserver process. Its children have its command line until they
        become stubs."""
        return min(self._find("tritonserver"), key=lambda process: process.started)

    def find_stubs(self, model: str = "") -> list[Process]:
        """Return the living stub processes, of all models or of one."""
        instance = re.compile(rf"{re.escape(model)}_\d+_\d+" if model else ".*")
        return [
            stub
            for stub in self._find(STUB)
            # Triton calls it without arguments first, to see whether it runs.
            if len(stub.command_line) > _INSTANCE
            and instance.fullmatch(stub.command_line[_INSTANCE])
        ]

    def find_loaders(self) -> list[int]:
        """Return the ids of the living processes that load a model first."""
        processes = map(find_process, self.find_processes())
        return [
            process.pid
            for process in processes
            if process and any(LOADER in word for word in process.command_line)
        ]

    def kill_stub(self, model: str, number: int = signal.SIGKILL) -> Process:
        """Send kill -9, or another signal, to the model's youngest stub, and return it.

        The choice is by age, because process ids wrap around, and after a reload older stubs may
        live on for a while.
        """
        stub = max(self.find_stubs(model), key=lambda each: each.started)
        os.kill(stub.pid, number)
        return stub

    def kill_triton(self, number: int = signal.SIGKILL) -> None:
        """Send tritonserver alone a signal, kill -9 by default."""
        os.kill(self.find_triton().pid, number)

    def _find(self, program: str) -> list[Process]:
        """Return our living processes that run the program of that name."""
        processes = map(find_process, self.find_processes())
        return [
            process
            for process in processes
            if process and Path(process.command_line[0]).name == program
        ]


@dataclass
class Watch:
    """Record of the times at which /ready of a server changed."""

    changes: list[tuple[float, int, str]] = field(default_factory=list)
    """Time, status and text."""

    def find_change(self, status: int, since: float) -> float | None:
        """Return the seconds from `since` to the first time of the status; None if it did not
        come."""
        for moment, found_status, _ in self.changes:
            if moment >= since and found_status == status:
                return moment - since
        return None


@contextmanager
def watch(server: Server) -> Iterator[Watch]:
    """Poll /ready while the block lasts."""
    record = Watch()
    ended = threading.Event()

    def look() -> None:
        last = None
        while not ended.wait(LOOK_SECONDS):
            status, text = server.ask_ready()
            if status != last:
                record.changes.append((time.monotonic(), status, text))
                last = status

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield record
    finally:
        ended.set()
        thread.join(2 * ASK_SECONDS)


@contextmanager
def start_all(servers: Sequence[Server]) -> Iterator[None]:
    """Run all servers, ready, while the block lasts."""
    with ExitStack() as running:
        for server in servers:
            running.enter_context(server)
        for server in servers:
            server.wait_until_ready()
        yield
