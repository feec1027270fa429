"""Frames between a process and its child process, over a pair of sockets: 8 bytes with the length,
little-endian, then that many bytes; and a child process that answers requests in such frames.

The receiver bounds the length, and decides how long a frame may pause. What the bytes mean is the
caller's business.
"""

from __future__ import annotations

import array
import fcntl
import math
import pickle
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .child import ChildProcess, follow_parent, start_python
from .stalls import LOOK_SECONDS, StallDetector

Wait = Callable[[int], None]
"""Function that waits for an event of poll(2), or raises an error."""
LOST = (EOFError, ConnectionError)
"""Errors of a channel whose other side is gone, or sends no valid frame."""
MAX_FRAME_BYTES = 1 << 48
"""More than any memory: the limit of a frame whose sender is trusted."""
_PIECE_BYTES = 1 << 18
"""Bytes that one call reads, about as many as the system buffers."""
_LENGTH = struct.Struct("<Q")


class ChannelError(ConnectionError):
    """The other side sent no valid frame."""


class Channel:
    """One end of a pair of sockets. One thread at a time may send, and one receive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._polls: dict[int, select.poll] = {}
        """Object that waits for an event, by event."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self._polls.clear()
        self._connection.close()

    def is_ready(self, event: int, seconds: float | None) -> bool:
        """Return whether select.POLLIN or POLLOUT would not wait, after waiting at most that long
        (None: without limit)."""
        poll = self._polls.get(event)
        if poll is None:
            poll = self._polls[event] = select.poll()
            poll.register(self._connection, event)
        return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))

    @property
    def has_unread(self) -> bool:
        """Whether the other side has not yet read all that was sent to it. False once it is closed,
        or if the system does not know."""
        unread = array.array("i", [0])
        with suppress(OSError):
            fcntl.ioctl(self._connection, termios.TIOCOUTQ, unread)
        return unread[0] > 0

    def send(self, *parts: bytes | bytearray | memoryview, wait: Wait | None = None) -> None:
        """Send one frame made of `parts`. `wait` is called while the other side does not read."""
        pieces = [piece for piece in (memoryview(part).cast("B") for part in parts) if piece]
        # The length goes with the first bytes: the other side wakes up once.
        pieces.insert(0, memoryview(_LENGTH.pack(sum(map(len, pieces)))))
        while pieces:
            try:
                sent = self._connection.sendmsg(pieces)
            except BlockingIOError:
                (wait or self._wait)(select.POLLOUT)
                continue
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if sent:
                pieces[0] = pieces[0][sent:]

    def receive(self, max_bytes: int, wait: Wait | None = None) -> bytearray:
        """Return the next frame. `wait` is called while it is incomplete.

        Raises EOFError at the end of the channel, and ChannelError for a frame that is too long or
        that ends early.
        """
        wait = wait or self._wait
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, wait, is_start=True))
        if length > max_bytes:
            raise ChannelError(f"expected a frame of at most {max_bytes} bytes, found {length}")
        return self._read(length, wait)

    def send_object(self, value: object) -> None:
        """Send an object as one frame, for `receive_object`."""
        self.send(encode_object(value))

    def receive_object(self) -> Any:
        """Return the object of the next frame, whose sender must be trusted."""
        return pickle.loads(self.receive(MAX_FRAME_BYTES))  # noqa: S301  of a trusted sender

    def _read(self, length: int, wait: Wait, *, is_start: bool = False) -> bytearray:
        # The frame grows with the bytes that arrive: a length alone costs no memory.
        frame = bytearray()
        while len(frame) < length:
            try:
                received = self._connection.recv(min(length - len(frame), _PIECE_BYTES))
            except BlockingIOError:
                wait(select.POLLIN)
                continue
            if not received:
                if is_start and not frame:
                    raise EOFError
                raise ChannelError(f"expected a frame of {length} bytes, found {len(frame)}")
            frame += received
        return frame

    def _wait(self, event: int) -> None:
        self.is_ready(event, None)


def encode_object(value: object) -> bytes:
    """Return the frame of an object, for `receive_object`."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def make_channel() -> tuple[Channel, socket.socket]:
    """Return a channel whose waits can be limited, and the other end, for the child process."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return Channel(ours), theirs


def open_channel(descriptor: int) -> Channel:
    """Return the child's end of a channel, which it has inherited; it waits without limit."""
    return Channel(socket.socket(fileno=descriptor))


Part = bytes | bytearray | memoryview
_END_SECONDS = 0.1
"""Time that a child process which has closed its end has to exit, so that its own exit status is
known."""


class StalledError(ConnectionError):
    """The child process is alive but makes no progress."""


class AnsweringChild:
    """A child process that answers requests. One thread at a time may ask; any thread may kill."""

    def __init__(self, code: str, *arguments: str, pause_seconds: float = math.inf) -> None:
        """Start `code`, formatted with the descriptor of the child's end, which must call
        `answer_requests`.

        `pause_seconds` is the maximum pause in the middle of a request or an answer, for a child
        process that is expected to continue at once; its whole request and its whole answer take at
        most `limit_seconds` more. One without this limit may pause as long as it makes progress.
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
        seconds = limit_seconds + self._pause_seconds
        wait = partial(self._wait, "read nothing", time.monotonic() + seconds)
        for parts in requests:
            self.channel.send(*parts, wait=wait)
        self._watch(select.POLLIN, limit_seconds)
        # A child process that sends a byte now and then must not hold its parent for ever.
        wait = partial(self._wait, "sent an incomplete response", time.monotonic() + seconds)
        return self.channel.receive(max_bytes, wait)

    def end(self) -> int:
        """End the child process, and return its exit status."""
        self.channel.close()
        return self.process.end(_END_SECONDS)

    def _watch(self, event: int, limit_seconds: float) -> None:
        end = time.monotonic() + limit_seconds
        watch = StallDetector()
        while not self.channel.is_ready(event, min(LOOK_SECONDS, end - time.monotonic())):
            if time.monotonic() >= end:
                raise TimeoutError
            for why in watch.find_stalled([self.process.pid]).values():
                raise StalledError(f"made no progress ({why}) and was ended")

    def _wait(self, what: str, end: float, event: int) -> None:
        if math.isinf(self._pause_seconds):
            self._watch(event, math.inf)
        elif not self.channel.is_ready(event, self._pause_seconds):
            raise StalledError(f"{what} for {self._pause_seconds:g} s and was ended")
        elif time.monotonic() > end:
            raise StalledError("took too long to read a request or to answer and was ended")


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
