"""The processes of a server, as whoever has started them sees them: begun, watched, begun again, stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from commands.errors import ServerError
from commands.tfserving.metrics import Counters, make_memory
from commands.tfserving.settings import Settings
from commands.tfserving.worker import STOP_SECONDS, Report, run_worker

LOOK_SECONDS = 0.1
STOP_MARGIN_SECONDS = 15
"""Beyond what is granted to requests: for models to be given up."""
MOST_RESTARTS, RESTART_WINDOW_SECONDS = 10, 600.0
"""A process that ends by itself is begun again so often in that time, and then no more."""


_EXPERIMENTS, _PLAIN_POLLING = "GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client"
"""gRPC's event engine hands each call from thread to thread: its older polling takes some 10 % less of the
processor (gRPC 1.85). Whoever sets the variable has the say."""


_MANY_CORES = 1 << 16


class Processes:
    """A server's processes, as a context manager: all serve on entry, all are gone on exit. ServerError where
    one cannot. `tell` gets a line per event."""

    def __init__(self, settings: Settings, start_seconds: float, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._start_seconds = start_seconds
        self._tell = tell
        self._context = multiprocessing.get_context("spawn")
        self._memory = make_memory(self._context, settings.names, settings.processes)
        self._counters = Counters(self._memory, settings.names, settings.processes)
        self._first_core = random.randrange(_MANY_CORES)  # noqa: S311  servers side by side take others
        self._workers: list[_Worker] = []
        self._ends: list[float] = []
        self._phase = "starting"

    def __enter__(self) -> Processes:
        try:
            with _hold_ports(self._settings):
                self._workers = [self._begin(index) for index in range(self._settings.processes)]
                self._wait_until_serving()
        except BaseException:
            self.stop()
            raise
        self._phase = ""
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def unready_reason(self) -> str:
        """Why no requests should come; "" where they should."""
        if self._phase:
            return self._phase
        return "" if any(worker.serves for worker in self._workers) else "no process serves"

    @property
    def hopeless_reason(self) -> str:
        """Why nothing but an end of it all can help; "" where something can, or need not."""
        return self._phase if self._phase == "ended" else ""

    def write_metrics(self) -> bytes:
        """The page for Prometheus, of all processes."""
        return self._counters.write_page()

    def look(self) -> bool:
        """See to processes that have ended or have begun to serve; False where one may not be begun again."""
        for index, worker in enumerate(self._workers):
            report = worker.hear()
            if report is not None and report.error:
                self._tell(f"process {index}: {report.error}")
            elif report is None and not worker.process.is_alive():
                self._tell(f"process {index} ended by itself, status {worker.process.exitcode}")
                if not self._may_begin():
                    self._phase = "ended"
                    return False
                self._workers[index] = self._begin(index)
        return True

    def drain(self) -> None:
        """Have all processes serve what is under way, and what comes while they drain."""
        self._phase = "draining"
        for worker in self._workers:
            worker.process.terminate()

    def stop(self) -> None:
        """Have them end; afterwards none is left."""
        self.drain()
        end = time.monotonic() + self._settings.drain_seconds + STOP_SECONDS + STOP_MARGIN_SECONDS
        for worker in self._workers:
            if not worker.serves:
                worker.process.kill()  # it loads models, and nobody waits for its answers
            worker.process.join(max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                self._tell(f"process {worker.process.pid} does not end; it is killed")
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers = []

    def _begin(self, index: int) -> _Worker:
        ours, theirs = self._context.Pipe(duplex=False)
        os.environ.setdefault(_EXPERIMENTS, _PLAIN_POLLING)  # read when gRPC is loaded, in the new process
        process = self._context.Process(
            target=run_worker,
            args=(self._settings, index, self._first_core + index, self._memory, theirs),
            name=f"tfserving {index}",
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _wait_until_serving(self) -> None:
        end = time.monotonic() + self._start_seconds
        told: set[str] = set()
        while waiting := [worker for worker in self._workers if not worker.serves]:
            for worker in waiting:
                report = worker.hear()
                if report is not None and report.error:
                    raise ServerError(report.error)
                if report is None and not worker.process.is_alive():
                    raise ServerError(
                        f"a process of the server ended while it started, status {worker.process.exitcode}; "
                        "see its output"
                    )
                for problem in [] if report is None else set(report.problems) - told:
                    told.add(problem)
                    self._tell(problem)
            if time.monotonic() > end:
                raise ServerError(
                    f"the models were not loaded within {self._start_seconds:g} s; give them longer with "
                    "--start-seconds"
                )
            time.sleep(LOOK_SECONDS)

    def _may_begin(self) -> bool:
        now = time.monotonic()
        self._ends = [each for each in self._ends if now - each < RESTART_WINDOW_SECONDS]
        self._ends.append(now)
        if len(self._ends) <= MOST_RESTARTS:
            return True
        self._tell(f"{len(self._ends)} processes ended in {RESTART_WINDOW_SECONDS / 60:g} minutes; giving up")
        return False


@dataclass(slots=True)
class _Worker:
    """A process, and what it has said."""

    process: SpawnProcess
    connection: Connection
    serves: bool = False

    def hear(self) -> Report | None:
        """What it says now, if it says anything."""
        with suppress(EOFError, OSError):
            if not self.serves and self.connection.poll():
                report: Report = self.connection.recv()
                self.serves = not report.error
                return report
        return None


@contextmanager
def _hold_ports(settings: Settings) -> Iterator[None]:
    """See that nobody else listens on a server's ports, and that nobody comes to until its processes do."""
    held: list[socket.socket] = []
    try:
        for what, option, port in (
            ("gRPC", "--port", settings.grpc_port),
            ("REST", "--rest_api_port", settings.rest_port),
        ):
            if port:
                held.append(_hold(settings.address, port, what, option))
        yield
    finally:
        for each in held:
            each.close()


def _hold(address: str, port: int, what: str, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Alone first: with SO_REUSEPORT it would share the port with whoever else shares it.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((address, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address, port))
    except (OSError, UnicodeError) as error:  # the latter of names of hosts that are none
        holder.close()
        raise ServerError(
            f"{what} port {port} of {address}: cannot listen there ({error}); choose another with {option}"
        ) from error
    return holder
