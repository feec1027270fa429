"""TCP sockets of this machine, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from .stalls import PROC

LISTENS, IS_CONNECTED = "0A", "01"
"""States of a socket in /proc/net/tcp."""
_LOCAL, _STATE, _INODE = 1, 3, 9
"""Indices among the words of a line of /proc/net/tcp (proc_net_tcp)."""


def iter_inodes(
    state: str, ports: Collection[int] | None = None, proc: Path = PROC
) -> Iterator[str]:
    """Yield the sockets in a state, at any address, of these ports or of all."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                port = int(words[_LOCAL].rpartition(":")[2], 16)
                if words[_STATE] == state and (ports is None or port in ports):
                    yield words[_INODE]


def find_owned(pid: int | str, inodes: Collection[str], proc: Path = PROC) -> bool:
    """Return whether a process has one of these sockets open. A process of another user shows
    none."""
    sockets = {f"socket:[{inode}]" for inode in inodes}
    with suppress(OSError):
        for file in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if os.readlink(file) in sockets:
                    return True
    return False
