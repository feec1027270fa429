"""Who listens on a port of this machine, as /proc tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from simipu.progress import PROC

_LOCAL, _STATE, _INODE = 1, 3, 9
"""Places among the words of a line of /proc/net/tcp (proc_net_tcp)."""
_LISTENS = "0A"


def describe_listener(port: int, proc: Path = PROC) -> str:
    """ "process 7 (tritonserver)" for the process that listens on a port; "" where none is seen, such as one
    of another user."""
    sockets = {f"socket:[{inode}]" for inode in _iter_inodes(port, proc)}
    for entry in proc.iterdir() if sockets else ():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            if any(os.readlink(file) in sockets for file in (entry / "fd").iterdir()):
                return f"process {entry.name} ({(entry / 'comm').read_text(errors='replace').strip()})"
    return ""


def _iter_inodes(port: int, proc: Path) -> Iterator[str]:
    """The sockets that listen on a port, at any address."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[_STATE] == _LISTENS and int(words[_LOCAL].rpartition(":")[2], 16) == port:
                    yield words[_INODE]
