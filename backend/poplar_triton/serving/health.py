"""Health port: /ready, /live and /metrics of a supervised server, for load balancers, kubelets and
Prometheus.

Untrusted clients may reach it. It accepts GET and HEAD for three paths and answers once per
connection. When too many connections are open, it closes the oldest.
"""

from __future__ import annotations

import http
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from popef._tools.text import escape
from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import bracket

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_MAX_CONNECTIONS = 64
"""Maximum number of open connections: probes of a load balancer, a kubelet and Prometheus are few,
and each connection has a thread."""
_IDLE_SECONDS = 5
"""Timeout of a connection that sends nothing."""
_POLL_SECONDS = 0.05
"""Time between two checks whether to end."""


class Reporter(Protocol):
    """Source of the answers: the state of a server."""

    @property
    def unready_reason(self) -> str:
        """Reason not to send requests; "" if the server is ready."""

    @property
    def hopeless_reason(self) -> str:
        """Reason why only ending everything helps; "" if the server can recover, or need not."""

    def write_metrics(self) -> bytes:
        """Return the page for Prometheus."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    timeout = _IDLE_SECONDS
    server_version = "poplar-triton"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request for one of the paths."""
        answer = self.server.answers.get(self.path.partition("?")[0])
        if answer is None:
            paths = ", ".join(self.server.answers)
            self._send(http.HTTPStatus.NOT_FOUND, _TEXT, f"expected one of {paths}\n".encode())
        else:
            self._send(*answer())

    def do_HEAD(self) -> None:
        """Answer like GET without the body."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes come every second."""

    def _send(self, status: http.HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, address: str, port: int, reporter: Reporter) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.answers: dict[str, Callable[[], tuple[http.HTTPStatus, str, bytes]]] = {
            "/ready": lambda: _say(reporter.unready_reason, "ready"),
            "/live": lambda: _say(reporter.hopeless_reason, "live"),
            "/metrics": lambda: (http.HTTPStatus.OK, _METRICS, reporter.write_metrics()),
        }
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}
        super().__init__((address, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Process a request in a thread of its own. With too many connections the oldest one is
        closed."""
        with self._lock:
            if len(self._open) >= _MAX_CONNECTIONS:
                _hang_up(self._open.pop(next(iter(self._open))))
            self._open[id(request)] = request
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the limit of threads is reached
            self.process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection, and close it."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, which is a client that has disconnected."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it may just have ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _say(fault: str, fine: str) -> tuple[http.HTTPStatus, str, bytes]:
    status = http.HTTPStatus.SERVICE_UNAVAILABLE if fault else http.HTTPStatus.OK
    return status, _TEXT, f"{escape(fault or fine)}\n".encode()


class HealthServer:
    """Server of a reporter's answers at an address and port (0: any free one), as a context
    manager."""

    def __init__(self, address: str, port: int, reporter: Reporter) -> None:
        self._address = address
        try:
            self._listener = _Listener(address, port, reporter)
        except (OSError, OverflowError) as error:
            raise ServerError(
                f"health port {port} of {address}: cannot listen ({error}); choose another one "
                "with --health-port or --health-address"
            ) from error
        self._thread = threading.Thread(
            target=self._listener.serve_forever,
            args=(_POLL_SECONDS,),
            name="health port",
            daemon=True,
        )

    @property
    def url(self) -> str:
        """URL of the server, without a path."""
        return f"http://{bracket(self._address)}:{self._listener.server_address[1]}"

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()
