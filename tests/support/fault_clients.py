"""Clients that record the outcome of each request, and the server's processes and shared memory.

Nothing here judges an answer: tests do.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from poplar_triton.serving.server import TritonServer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from waiting import PATIENCE_SECONDS, wait_until

Array = npt.NDArray[Any]

HTTP_CODES = {
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "500": "INTERNAL",
    "503": "UNAVAILABLE",
}
"""Triton's HTTP statuses as the gRPC codes of the same errors."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of one request: outputs by name with code OK, or a gRPC code and the server's
    message."""

    code: str
    message: str
    outputs: Mapping[str, Array]
    request_id: str = ""


class Client:
    """Client over "http" or "grpc": a context manager, used in the thread that made it.

    Every call ends, after `deadline_seconds` at most.
    """

    def __init__(
        self, server: TritonServer, protocol: str, deadline_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._is_http = protocol == "http"
        self._module = httpclient if self._is_http else grpcclient
        if self._is_http:
            self._client = httpclient.InferenceServerClient(
                server.http_url,
                connection_timeout=deadline_seconds,
                network_timeout=deadline_seconds,
            )
            self._limits = {}
        else:
            self._client = grpcclient.InferenceServerClient(server.grpc_url)
            self._limits = {"client_timeout": deadline_seconds}

    def ask(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        request_id: str = "",
    ) -> Answer:
        """Send one request and wait for its outcome."""
        tensors = [self._tensor(name, array) for name, array in inputs.items()]
        requested = [self._module.InferRequestedOutput(name) for name in outputs] or None
        try:
            result = self._client.infer(
                model, tensors, outputs=requested, request_id=request_id, **self._limits
            )
        except InferenceServerException as error:
            return read_error(error)
        return read_result(result)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _tensor(self, name: str, array: Array) -> Any:
        tensor = self._module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        return tensor


def read_error(error: InferenceServerException) -> Answer:
    """Return the answer that a client's exception represents."""
    status = (error.status() or "").removeprefix("StatusCode.")
    return Answer(HTTP_CODES.get(status, status), error.message() or "", {})


def read_result(result: httpclient.InferResult | grpcclient.InferResult) -> Answer:
    """Return the answer in a client's result."""
    response = result.get_response()
    if isinstance(result, httpclient.InferResult):
        names, request_id = (
            [output["name"] for output in response["outputs"]],
            response.get("id", ""),
        )
    else:
        names, request_id = [output.name for output in response.outputs], response.id
    return Answer("OK", "", {name: result.as_numpy(name) for name in names}, request_id)


class Load:
    """Clients that send requests without a pause while the block lasts.

    `ask(client, number)` sends one request and returns its outcome, for a number that no other
    request has. `outcomes` holds the returned values in their order. On exit every client has ended
    its last call.
    """

    def __init__(
        self,
        server: TritonServer,
        ask: Callable[[Client, int], Any],
        *,
        clients: int,
        deadline_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.outcomes: list[Any] = []
        self._server = server
        self._ask = ask
        self._deadline_seconds = deadline_seconds
        self._stopped = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(index, clients), daemon=True)
            for index in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(self._deadline_seconds + PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), (
            "a client call outlasted its own deadline"
        )
        if self._failures:
            raise self._failures[0]

    def wait_for(self, count: int, matches: Callable[[Any], bool] = lambda outcome: True) -> None:
        """Return when `count` more outcomes that match have come."""
        start = len(self.outcomes)
        try:
            wait_until(
                lambda: self._failures or sum(map(matches, self.outcomes[start:])) >= count,
                f"{count} more answers under load",
            )
        except AssertionError as error:
            came = Counter(str(outcome)[:200] for outcome in self.outcomes[start:])
            raise AssertionError(f"{error}; came: {came.most_common(10)}") from None

    def _work(self, index: int, stride: int) -> None:
        try:
            with Client(self._server, "grpc", self._deadline_seconds) as client:
                for number in itertools.count(index, stride):
                    if self._stopped.is_set():
                        return
                    self.outcomes.append(self._ask(client, number))
        except BaseException as failure:  # noqa: BLE001  raised in the test's thread
            self._failures.append(failure)


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it; `state` is one letter, Z for a zombie, `ticks` the processor
    time so far, and `started` when it began, in ticks too."""

    pid: int
    state: str
    parent: int
    session: int
    ticks: int
    started: int
    command_line: tuple[str, ...]


def iter_processes() -> Iterator[Process]:
    """Yield all processes of the machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        process = find_process(int(folder.name))
        if process is not None:
            yield process


def find_process(pid: int) -> Process | None:
    """Return the process with that id; None if it is gone."""
    try:
        # The name, in parentheses, may hold spaces and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    state, parent, session, started = fields[0], int(fields[1]), int(fields[3]), int(fields[19])
    return Process(pid, state, parent, session, ticks, started, tuple(map(os.fsdecode, words)))


def children(pid: int) -> list[Process]:
    """Return the processes whose parent is `pid`, including zombies."""
    return [process for process in iter_processes() if process.parent == pid]


def find_stub(server: TritonServer, instance: str) -> Process:
    """Return the stub process of the model instance of that name."""
    return next(process for process in children(server.pid) if instance in process.command_line)


def find_engine(stub: Process, killed: Collection[int] = ()) -> Process:
    """Wait for the child process of an isolated engine that is not among those killed, and return
    it."""

    def living() -> list[Process]:
        return [
            child for child in children(stub.pid) if child.pid not in killed and child.state != "Z"
        ]

    wait_until(living, "a living child of the stub")
    (engine,) = living()
    return engine


def wait_until_busy(process: Process, asked: Future[Any]) -> None:
    """Return when a process that idled has computed for 0.1 s, or the call that it is to compute
    has ended."""
    before = find_process(process.pid)
    assert before is not None
    wait_until(
        lambda: (
            asked.done()
            or (now := find_process(process.pid)) is None
            or now.ticks > before.ticks + 10
        ),
        f"process {process.pid} computes",
    )


def kill(process: Process) -> None:
    """Kill the process with SIGKILL."""
    os.kill(process.pid, signal.SIGKILL)


def has_ended(process: Process) -> bool:
    """Return whether a process has ended; a zombie has, once the last of its threads is gone."""
    now = find_process(process.pid)
    if now is None:
        return True
    with suppress(FileNotFoundError):
        return now.state == "Z" and len(os.listdir(f"/proc/{process.pid}/task")) == 1
    return True


def resident_bytes(pid: int) -> int:
    """Return the process's VmRSS in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def shared_segments(server: TritonServer) -> dict[str, int]:
    """Return the size in bytes of each of the server's segments in /dev/shm."""
    maps = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
    paths = {Path(line.split()[5]) for line in maps if "/dev/shm/" in line}
    return {path.name: path.stat().st_size for path in paths if path.exists()}
