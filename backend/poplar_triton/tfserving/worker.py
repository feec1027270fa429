"""One process of a server: both protocols, the models behind them, and its limits of connections.

gRPC has threads, because its server for threads takes less processor time than the one for asyncio.
REST has the event loop. All processes listen on the same ports, and the system distributes the
connections among them. Each reports to its parent process, through a channel, what it serves. It
ends when it is told to or when the parent is gone.

A process may have only so many open files. Connections beyond that would block both protocols, and
the files of models too. gRPC's own server has a limit of all connections and none per address; over
REST one client address has a limit, too.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from io import FileIO

import grpc
from triton_poplar.log import log_to_stderr
from triton_poplar.server_start import ServerStart

from popef._tools.channel import LOST, Channel, open_channel
from poplar_triton.limits import raise_file_limit
from poplar_triton.serving.endpoint import bracket
from poplar_triton.tfserving.forward import TritonModels
from poplar_triton.tfserving.grpc_service import PROCESS_NAME, Health, make_handlers
from poplar_triton.tfserving.local import LocalModels, Retries
from poplar_triton.tfserving.metrics import Counters
from poplar_triton.tfserving.models import Models, ServingError
from poplar_triton.tfserving.settings import (
    GRPC_MESSAGE_BYTES,
    MAX_CALLS,
    MAX_STREAMS,
    ServerSettings,
)
from poplar_triton.tfserving.threads import Core, Threads
from poplar_triton.tfserving.unfinished import UnfinishedCalls
from poplar_triton.tfserving.work_process import WorkProcess

_GRPC_SHARE, _REST_SHARE = 2, 4
"""Divisors of the number of files: half of them are for connections over gRPC, a quarter for those
over REST."""


def max_grpc_connections(files: int) -> int:
    """Return the limit of connections over gRPC of a process that may open `files` files."""
    return max(1, files // _GRPC_SHARE)


def max_rest_connections(files: int) -> int:
    """Return the limit of connections over REST of such a process."""
    return max(1, files // _REST_SHARE)


class ConnectionLimit:
    """Counts the connections of a server. With `per_address` 0 one address may have all of them.
    Connections from this machine, which may be a proxy's, count for `total` only."""

    def __init__(self, total: int, per_address: int) -> None:
        self._max_total, self._max_per_address = total, per_address
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def wrap(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a protocol factory like `make` whose connections beyond the limit are closed."""
        return lambda: _CountedConnection(make, self)

    def enter(self, address: str) -> bool:
        """Count a connection and return True. If there are too many, return False without counting
        it."""
        if self._total >= self._max_total:
            return False
        if 0 < self._max_per_address <= self._by_address[address] and not is_loopback(address):
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Subtract a counted connection that has ended."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def is_loopback(address: str) -> bool:
    """Return whether an address belongs to this machine."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


class _CountedConnection(asyncio.Protocol):
    """Connection that is counted. Its protocol does everything else, and a refused connection has
    none."""

    def __init__(self, make: Callable[[], asyncio.Protocol], limit: ConnectionLimit) -> None:
        self._make, self._limit = make, limit
        self._inner: asyncio.Protocol | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        if not self._limit.enter(self._address):
            transport.close()
            return
        self._inner = self._make()
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is not None:
            self._limit.leave(self._address)
            self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()


STOP_SECONDS = 30
"""Time for the requests under way when a server stops: the default of Triton's own
--exit-timeout-secs."""
HOUSEKEEPING_SECONDS = 1.0
"""Time between two updates of the backend's sums in the metrics."""
_UNLIMITED = -1
"""No limit, in a channel argument of gRPC."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Report of a process once it serves, or why it cannot. `problems` are about models that it
    does not serve."""

    error: str = ""
    problems: Sequence[str] = field(default_factory=tuple)


def main(channel_descriptor: int, memory_descriptor: int) -> None:
    """Run the process: its parent sends the arguments of `run_worker`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    channel = open_channel(channel_descriptor)
    with suppress(*LOST):
        settings, index, core = channel.receive_object()
        run_worker(settings, index, core, FileIO(memory_descriptor, "r+"), channel)


def run_worker(
    settings: ServerSettings, index: int, core: int, memory: FileIO, channel: Channel
) -> None:
    """Serve until SIGTERM, with the interpreter's work on one core."""
    log_to_stderr()
    # All processes load the same models, so only the first logs messages about them.
    logging.getLogger("poplar_triton.tfserving").setLevel(
        logging.INFO if index == 0 else logging.ERROR
    )
    try:
        asyncio.run(_Worker(settings, index, core, memory, channel).serve())
    except (OSError, ServingError, RuntimeError) as error:
        with suppress(OSError):
            channel.send_object(WorkerReport(error=str(error)))


class _Worker:
    def __init__(
        self, settings: ServerSettings, index: int, core: int, memory: FileIO, channel: Channel
    ) -> None:
        self._settings = settings
        self._core = Core(core)
        self._files = raise_file_limit()
        self._channel = channel
        self._counters = Counters(memory, settings.names, settings.processes, index)
        self._stop = asyncio.Event()
        self._is_serving = False
        self._health: Health | None = None

    async def serve(self) -> None:
        """Load, serve, drain, stop."""
        self._listen_for_the_end()
        async with AsyncExitStack() as stack:
            models = await asyncio.to_thread(self._open_models)
            stack.push_async_callback(asyncio.to_thread, models.close)
            self._core.enter()  # only now: the threads that compute have started
            if self._settings.grpc_port:
                self._start_grpc(models, stack)
            if self._settings.rest_port:
                await self._start_rest(models, stack)
            self._start_housekeeping(models, stack)
            gc.freeze()  # objects so far live to the end; the collector can skip them
            self._set_serving(True)
            self._channel.send_object(WorkerReport(problems=_find_problems(models)))
            await self._stop.wait()
            self._set_serving(False)
            await asyncio.sleep(self._settings.drain_seconds)

    def _set_serving(self, is_serving: bool) -> None:
        self._is_serving = is_serving
        if self._health is not None:
            self._health.set_serving(is_serving)

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)

        def orphaned() -> None:
            if not (self._is_serving or self._stop.is_set()):
                os._exit(1)  # it may load models for long, without a client
            loop.remove_reader(self._channel.fileno())
            self._stop.set()

        # The parent sends nothing more: the channel becomes readable when its other end closes.
        loop.add_reader(self._channel.fileno(), orphaned)

    def _open_models(self) -> TritonModels | LocalModels:
        settings = self._settings
        if settings.triton is not None:
            return TritonModels(settings.triton, settings.sources, settings.triton_tls)
        retries = Retries(settings.load_retries, settings.load_retry_seconds)
        models = LocalModels(
            settings.sources,
            settings.processes,
            retries,
            isolated=settings.isolate_models,
            start=ServerStart(time.monotonic(), settings.start_seconds),
        )
        models.refresh()
        if not settings.loose_labels:
            models.check_labels()
        return models

    def _start_housekeeping(self, models: Models, stack: AsyncExitStack) -> None:
        """Start a thread that looks now and then for another core and for new versions, and writes
        the backend's sums to the metrics."""
        ended = threading.Event()
        poll_seconds = self._settings.poll_seconds
        pause = min(poll_seconds or HOUSEKEEPING_SECONDS, HOUSEKEEPING_SECONDS)

        def keep_house() -> None:
            self._core.leave()  # it loads models
            looked = begun = time.monotonic()
            while not ended.wait(pause):
                begun, before = time.monotonic(), begun
                self._core.move_if_starved(begun - before)
                if isinstance(models, LocalModels):
                    if poll_seconds and begun >= looked + poll_seconds:
                        models.refresh()
                        looked = begun
                    for name, statistics in models.iter_statistics():
                        self._counters.publish(name, statistics)

        thread = threading.Thread(target=keep_house, name="housekeeping", daemon=True)
        thread.start()
        stack.push_async_callback(asyncio.to_thread, thread.join)
        stack.callback(ended.set)

    def _start_grpc(self, models: Models, stack: AsyncExitStack) -> None:
        settings = self._settings
        threads = Threads("gRPC", self._core)
        unfinished = UnfinishedCalls(threads)
        self._health = health = Health(unfinished)
        process = WorkProcess(PROCESS_NAME)
        stack.push_async_callback(asyncio.to_thread, process.close)
        observe, as_content = self._counters.observe, settings.as_content
        server = grpc.server(
            threads,
            make_handlers(
                models, observe, health, unfinished, as_content=as_content, process=process
            ),
            options=list(make_channel_arguments(settings, self._files).items()),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        where = f"{bracket(settings.address)}:{settings.grpc_port}"
        if settings.tls is None:
            server.add_insecure_port(where)
        else:
            pair = settings.tls.key, settings.tls.certificate
            client_ca = settings.tls.client_ca
            server.add_secure_port(
                where, grpc.ssl_server_credentials([pair], client_ca, client_ca is not None)
            )
        server.start()
        stack.push_async_callback(asyncio.to_thread, lambda: server.stop(STOP_SECONDS).wait())
        stack.callback(health.close)

    async def _start_rest(self, models: Models, stack: AsyncExitStack) -> None:
        from poplar_triton.tfserving.rest import make_application, make_runner

        settings = self._settings
        application = make_application(models, settings, self._counters, self._core)
        runner = make_runner(application, count_malformed=self._counters.count_malformed)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        limit = ConnectionLimit(
            max_rest_connections(self._files), settings.rest_connections_per_address
        )
        server = await asyncio.get_running_loop().create_server(
            limit.wrap(runner.server), settings.address, settings.rest_port, reuse_port=True
        )
        stack.callback(server.close)


def make_channel_arguments(settings: ServerSettings, files: int) -> dict[str, int | str]:
    """Return the options of the gRPC server of a process that may open `files` files. The settings
    override the defaults."""
    return {
        "grpc.max_allowed_incoming_connections": max_grpc_connections(files),
        "grpc.max_concurrent_streams": MAX_STREAMS,
        "grpc.max_receive_message_length": GRPC_MESSAGE_BYTES,
        "grpc.max_send_message_length": _UNLIMITED,
        **settings.channel_arguments,
        "grpc.so_reuseport": 1,
    }


def _find_problems(models: Models) -> list[str]:
    if not isinstance(models, LocalModels):
        return []
    return [
        f"model {name!r} version {status.version} is not served: {status.message}"
        for name, status in models.failures
    ] + [f"model {name!r} is not served: {why}" for name, why in models.absences]
