"""Processes of a server, seen from the process that starts, watches, restarts and stops them."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from popef._tools.channel import LOST, Channel, make_channel
from popef._tools.child import ChildProcess, start_python
from popef._tools.stalls import StallDetector
from poplar_triton.errors import ServerError
from poplar_triton.tfserving.metrics import Counters, make_memory
from poplar_triton.tfserving.settings import ServerSettings
from poplar_triton.tfserving.worker import STOP_SECONDS, WorkerReport

LOOK_SECONDS = 0.1
"""Interval between two checks of the processes that start."""
STOP_MARGIN_SECONDS = 15
"""Time for models to close, in addition to the time for requests."""
MAX_RESTARTS, RESTART_WINDOW_SECONDS = 10, 600.0
"""Maximum number of restarts of a process that ends by itself, and the time in which they count."""
MAX_LOST_STARTS = 3
"""Maximum number of processes that may be killed, or stall, before all serve."""
_STARTING = "starting"
_WORKER = "from poplar_triton.tfserving.worker import main; main({}, {})"
"""Code of a process, with the descriptors of its end of the channel and of the counters' memory."""
_EXPERIMENTS, _PLAIN_POLLING = "GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client"
"""Environment variable of gRPC and its value. gRPC's event engine passes each call from thread to
thread; its older polling takes some 10 % less processor time (gRPC 1.85). A value that the user
sets takes precedence."""


_MANY_CORES = 1 << 16


