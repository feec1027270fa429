"""Ports of servers that start again and again, on the way of a test or a measurement."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_HOST = "127.0.0.1"
_PORTS = range(20000, 32000)
"""Ports below those that the kernel gives to clients, so that no client takes the port of a
restarting server."""
_untried = random.sample(_PORTS, len(_PORTS))


def choose_ports(count: int) -> list[int]:
    """Return `count` free ports that no earlier call has returned.

    Programs get their ports before any of them listens, and two proxies would share one port
    (SO_REUSEPORT) without an error.
    """
    chosen: list[int] = []
    while len(chosen) < count:
        assert _untried, f"no port of {_PORTS} is left"
        port = _untried.pop()
        with socket.socket() as probe, suppress(OSError):
            probe.bind((_HOST, port))
            chosen.append(port)
    return chosen
