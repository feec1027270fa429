"""The REST application on a separate port, in front of fake models with given answers."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from poplar_triton.tfserving.metrics import Counters, make_memory
from poplar_triton.tfserving.models import (
    Call,
    Code,
    ModelSpec,
    Servable,
    ServingError,
    Signature,
    TensorSpec,
    VersionState,
    VersionStatus,
)
from poplar_triton.tfserving.rest import RestLimits, make_application, make_runner
from poplar_triton.tfserving.rest_bodies import BodyLimits
from poplar_triton.tfserving.settings import ServerSettings
from poplar_triton.tfserving.worker import ConnectionLimit

from popef._tools.arrays import Array

FLOATS = Signature(
    {"x": TensorSpec(np.dtype(np.float32), (-1,))}, {"y": TensorSpec(np.dtype(np.float32), (-1,))}
)
NAMES = "a", "b"
SEVERAL = Signature(
    {name: TensorSpec(np.dtype(np.int32), (-1, 2)) for name in NAMES},
    {name: TensorSpec(np.dtype(np.int32), (-1, 2)) for name in NAMES},
)
SECONDS = 30
LIMITS = RestLimits(
    BodyLimits(body_bytes=10_000, all_bytes=15_000, seconds=0.5, unfinished=12), calls=3
)
PREDICT = "/v1/models/half:predict"
POST = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n".encode()
ROW = b'{"instances": [1.0]}'


@dataclass
class FakeServable:
    """A model that gives its inputs back, y for x: half of it and two more."""

    name: str
    version: int
    signature: Signature
    error: Exception | None = None
    is_stuck: bool = False
    started: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    seconds: float | None = None

    def predict(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call
    ) -> dict[str, Array]:
        self.seconds = call.seconds_left()
        self.started.set()
        if self.error is not None:
            raise self.error
        if self.is_stuck:
            call.when_given_up(self.cancelled.set)
            with call.waiting():
                assert self.cancelled.wait(SECONDS)
            raise ServingError(Code.CANCELLED, "given up")
        if "x" in inputs:
            return {"y": inputs["x"] / 2 + 2}
        return dict(inputs)


@dataclass
class FakeModels:
    """Models by name, each with versions, the newest first; `labels` are those of all."""

    versions: dict[str, list[FakeServable]]
    labels: dict[str, int] = field(default_factory=dict)

    def find(self, spec: ModelSpec, _: Call) -> Servable:
        return self._find(spec)

    def list_versions(self, spec: ModelSpec, _: Call) -> list[VersionStatus]:
        if spec.name not in self.versions:
            raise ServingError(Code.NOT_FOUND, f"Could not find any versions of model {spec.name}")
        is_chosen = spec.version is not None or spec.label is not None
        servables = [self._find(spec)] if is_chosen else self.versions[spec.name]
        return [VersionStatus(servable.version, VersionState.AVAILABLE) for servable in servables]

    def _find(self, spec: ModelSpec) -> FakeServable:
        if spec.label is not None and spec.label not in self.labels:
            raise ServingError(
                Code.INVALID_ARGUMENT, f"Unrecognized servable version label: {spec.label}"
            )
        version = spec.version if spec.label is None else self.labels[spec.label]
        for servable in self.versions.get(spec.name, ()):
            if version in (None, servable.version):
                return servable
        raise ServingError(Code.NOT_FOUND, f"Servable not found for request: {spec.name}")


def make_models() -> FakeModels:
    """Return two versions of one model, a model with several inputs, and one with an odd name."""
    return FakeModels(
        {
            "half": [FakeServable("half", 7, FLOATS), FakeServable("half", 3, FLOATS)],
            "several": [FakeServable("several", 1, SEVERAL)],
            "name!#$%&'()*+,/:;=?@[]": [FakeServable("odd", 1, FLOATS)],
        },
        {"stable": 3, "label!#$%&'()*+,/:;=?@[]": 7},
    )


@dataclass
class Answer:
    """Answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        (text,) = self.document.values()
        assert list(self.document) == ["error"]
        return str(text)


@dataclass
class RestServer:
    """A running application."""

    runner: web.AppRunner
    counters: Counters
    port: int

    @property
    def num_connections(self) -> int:
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(
                method, path, body.encode() if isinstance(body, str) else body, dict(headers)
            )
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, document: object) -> Answer:
        return self.ask("POST", path, json.dumps(document))

    def post_gzip(self, path: str, body: bytes) -> Answer:
        return self.ask("POST", path, gzip.compress(body), {"Content-Encoding": "gzip"})

    def count(self, line: str) -> float:
        """Return the value of a series of the metrics, 0 if there is none."""
        for series in self.counters.write_page().decode().splitlines():
            name, _, value = series.rpartition(" ")
            if name == line:
                return float(value)
        return 0


@contextmanager
def serve(
    models: FakeModels,
    limits: RestLimits | None = None,
    connections: ConnectionLimit | None = None,
    **settings: Any,
) -> Iterator[RestServer]:
    """Run a server of `models`; `settings` are fields of Settings."""
    connections = connections or ConnectionLimit(1000, 0)
    ready = threading.Event()
    running: list[RestServer] = []
    names = list(models.versions)
    counters = Counters(make_memory(names, 1), names, 1)
    stop: list[Any] = []

    async def run() -> None:
        application = make_application(
            models, ServerSettings(sources=(), **settings), counters, limits=limits
        )
        runner = make_runner(application, count_malformed=counters.count_malformed)
        await runner.setup()
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        server = await loop.create_server(connections.wrap(runner.server), "127.0.0.1", 0)
        running.append(RestServer(runner, counters, server.sockets[0].getsockname()[1]))
        end = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(end.set))
        ready.set()
        await end.wait()
        server.close()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield running[0]
    finally:
        stop[0]()
        thread.join(SECONDS)
        assert not thread.is_alive()


def write_request(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return POST + b"Content-Length: %d\r\n\r\n%s" % (size, body)


def open_connection(server: RestServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)


def read_status(connection: socket.socket) -> int:
    return int(read_until(connection, b"\r\n").split()[1])


def read_until(connection: socket.socket, end: bytes) -> bytes:
    text = b""
    while end not in text:
        part = connection.recv(1 << 16)
        assert part, f"closed after {text[-200:]!r}"
        text += part
    return text


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; return whether it comes true."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
