"""Listeners on ports of this machine, and the number of connections to them, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from popef._tools.progress import PROC

_LOCAL, _STATE, _INODE = 1, 3, 9
"""Indices among the words of a line of /proc/net/tcp (proc_net_tcp)."""
_LISTENS, _IS_CONNECTED = "0A", "01"


def describe_listener(port: int, proc: Path = PROC) -> str:
    """Return for instance "process 7 (tritonserver)" for the process that listens on a port. Return
    "" if none is visible, such as one of another user."""
    sockets = {f"socket:[{inode}]" for inode in _iter_inodes([port], _LISTENS, proc)}
    for entry in proc.iterdir() if sockets else ():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(os.readlink(file) in sockets for file in (entry / "fd").iterdir()):
                return (
                    f"process {entry.name} ({(entry / 'comm').read_text(errors='replace').strip()})"
                )
    return ""


def count_connections(ports: Collection[int], proc: Path = PROC) -> int:
    """Return the number of established connections to these ports, at any address."""
    return sum(1 for _ in _iter_inodes(ports, _IS_CONNECTED, proc))


def _iter_inodes(ports: Collection[int], state: str, proc: Path) -> Iterator[str]:
    """Yield the sockets of these ports that are in a state, at any address."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[_STATE] == state and int(words[_LOCAL].rpartition(":")[2], 16) in ports:
                    yield words[_INODE]
