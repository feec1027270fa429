"""Many concurrent requests to a proxy, and their outcomes; and a port that may stop answering.

Servers behind the proxy are those of `named_servers`: no model is involved.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType

import grpc
from fleet.clients import Way
from named_servers import METHOD, EchoServer
from server_processes import HOST

PATH = "/v2/models/m/infer"
CLIENT_SECONDS = 20
CHANNELS = 4
"""HAProxy takes 100 calls at once of each."""
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Asked:
    """Outcome of a request: 200 or OK, or an error's status; "" without an answer."""

    status: str
    seconds: float


def ask(way: Way, path: str = PATH) -> Asked:
    """Send one request; the path counts over HTTP only."""
    return ask_all(way, 1, 1, path)[0]


def ask_all(way: Way, count: int, at_once: int, path: str = PATH) -> list[Asked]:
    """Send so many requests, of which some are under way at once: over HTTP each over a connection
    of its own, over gRPC over a few."""
    with ThreadPoolExecutor(at_once) as pool, ExitStack() as connected:
        channels = [connected.enter_context(_connect(way)) for _ in range(CHANNELS)]

        def send(number: int) -> Asked:
            start = time.monotonic()
            if way.protocol == "http":
                status = _ask_http(way, path)
            else:
                status = _ask_grpc(channels[number % CHANNELS])
            return Asked(status, time.monotonic() - start)

        return list(pool.map(send, range(count)))


def count_statuses(answers: Sequence[Asked]) -> Counter[str]:
    """Return the number of answers with each status; success is OK over HTTP too."""
    return Counter("OK" if answer.status == "200" else answer.status for answer in answers)


def count_asked(servers: Sequence[EchoServer], way: Way) -> int:
    """Return the number of requests of a protocol that have reached the servers."""
    return sum(
        len(server.asked) if way.protocol == "http" else server.num_calls for server in servers
    )


def _connect(way: Way) -> grpc.Channel:
    """Return a channel, which connects on the first call."""
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"{HOST}:{way.port}", options)


def _ask_http(way: Way, path: str) -> str:
    connection = http.client.HTTPConnection(HOST, way.port, timeout=CLIENT_SECONDS)
    try:
        connection.request("POST", path, b"x")
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _ask_grpc(channel: grpc.Channel) -> str:
    try:
        channel.unary_unary(METHOD)(b"x", timeout=CLIENT_SECONDS)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


class Forwarder:
    """Passes the connections of one port on to another, as a context manager; while `is_silent` it
    takes connections and bytes and passes nothing, as a server that hangs does."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.is_silent = False
        self._target = target
        self._listener = socket.create_server((HOST, port), backlog=256)
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Forwarder:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(CLIENT_SECONDS)
        self._open.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target))
                for source, sink in ((client, server), (server, client)):
                    self._open.callback(_end, source)
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if not self.is_silent:
                    sink.sendall(chunk)
        _end(sink)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
