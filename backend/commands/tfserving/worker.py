"""One process of a server: both protocols on an event loop, and the models behind them.

All processes listen on the same ports, and the system shares the connections out among them. Each tells the
one that has started it, through a pipe, what it serves, and ends when it is told to or that one is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import grpc
from triton_poplar.log import log_to_stderr

from commands.tfserving.errors import ServingError
from commands.tfserving.grpc_service import make_handlers
from commands.tfserving.local import LocalModels, Retries
from commands.tfserving.metrics import Counters, Memory
from commands.tfserving.models import Models
from commands.tfserving.settings import MOST_CALLS, Settings

STOP_SECONDS = 30
"""For the requests under way when a server stops: Triton's own --exit-timeout-secs."""
HOUSEKEEPING_SECONDS = 1.0
"""How often the backend's sums go to the metrics."""
_UNLIMITED = -1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What a process says once it serves, or why it cannot: `problems` are of models that it does not
    serve."""

    error: str = ""
    problems: Sequence[str] = field(default_factory=tuple)


def run_worker(settings: Settings, index: int, memory: Memory, connection: Connection) -> None:
    """Serve until SIGTERM. The process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that has started this one
    log_to_stderr()
    # All load the same models: the first speaks for all.
    logging.getLogger("commands.tfserving").setLevel(logging.INFO if index == 0 else logging.ERROR)
    try:
        asyncio.run(_Worker(settings, index, memory, connection).serve())
    except (OSError, ServingError, RuntimeError) as error:
        with suppress(OSError):
            connection.send(Report(error=str(error)))


class _Worker:
    def __init__(self, settings: Settings, index: int, memory: Memory, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._counters = Counters(memory, settings.names, settings.processes, index)
        self._stop = asyncio.Event()
        self._is_serving = False

    async def serve(self) -> None:
        """Load, serve, drain, stop."""
        self._listen_for_the_end()
        async with AsyncExitStack() as stack:
            models = await self._open_models(stack)
            if self._settings.grpc_port:
                await self._start_grpc(models, stack)
            if self._settings.rest_port:
                await self._start_rest(models, stack)
            gc.freeze()  # what is here now stays: it need not be looked at again and again
            self._is_serving = True
            self._connection.send(Report(problems=self._find_problems(models)))
            await self._stop.wait()
            self._is_serving = False
            await asyncio.sleep(self._settings.drain_seconds)

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        parent = multiprocessing.parent_process()
        if parent is not None:

            def orphaned() -> None:
                loop.remove_reader(parent.sentinel)
                self._stop.set()

            loop.add_reader(parent.sentinel, orphaned)

    async def _open_models(self, stack: AsyncExitStack) -> Models:
        settings = self._settings
        if settings.triton is not None:
            from commands.tfserving.forward import TritonModels

            triton = TritonModels(settings.triton, settings.sources, settings.triton_tls)
            stack.push_async_callback(triton.close)
            return triton
        retries = Retries(settings.load_retries, settings.load_retry_seconds)
        models = LocalModels(settings.sources, settings.processes, retries)
        stack.push_async_callback(models.close)
        await models.refresh()
        if not settings.loose_labels:
            models.check_labels()
        self._keep(self._publish(models), stack)
        if settings.poll_seconds:
            self._keep(self._watch(models), stack)
        return models

    def _keep(self, work: Any, stack: AsyncExitStack) -> None:
        """A task that goes on until the end."""
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        stack.push_async_callback(end)

    async def _watch(self, models: LocalModels) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            await models.refresh()

    async def _publish(self, models: LocalModels) -> None:
        while True:
            for name, statistics in models.iter_statistics():
                self._counters.publish(name, statistics)
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    def _find_problems(self, models: Models) -> list[str]:
        if not isinstance(models, LocalModels):
            return []
        return [
            f"model {name!r} version {status.version} is not served: {status.message}"
            for name, status in models.failures
        ]

    async def _start_grpc(self, models: Models, stack: AsyncExitStack) -> None:
        settings = self._settings
        arguments = {
            "grpc.max_receive_message_length": _UNLIMITED,
            "grpc.max_send_message_length": _UNLIMITED,
            **settings.channel_arguments,
            "grpc.so_reuseport": 1,
        }
        server = grpc.aio.server(options=list(arguments.items()), maximum_concurrent_rpcs=MOST_CALLS)
        server.add_generic_rpc_handlers(
            make_handlers(
                models, self._counters.observe, lambda: self._is_serving, as_content=settings.as_content
            )
        )
        where = f"{_bracket(settings.address)}:{settings.grpc_port}"
        if settings.tls is None:
            server.add_insecure_port(where)
        else:
            server.add_secure_port(
                where,
                grpc.ssl_server_credentials(
                    [(settings.tls.key, settings.tls.certificate)],
                    settings.tls.client_ca,
                    settings.tls.client_ca is not None,
                ),
            )
        await server.start()
        stack.push_async_callback(server.stop, STOP_SECONDS)

    async def _start_rest(self, models: Models, stack: AsyncExitStack) -> None:
        from aiohttp import web

        from commands.tfserving.rest import make_application, make_runner

        settings = self._settings
        application = make_application(models, settings, self._counters)
        runner = make_runner(application)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, settings.address, settings.rest_port, reuse_port=True).start()


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
