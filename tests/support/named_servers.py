"""Servers on addresses of this machine's loopback that one DNS name stands for, as a Service of Kubernetes
has pods: for proxies that are to find them. They answer with their address, over HTTP and gRPC, and take no
model for anything else.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import grpc

NAME = "triton"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
_HEADER_BYTES, _LONGEST_MESSAGE = 12, 4096
_TYPE_A, _CLASS_IN, _SECONDS = 1, 1, 1
_NO_ERROR, _NO_SUCH_NAME = 0x8180, 0x8183


class NameServer:
    """DNS on a UDP port of 127.0.0.1, as a context manager: NAME has `addresses`, which may change, and
    nothing else is a name."""

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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(_LONGEST_MESSAGE)
            if not question:
                return
            self._socket.sendto(self._answer(question), client)

    def _answer(self, message: bytes) -> bytes:
        # id, flags and four counts; the name in labels, each behind its length, and 0; type and class
        end = message.index(0, _HEADER_BYTES) + 1
        name, question = message[_HEADER_BYTES:end], message[_HEADER_BYTES : end + 4]
        known = name.lower() == bytes([len(NAME)]) + NAME.encode() + b"\0"
        wanted = struct.unpack("!H", message[end : end + 2])[0] == _TYPE_A
        addresses = list(self.addresses) if known and wanted else []
        flags = _NO_ERROR if known else _NO_SUCH_NAME
        answer = message[:2] + struct.pack("!5H", flags, 1, len(addresses), 0, 0) + question
        for address in addresses:
            answer += struct.pack("!HHHIH", 0xC000 | _HEADER_BYTES, _TYPE_A, _CLASS_IN, _SECONDS, 4)
            answer += socket.inet_aton(address)
        return answer


class EchoServer:
    """A server and its health port, as a context manager. `asked` has the HTTP paths that came to it."""

    def __init__(self, address: str, http_port: int, grpc_port: int, health_port: int) -> None:
        self.address, self.http_port, self.grpc_port, self.health_port = (
            address,
            http_port,
            grpc_port,
            health_port,
        )
        self.is_ready = True
        self.asked: list[str] = []
        self._http = _listen(address, http_port, self._answer)
        self._health = _listen(address, health_port, lambda _: (200 if self.is_ready else 503, b""))
        self._grpc = grpc.server(ThreadPoolExecutor(8), handlers=[_Calls(address.encode())])
        assert self._grpc.add_insecure_port(f"{address}:{grpc_port}") == grpc_port

    def __enter__(self) -> EchoServer:
        self._grpc.start()
        for server in (self._http, self._health):
            threading.Thread(target=server.serve_forever, args=[0.1], daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self._http, self._health):
            server.shutdown()
            server.server_close()
        self._grpc.stop(None).wait()

    def _answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        return 200, self.address.encode()


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, handler_call_details: Any) -> Any:
        """Every method is one that answers."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answer)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A proxy that hangs up is nothing to tell of."""


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
