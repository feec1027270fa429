"""The health port: /ready, /live and /metrics of a supervised server, for load balancers, kubelets and
Prometheus.

Strangers may reach it: it takes GET and HEAD of three paths, answers once per connection, and when too many
connections are open the oldest is closed.
"""

from __future__ import annotations

import http
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol

from commands.errors import ServerError
from popef.text import escape

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_MOST_CONNECTIONS = 64
_IDLE_SECONDS = 5
_POLL_SECONDS = 0.05
"""Between two looks whether to end."""


class Reporter(Protocol):
    """Who knows how a server stands."""

    @property
    def unready_reason(self) -> str:
        """Why no requests should come; "" where they should."""

    @property
    def hopeless_reason(self) -> str:
        """Why nothing but an end of it all can help; "" where something can, or need not."""

    def write_metrics(self) -> bytes:
        """The page for Prometheus."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    timeout = _IDLE_SECONDS
    server_version = "poplar-triton"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one of the paths."""
        answer = self.server.answers.get(self.path.partition("?")[0])
        if answer is None:
            paths = ", ".join(self.server.answers)
            self._send(http.HTTPStatus.NOT_FOUND, _TEXT, f"expected one of {paths}\n".encode())
        else:
            self._send(*answer())

    def do_HEAD(self) -> None:
        """The same without the text."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Probes come every second: nothing is logged."""

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
    request_queue_size = _MOST_CONNECTIONS

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
        """In a thread of its own; at the expense of the oldest, where there are too many."""
        with self._lock:
            if len(self._open) >= _MOST_CONNECTIONS:
                _hang_up(self._open.pop(next(iter(self._open))))
            self._open[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection, and close it."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to tell of."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended by itself just now
        connection.shutdown(socket.SHUT_RDWR)


def _say(fault: str, fine: str) -> tuple[http.HTTPStatus, str, bytes]:
    status = http.HTTPStatus.SERVICE_UNAVAILABLE if fault else http.HTTPStatus.OK
    return status, _TEXT, f"{escape(fault or fine)}\n".encode()


class HealthServer:
    """Serves what a reporter says at an address and port (0: any free one), as a context manager."""

    def __init__(self, address: str, port: int, reporter: Reporter) -> None:
        self._address = address
        try:
            self._listener = _Listener(address, port, reporter)
        except (OSError, OverflowError) as error:
            raise ServerError(
                f"health port {port} of {address}: cannot listen there ({error}); choose another with "
                "--health-port or --health-address"
            ) from error
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(_POLL_SECONDS,), name="health port", daemon=True
        )

    @property
    def url(self) -> str:
        """Without a path."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{self._listener.server_address[1]}"

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()
