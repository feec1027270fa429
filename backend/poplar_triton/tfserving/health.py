"""Health of a server by grpc.health.v1: queried once (Check), or sent at each change (Watch).

A watch uses a thread only while a status is sent to it, so thousands of clients may watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from popef._tools.text import escape
from poplar_triton.tfserving.check import MAX_NAME
from poplar_triton.tfserving.errors import Code, ServingError
from poplar_triton.tfserving.unfinished import Unfinished, UnfinishedCalls, find_address

_NAMES = ("PredictionService", "ModelService")
SERVICES = frozenset(("", *_NAMES, *(f"tensorflow.serving.{name}" for name in _NAMES)))
"""Services that clients may query: the server, and its services. The short names are
tensorflow_model_server's."""
MAX_WATCHES = 4096
"""Maximum number of watches; see Unfinished for which one ends above it."""


class HealthStatus(IntEnum):
    """Values of grpc.health.v1.HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


Send = Callable[["HealthStatus | None"], None]
"""Function that sends a status to a client that watches; None ends its call."""


@dataclass(slots=True, eq=False)
class _Watch:
    service: str
    context: Any
    send: Send
    told: HealthStatus | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Health:
    """Health of one server over gRPC. Threads may use it at the same time."""

    def __init__(self, unfinished: UnfinishedCalls, max_watches: int = MAX_WATCHES) -> None:
        self._unfinished = unfinished
        self._lock = threading.Lock()
        self._watches: Unfinished[_Watch] = Unfinished(max_watches)
        self._is_serving = self._is_closed = False

    def set_serving(self, is_serving: bool) -> None:
        """Set whether the server serves, and notify the clients that watch. It waits for none of
        them."""
        with self._lock:
            self._is_serving = is_serving
            watches = list(self._watches)
        for watch in watches:
            self._unfinished.threads.submit(self._tell, watch)

    def check(self, service: str) -> HealthStatus:
        """Return whether a service is served. Raises ServingError, NOT_FOUND, for an unknown
        service."""
        status = self._find_status(service)
        if status is HealthStatus.SERVICE_UNKNOWN:
            raise ServingError(
                Code.NOT_FOUND,
                f"service {escape(service, MAX_NAME)!r} is not known; expected one of "
                f"{sorted(SERVICES)}",
            )
        return status

    def watch(self, service: str, context: Any, send: Send) -> None:
        """Send the status to a client now, and at each change until it leaves. The protocol says
        that an unknown service may become known, so its client stays."""
        watch = _Watch(service, context, send)
        address = find_address(context)
        with self._lock:
            shed = self._watches.add(address, watch)

        def leave() -> None:
            with self._lock:
                self._watches.remove(address, watch)

        if shed is not None:
            shed.context.cancel()
        if not context.add_callback(leave):
            leave()  # the client has already gone
        self._tell(watch)
        if self._is_closed:
            send(None)

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            self._is_closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.send(None)

    def _find_status(self, service: str) -> HealthStatus:
        if service not in SERVICES:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus.SERVING if self._is_serving else HealthStatus.NOT_SERVING

    def _tell(self, watch: _Watch) -> None:
        """Send the current status, unless the client has it."""
        with watch.lock:
            status = self._find_status(watch.service)
            if status is not watch.told:
                watch.told = status
                with self._unfinished.waiting(watch.context):  # the client may not read
                    watch.send(status)
