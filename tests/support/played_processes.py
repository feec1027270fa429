"""Fake processes of a server: each reports and does what its test has planned, and none is
started."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from poplar_triton.tfserving.worker import Report

FIRST_PID = 7
Plan = Callable[["PlayedProcess", Connection], None]


class PlayedProcess:
    """Fake of multiprocessing's process. `plan` is its action on start; a `deaf` one ignores
    requests to end."""

    def __init__(self, plan: Plan, connection: Connection, pid: int) -> None:
        self.pid = pid
        self.exitcode: int | None = None
        self.deaf = False
        self.asked = self.killed = False
        self._plan = plan
        # A separate end, as a process has: the code that starts it closes the other.
        self._connection = Connection(os.dup(connection.fileno()), readable=False)

    def start(self) -> None:
        self.follow(self._plan)

    def follow(self, plan: Plan) -> None:
        """Execute the plan."""
        plan(self, self._connection)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def terminate(self) -> None:
        self.asked = True
        if not self.deaf:
            self.end(0)

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    def join(self, seconds: float | None = None) -> None:
        assert self.exitcode is not None or seconds is not None

    def end(self, status: int) -> None:
        """End the process, unless it has ended already."""
        if self.exitcode is None:
            self.exitcode = status
            self._connection.close()


class PlayedContext:
    """A context of multiprocessing whose processes follow `plans`, the last of them for all that come
    after."""

    def __init__(self, *plans: Plan) -> None:
        self.begun: list[PlayedProcess] = []
        self._plans = list(plans)

    def RawArray(self, kind: str, size: int) -> Any:
        return multiprocessing.get_context("spawn").RawArray(kind, size)

    def Pipe(self, duplex: bool) -> tuple[Connection, Connection]:
        return multiprocessing.Pipe(duplex)

    def Process(self, target: Any, args: tuple[Any, ...], name: str) -> PlayedProcess:
        plan = self._plans.pop(0) if len(self._plans) > 1 else self._plans[0]
        self.begun.append(PlayedProcess(plan, args[-1], FIRST_PID + len(self.begun)))
        return self.begun[-1]


def serve(_: PlayedProcess, connection: Connection) -> None:
    """Play a process that serves all models."""
    connection.send(Report())


def say(*problems: str, error: str = "", status: int | None = None) -> Plan:
    """Return a plan that reports this, and ends with the status, if any."""

    def act(process: PlayedProcess, connection: Connection) -> None:
        connection.send(Report(error, problems))
        if status is not None:
            process.end(status)

    return act


def end(status: int) -> Plan:
    """Return a plan that ends without a report."""
    return lambda process, _: process.end(status)


def be_deaf(process: PlayedProcess, connection: Connection) -> None:
    """Play a process that serves, and ignores requests to end."""
    process.deaf = True
    serve(process, connection)


def be_silent(_: PlayedProcess, __: Connection) -> None:
    """Play a process that neither serves nor ends."""
