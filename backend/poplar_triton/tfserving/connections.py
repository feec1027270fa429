"""Limits of connections: of one client address over REST, and of all over either protocol.

A process may have only so many open files. Connections beyond that would block both protocols, and
the files of models too. gRPC's own server has a limit of all connections and none per address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import Counter
from collections.abc import Callable

_MAX_FILES = 1 << 16
"""Sufficient limit of open files; some systems allow a thousand million."""
_GRPC_SHARE, _REST_SHARE = 2, 4
"""Divisors of the number of files: half of them are for connections over gRPC, a quarter for those
over REST."""


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the maximum, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def max_grpc_connections(files: int) -> int:
    """Return the limit of connections over gRPC of a process that may open `files` files."""
    return max(1, files // _GRPC_SHARE)


def max_rest_connections(files: int) -> int:
    """Return the limit of connections over REST of such a process."""
    return max(1, files // _REST_SHARE)


class ConnectionLimit:
    """Counts the connections of a server. With `per_address` 0 one address may have all of them.
    Connections from this machine, which may be a proxy's, count for `total` only."""

    def __init__(self, total: int, per_address: int) -> None:
        self._max_total, self._max_per_address = total, per_address
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def wrap(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a protocol factory like `make` whose connections beyond the limit are closed."""
        return lambda: _Counted(make, self)

    def enter(self, address: str) -> bool:
        """Count a connection and return True. If there are too many, return False without counting
        it."""
        if self._total >= self._max_total:
            return False
        if 0 < self._max_per_address <= self._by_address[address] and not is_loopback(address):
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Subtract a counted connection that has ended."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def is_loopback(address: str) -> bool:
    """Return whether an address belongs to this machine."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


class _Counted(asyncio.Protocol):
    """Connection that is counted. Its protocol does everything else, and a refused connection has
    none."""

    def __init__(self, make: Callable[[], asyncio.Protocol], limit: ConnectionLimit) -> None:
        self._make, self._limit = make, limit
        self._inner: asyncio.Protocol | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        if not self._limit.enter(self._address):
            transport.close()
            return
        self._inner = self._make()
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is not None:
            self._limit.leave(self._address)
            self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