class Processes:
    """Processes of a server, as a context manager: all serve on entry, all are gone on exit. Raises
    ServerError if one cannot serve. `tell` gets a line per event."""

    def __init__(self, settings: ServerSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._memory = make_memory(settings.names, settings.processes)
        self._counters = Counters(self._memory, settings.names, settings.processes)
        self._first_core = random.randrange(_MANY_CORES)  # noqa: S311  servers side by side take others
        self._workers: list[_WorkerProcess] = []
        self._ends: list[float] = []
        self._num_lost = 0
        self._began = 0.0
        self._stall_detector = StallDetector()
        self._phase = _STARTING

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
        """Reason not to send requests; "" if the server is ready."""
        for index, worker in enumerate(self._workers):
            if worker.stalled and self._phase in ("", _STARTING):
                # The system still gives it connections.
                return f"process {index} makes no progress: {worker.stalled}"
        if self._phase:
            return self._phase
        return "" if any(worker.serves for worker in self._workers) else "no process is serving"

    @property
    def hopeless_reason(self) -> str:
        """Reason why only ending everything helps; "" if the server can recover, or need not."""
        return self._phase if self._phase == "ended" else ""

    def write_metrics(self) -> bytes:
        """Return the page for Prometheus, with the counters of all processes."""
        return self._counters.write_page()

    def look(self) -> bool:
        """Handle processes that have ended, stall or have begun to serve. Return False if one may
        not be restarted."""
        self._kill_stalled()
        for index, worker in enumerate(self._workers):
            report = worker.hear()
            if report is not None and report.error:
                self._tell(f"process {index}: {report.error}")
            elif report is None and worker.process.has_ended() and not self._restart(index):
                self._phase = "ended"
                return False
        return True

    def _restart(self, index: int) -> bool:
        """Start another process for one that has ended, if that is allowed."""
        worker = self._workers[index]
        status = worker.bury()
        if not worker.stalled:
            self._tell(f"process {index} ended by itself, status {status}")
        if not self._may_begin():
            return False
        self._workers[index] = self._begin(index)
        return True

    def drain(self) -> None:
        """Make all processes drain: they serve requests under way, and those that come
        meanwhile."""
        self._phase = "draining"
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Make the processes end; afterwards none is left."""
        self.drain()
        end = time.monotonic() + self._settings.drain_seconds + STOP_SECONDS + STOP_MARGIN_SECONDS
        for worker in self._workers:
            if not worker.serves:
                worker.process.kill()  # it loads models, and no client waits for it
            if not worker.process.wait(max(0.0, end - time.monotonic())):
                self._tell(f"process {worker.process.pid} does not end; killing it")
                worker.process.kill()
            worker.bury()
        self._workers = []

    def _kill_stalled(self) -> None:
        stalled = self._stall_detector.find_stalled(worker.process.pid for worker in self._workers)
        for index, worker in enumerate(self._workers):
            why = stalled.get(worker.process.pid, "")
            if why and not worker.stalled:
                self._tell(f"process {index} makes no progress: {why}; killing it")
                worker.process.kill()
                worker.stalled = why

    def _begin(self, index: int) -> _WorkerProcess:
        channel, theirs = make_channel()
        # gRPC reads it when it is loaded in the new process.
        os.environ.setdefault(_EXPERIMENTS, _PLAIN_POLLING)
        with theirs:
            descriptors = theirs.fileno(), self._memory.fileno()
            process = start_python(_WORKER.format(*descriptors), descriptors=descriptors)
        with suppress(ConnectionError):  # it has ended, which its status says
            channel.send_object((self._settings, index, self._first_core + index))
        return _WorkerProcess(process, channel)

    def _wait_until_serving(self) -> None:
        seconds = self._settings.start_seconds
        self._began = time.monotonic()
        reported: set[str] = set()
        while not all(worker.serves for worker in self._workers):
            self._kill_stalled()
            for index, worker in enumerate(self._workers):
                for problem in self._hear_start(index, worker):
                    if problem not in reported:
                        reported.add(problem)
                        self._tell(problem)
            if time.monotonic() > self._began + seconds:
                raise ServerError(
                    f"the models were not loaded within {seconds:g} s; raise --start-seconds"
                )
            time.sleep(LOOK_SECONDS)

    def _hear_start(self, index: int, worker: _WorkerProcess) -> Sequence[str]:
        """Return the problems that a process reports once it serves. A process that a signal has
        ended is restarted; raises ServerError for one that cannot serve."""
        report = worker.hear()
        if report is not None and report.error:
            raise ServerError(report.error)
        if report is None and worker.process.has_ended():
            self._num_lost += 1
            status = worker.process.reap()
            if status >= 0 or self._num_lost > MAX_LOST_STARTS or not self._restart(index):
                raise ServerError(
                    f"a server process ended during its start, status {status}; see its output"
                )
            self._began = time.monotonic()  # the next one has the whole time
        return () if report is None else report.problems

    def _may_begin(self) -> bool:
        now = time.monotonic()
        self._ends = [end for end in self._ends if now - end < RESTART_WINDOW_SECONDS]
        self._ends.append(now)
        if len(self._ends) <= MAX_RESTARTS:
            return True
        self._tell(
            f"{len(self._ends)} processes ended in {RESTART_WINDOW_SECONDS / 60:g} minutes; giving "
            "up"
        )
        return False


@dataclass(slots=True)
class _WorkerProcess:
    """Process, and its reports."""

    process: ChildProcess
    channel: Channel
    serves: bool = False
    stalled: str = ""
    """Reason why it made no progress and was killed; "" if it was not."""

    def hear(self) -> WorkerReport | None:
        """Return the report that the process has sent, or None."""
        with suppress(*LOST):
            if not self.serves and self.channel.is_ready(select.POLLIN, 0):
                report: WorkerReport = self.channel.receive_object()
                self.serves = not report.error
                return report
        return None

    def bury(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        self.channel.close()
        return self.process.reap()


@contextmanager
def _hold_ports(settings: ServerSettings) -> Iterator[None]:
    """Reserve a server's ports: no other process listens on them, and no connection arrives until
    its own processes do."""
    with ExitStack() as sockets:
        for what, option, port in (
            ("gRPC", "--port", settings.grpc_port),
            ("REST", "--rest_api_port", settings.rest_port),
        ):
            if port:
                sockets.enter_context(_hold(settings.address, port, what, option))
        yield


def _hold(address: str, port: int, what: str, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        # First bind without SO_REUSEPORT, which would share the port with another process.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((address, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address, port))
    except (OSError, UnicodeError) as error:  # UnicodeError for an invalid host name
        holder.close()
        raise ServerError(
            f"{what} port {port} of {address}: cannot listen ({error}); choose another one with "
            f"{option}"
        ) from error
    return holder
