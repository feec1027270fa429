"""Child processes of poplar_serving at the other end of a socket, as the operators start them."""

from __future__ import annotations

import multiprocessing
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import socket, socketpair

from poplar_serving import child
from poplar_serving.child import FrameKind, read_into

HEADER = struct.Struct("<IIQQ")
SECONDS = 60
_FORKS = multiprocessing.get_context("forkserver")
# Each fork imports the main program of the tests, too.
_FORKS.set_forkserver_preload(["pytest", "poplar_serving.child"])


class Asked:
    """A child process, asked through the operators' end of its connection."""

    def __init__(self) -> None:
        self.connection, theirs = socketpair()
        self.connection.settimeout(SECONDS)
        with theirs:
            self._start(theirs)

    def _start(self, theirs: socket) -> None:
        raise NotImplementedError

    def send(self, frame: Sequence[memoryview]) -> None:
        child.send(self.connection, frame)

    def start(self, path: object, timeout_us: int = 5000) -> tuple[FrameKind, int, int, bytes]:
        self.send(child.encode_start(str(path), timeout_us))
        return self.receive()

    def receive(self) -> tuple[FrameKind, int, int, bytes]:
        header = bytearray(HEADER.size)
        read_into(self.connection, memoryview(header))
        kind, code, call, size = HEADER.unpack(header)
        body = bytearray(size)
        read_into(self.connection, memoryview(body))
        return FrameKind(kind), code, call, bytes(body)


class AskedFork(Asked):
    """A fork of a process that has imported everything: that takes an interpreter a second."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        super().__init__()

    def _start(self, theirs: socket) -> None:
        self.process = _FORKS.Process(target=_run, args=[theirs, str(self._errors)])
        self.process.start()

    def end(self) -> tuple[int | None, str]:
        """Close the connection, and return the child's status and what it wrote to stderr."""
        self.connection.close()
        self.process.join(SECONDS)
        return self.process.exitcode, self._errors.read_text()


def _run(connection: socket, errors: str) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    child.main(connection.detach())


class AskedInterpreter(Asked):
    """An interpreter of its own, as in production."""

    def _start(self, theirs: socket) -> None:
        code = f"from poplar_serving.child import main; main({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int | None, str]:
        """Close the connection, and return the child's status and what it wrote to stderr."""
        self.connection.close()
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said
