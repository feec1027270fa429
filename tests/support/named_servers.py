"""Servers on addresses of this machine's loopback that one DNS name stands for, as a Service of
Kubernetes has pods: for proxies that are to find them. They answer with their address, over HTTP
and gRPC, and take no model for anything else.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import grpc
from waiting import PATIENCE_SECONDS

NAME = "triton"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
HAPROXY_CHECK = "/grpc.health.v1.Health/Check"
"""Path that HAProxy requests on each port of requests, over HTTP too."""
_HEADER_BYTES, _LONGEST_MESSAGE = 12, 4096
_TYPE_A, _CLASS_IN, _SECONDS = 1, 1, 1
_NO_ERROR, _NO_SUCH_NAME = 0x8180, 0x8183
_CODES = {
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}


class NameServer:
    """DNS on a UDP port of 127.0.0.1, as a context manager: NAME has `addresses`, which may change,
    and nothing else is a name."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = list(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(PATIENCE_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(_LONGEST_MESSAGE)
            if not question:
                return
            self._socket.sendto(self._answer(question), client)

    def _answer(self, message: bytes) -> bytes:
        # id, flags and four counts; the name in labels, each behind its length, and 0; type and
        # class
        end = message.index(0, _HEADER_BYTES) + 1
        name, question = message[_HEADER_BYTES:end], message[_HEADER_BYTES : end + 4]
        is_known = name.lower() == bytes([len(NAME)]) + NAME.encode() + b"\0"
        asks_address = struct.unpack("!H", message[end : end + 2])[0] == _TYPE_A
        addresses = list(self.addresses) if is_known and asks_address else []
        flags = _NO_ERROR if is_known else _NO_SUCH_NAME
        answer = message[:2] + struct.pack("!5H", flags, 1, len(addresses), 0, 0) + question
        for address in addresses:
            answer += struct.pack("!HHHIH", 0xC000 | _HEADER_BYTES, _TYPE_A, _CLASS_IN, _SECONDS, 4)
            answer += socket.inet_aton(address)
        return answer


class EchoServer:
    """A server and its health port, as a context manager. `asked` has the HTTP paths that came to
    it, and `num_calls` counts gRPC calls.

    Answers take `seconds`, and are errors where there is a `failure`: a status of HTTP, or its like
    of gRPC. `num_most` is the most that it had at once of each protocol since it was last set.
    """

    def __init__(self, address: str, http_port: int, grpc_port: int, health_port: int) -> None:
        self.address, self.http_port, self.grpc_port, self.health_port = (
            address,
            http_port,
            grpc_port,
            health_port,
        )
        self.is_ready = True
        self.seconds = 0.0
        self.failure: HTTPStatus | None = None
        self.asked: list[str] = []
        self.num_calls = 0
        self.num_most: Counter[str] = Counter()
        self._num_now: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._http = _listen(address, http_port, self._answer)
        self._health = _listen(address, health_port, lambda _: (200 if self.is_ready else 503, b""))
        self._grpc = grpc.server(ThreadPoolExecutor(64), handlers=[_Calls(self._call)])
        assert self._grpc.add_insecure_port(f"{address}:{grpc_port}") == grpc_port

    def __enter__(self) -> EchoServer:
        self._grpc.start()
        for server in (self._http, self._health):
            threading.Thread(target=server.serve_forever, args=[0.1], daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in (self._http, self._health):
            server.shutdown()
            server.server_close()
        self._grpc.stop(None).wait()

    def _answer(self, path: str) -> tuple[int, bytes]:
        if path == HAPROXY_CHECK:
            return HTTPStatus.NOT_FOUND, b""
        self.asked.append(path)
        with self._work("http"):
            return self.failure or HTTPStatus.OK, self.address.encode()

    def _call(self, context: grpc.ServicerContext) -> bytes:
        self.num_calls += 1
        with self._work("grpc"):
            if self.failure:
                context.abort(_CODES[self.failure], "as told")
            return self.address.encode()

    @contextmanager
    def _work(self, protocol: str) -> Iterator[None]:
        with self._lock:
            self._num_now[protocol] += 1
            self.num_most[protocol] = max(self.num_most[protocol], self._num_now[protocol])
        try:
            time.sleep(self.seconds)
            yield
        finally:
            with self._lock:
                self._num_now[protocol] -= 1


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answer: Callable[[grpc.ServicerContext], bytes]) -> None:
        self._answer = answer

    def service(self, handler_call_details: Any) -> Any:
        """Return a handler that answers, for every method."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answer(context))


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because a proxy may disconnect."""


def _listen(address: str, port: int, answer: Callable[[str], tuple[int, bytes]]) -> _Listener:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    return _Listener((address, port), Handler)
