"""Lines for a reader that hangs: nobody waits for it, and it learns how many lines it has missed."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import subprocess
import sys
import threading

import pytest
from waiting import PATIENCE_SECONDS, wait_until

from popef._tools.line_queue import LineQueue, QueueHandler, write_line


class Pipe:
    """A pipe of 4 KiB with a stream for its writer, which blocks when it is full."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.stream = os.fdopen(writer, "w")

    def read_lines(self, number: int) -> list[str]:
        data = b""
        while data.count(b"\n") < number:
            data += os.read(self.reader, 1 << 16)
        return data.decode().splitlines()


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)


def describe(number: int) -> str:
    return f"{number} lost"


def add_in_time(queue: LineQueue, lines) -> None:
    """Add lines in a thread, which must not wait."""
    thread = threading.Thread(target=lambda: [queue.add(line) for line in lines], daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_hung_reader_blocks_no_writer_and_is_told_how_many_lines_it_missed(pipe):
    queue = LineQueue(describe, lambda: pipe.stream, max_lines=100)
    lines = [f"{number:099}" for number in range(1000)]
    add_in_time(queue, lines)
    assert not queue.flush(0.1)
    read = []
    while not read or not read[-1].endswith("lost"):
        read += pipe.read_lines(1)
    num_lost = int(read[-1].split()[0])
    assert read[:-1] == lines[:-num_lost]  # in order, and complete up to the first lost one
    assert 1000 - num_lost >= 100
    assert queue.flush(30)
    queue.add("next")
    assert pipe.read_lines(1) == ["next"]


def test_the_characters_that_wait_are_bounded_too(pipe):
    queue = LineQueue(describe, lambda: pipe.stream, max_bytes=1000)
    os.write(pipe.stream.fileno(), b"x" * 4096)  # the pipe is full
    add_in_time(queue, ["x" * 300] * 100)
    assert 0 < queue._num_bytes <= 1000
    assert queue._num_dropped >= 96


def test_all_lines_are_written_before_a_flush_ends():
    stream = io.StringIO()
    queue = LineQueue(describe, lambda: stream)
    for number in range(500):
        queue.add(str(number))
    assert queue.flush(30)
    assert stream.getvalue().split() == [str(number) for number in range(500)]


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("closed")])
def test_a_stream_that_fails_does_not_end_the_thread(error):
    class Broken(io.StringIO):
        fails = True

        def write(self, text):
            if self.fails:
                raise error
            return super().write(text)

    stream = Broken()
    queue = LineQueue(describe, lambda: stream)
    queue.add("a")
    assert queue.flush(30)
    stream.fails = False
    queue.add("b")
    assert queue.flush(30)
    assert stream.getvalue() == "b\n"


def test_without_a_thread_the_lines_are_written_at_once(monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    stream = io.StringIO()
    LineQueue(describe, lambda: stream).add("a")
    assert stream.getvalue() == "a\n"
    write_line(None, "a")


def test_a_forked_child_has_a_queue_of_its_own(capfd):
    handler = QueueHandler(logging.Formatter("%(message)s"), describe)
    record = logging.LogRecord("x", logging.WARNING, "", 1, "hello", None, None)
    handler.emit(record)
    handler.flush()
    if not (pid := os.fork()):
        handler.emit(record)
        handler.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    assert capfd.readouterr().err == "hello\nhello\n"


PROGRAM = """
import sys
from popef._tools.line_queue import LineQueue, discard_blocked
queue = LineQueue(lambda number: f"{number} lost")
for number in range(20000):
    queue.add("x" * 99)
queue.flush(0.1)
discard_blocked(0.1)
print("last", file=sys.stderr)
sys.exit(3)
"""


def test_a_process_ends_although_its_last_lines_are_not_read():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE) as process:
        wait_until(lambda: process.poll() is not None, "the process ends")
        assert process.returncode == 3
