"""Listeners on ports of this machine and connections to them, read from /proc, and whether clients
still send requests to a tritonserver that is about to stop.

Open gRPC streams stay on their connection, whatever /ready says. A stopping Triton refuses requests
on them.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from popef._tools.sockets import IS_CONNECTED, LISTENS, find_owned, iter_inodes
from popef._tools.stalls import PROC


def describe_listener(port: int, proc: Path = PROC) -> str:
    """Return for instance "process 7 (tritonserver)" for the process that listens on a port. Return
    "" if none is visible, such as one of another user."""
    inodes = set(iter_inodes(LISTENS, [port], proc))
    for entry in proc.iterdir() if inodes else ():
        if entry.name.isdecimal() and find_owned(entry.name, inodes, proc):
            with suppress(OSError):  # it has ended
                program = (entry / "comm").read_text(errors="replace").strip()
                return f"process {entry.name} ({program})"
    return ""


def count_connections(ports: Collection[int], proc: Path = PROC) -> int:
    """Return the number of established connections to these ports, at any address."""
    return sum(1 for _ in iter_inodes(IS_CONNECTED, ports, proc))


QUIET_SECONDS = 2.0
"""Time without a request after which no client sends any."""
ASK_SECONDS = 1.0
_MAX_BYTES = 16 << 20
"""Maximum size of Triton's page of metrics that is read."""
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
