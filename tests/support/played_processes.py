"""Fake processes of a server: each reports and does what its test has planned, and none is
started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from poplar_triton.tfserving.worker import WorkerReport

from popef._tools.channel import Channel, open_channel

FIRST_PID = 7
Plan = Callable[["PlayedProcess", Channel], None]


class PlayedProcess:
    """Fake of a child process. `plan` is its action on start; a `deaf` one ignores requests to
    end."""

    def __init__(self, plan: Plan, descriptor: int, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.deaf = False
        self.killed = False
        # A separate end, as a process has: the code that starts it closes the other.
        self._channel = open_channel(os.dup(descriptor))
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """Execute the plan."""
        plan(self, self._channel)

    def has_ended(self) -> bool:
        return self.status is not None

    def send_signal(self, number: int) -> None:
        assert number == signal.SIGTERM
        if not self.deaf:
            self.end(0)

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    def wait(self, seconds: float) -> bool:
        return self.has_ended()

    def reap(self) -> int:
        assert self.status is not None
        return self.status

    def end(self, status: int) -> None:
        """End the process, unless it has ended already."""
        if self.status is None:
            self.status = status
            self._channel.close()


class PlayedStarts:
    """A fake of `start_python` whose processes follow `plans`, the last of them for all that come
    after."""

    def __init__(self, *plans: Plan) -> None:
        self.begun: list[PlayedProcess] = []
        self._plans = list(plans)

    def start_python(self, code: str, descriptors: Sequence[int]) -> PlayedProcess:
        plan = self._plans.pop(0) if len(self._plans) > 1 else self._plans[0]
        self.begun.append(PlayedProcess(plan, descriptors[0], FIRST_PID + len(self.begun)))
        return self.begun[-1]


def serve(_: PlayedProcess, channel: Channel) -> None:
    """Play a process that serves all models."""
    channel.send_object(WorkerReport())


def say(*problems: str, error: str = "", status: int | None = None) -> Plan:
    """Return a plan that reports this, and ends with the status, if any."""

    def act(process: PlayedProcess, channel: Channel) -> None:
        channel.send_object(WorkerReport(error, problems))
        if status is not None:
            process.end(status)

    return act


def end(status: int) -> Plan:
    """Return a plan that ends without a report."""
    return lambda process, _: process.end(status)


def be_deaf(process: PlayedProcess, channel: Channel) -> None:
    """Play a process that serves, and ignores requests to end."""
    process.deaf = True
    serve(process, channel)


def be_silent(_: PlayedProcess, __: Channel) -> None:
    """Play a process that neither serves nor ends."""
