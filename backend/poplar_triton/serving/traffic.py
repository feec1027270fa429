"""Check whether clients still send requests to a tritonserver that is about to stop.

Open gRPC streams stay on their connection, whatever /ready says. A stopping Triton refuses requests
on them.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from popef._tools.progress import PROC
from poplar_triton.serving.listeners import count_connections

QUIET_SECONDS = 2.0
"""Time without a request after which no client sends any."""
ASK_SECONDS = 1.0
_MAX_BYTES = 16 << 20
_REQUESTS = re.compile(r"^nv_inference_request_(?:success|failure)(?:\{.*\})? (\d+)", re.MULTILINE)
_WAITING = re.compile(r"^nv_inference_pending_request_count(?:\{.*\})? [1-9]", re.MULTILINE)


class TrafficWatch:
    """Watches the connections to a server's `ports`, and the requests that its metrics page
    counts."""

    def __init__(
        self, ports: Iterable[int], metrics_url: str, clock: Callable[[], float], proc: Path = PROC
    ) -> None:
        self._ports = frozenset(ports)
        self._url = metrics_url
        self._clock = clock
        self._proc = proc
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._num_requests = -1
        self._changed_at = clock()

    def is_busy(self) -> bool:
        """Return whether a client is connected and requests have arrived lately. If the server has
        no metrics page, a connection is enough."""
        if not count_connections(self._ports, self._proc):
            return False
        page = self._read_page()
        if page is None:
            return True
        count = sum(map(int, _REQUESTS.findall(page)))
        if count != self._num_requests or _WAITING.search(page):
            self._num_requests, self._changed_at = count, self._clock()
        return self._clock() < self._changed_at + QUIET_SECONDS

    def _read_page(self) -> str | None:
        with suppress(OSError), self._opener.open(self._url, timeout=ASK_SECONDS) as answer:
            return str(answer.read(_MAX_BYTES).decode(errors="replace"))
        return None
