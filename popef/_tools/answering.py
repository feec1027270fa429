"""A child process that answers requests, one at a time, each within limits of time and size."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Sequence

from .channel import LOST, Channel, make_channel, open_channel
from .child import ChildProcess, follow_parent, start_python
from .progress import LOOK_SECONDS, ProgressWatch

Part = bytes | bytearray | memoryview
_END_SECONDS = 0.1
"""Time for a child process that has closed its end to end by itself, so that its own exit status
is known."""


class StalledError(ConnectionError):
    """The child process is alive but makes no progress."""


class AnsweringChild:
    """A child process that answers requests. One thread at a time may ask; any thread may kill."""

    def __init__(self, code: str, *arguments: str, pause_seconds: float = math.inf) -> None:
        """Start `code`, formatted with the descriptor of the child's end, which must call
        `answer_requests`.

        `pause_seconds` is the maximum pause in the middle of a request or an answer, for a child
        process that is expected to continue at once. One without this limit may pause as long as it
        makes progress.
        """
        self.channel, theirs = make_channel()
        with theirs:
            number = theirs.fileno()
            self.process: ChildProcess = start_python(
                code.format(number), *arguments, descriptors=[number]
            )
        self._pause_seconds = pause_seconds

    def ask(self, *requests: Sequence[Part], limit_seconds: float, max_bytes: int) -> bytearray:
        """Send the frames of a request, and return the answer.

        Raises TimeoutError if the answer does not begin within `limit_seconds`, StalledError for a
        child process that makes no progress, and EOFError or ConnectionError for one that has
        ended or sends no valid frame. It must be ended then.
        """
        for parts in requests:
            self.channel.send(*parts, wait=self._wait_to_send)
        self._watch(select.POLLIN, limit_seconds)
        return self.channel.receive(max_bytes, self._wait_to_receive)

    def end(self) -> int:
        """End the child process, and return its exit status."""
        self.channel.close()
        return self.process.end(_END_SECONDS)

    def _watch(self, event: int, limit_seconds: float) -> None:
        end = time.monotonic() + limit_seconds
        watch = ProgressWatch()
        while not self.channel.is_ready(event, min(LOOK_SECONDS, end - time.monotonic())):
            if time.monotonic() >= end:
                raise TimeoutError
            for why in watch.find_stalled([self.process.pid]).values():
                raise StalledError(f"made no progress ({why}) and was ended")

    def _wait_to_send(self, event: int) -> None:
        self._wait(event, "read nothing")

    def _wait_to_receive(self, event: int) -> None:
        self._wait(event, "sent an incomplete response")

    def _wait(self, event: int, what: str) -> None:
        if math.isinf(self._pause_seconds):
            self._watch(event, math.inf)
        elif not self.channel.is_ready(event, self._pause_seconds):
            raise StalledError(f"{what} for {self._pause_seconds:g} s and was ended")


def answer_requests(descriptor: int, answer: Callable[[Channel], Sequence[Part]]) -> None:
    """Answer requests until the parent ends; this is the main function of the child process.

    `answer` receives the frames of one request, and returns the parts of the answer.
    """
    channel = open_channel(descriptor)
    follow_parent(descriptor)
    try:
        while True:
            channel.send(*answer(channel))
    except LOST:
        pass
