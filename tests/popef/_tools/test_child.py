"""Tests of child processes: their start and end, and children that answer wrongly or not at all."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS, wait_until

from popef._tools import channel
from popef._tools.channel import (
    LOST,
    AnsweringChild,
    ChannelError,
    StalledError,
    make_channel,
    open_channel,
)
from popef._tools.child import (
    ChildProcess,
    die_with,
    fork_child,
    run_program,
    run_python,
    start_python,
    wait_for,
)

SECONDS = 30.0
ECHO = (
    "from popef._tools.channel import answer_requests; "
    "answer_requests({}, lambda channel: [channel.receive(1 << 30)])"
)
RAW = "import os, sys, time; os.read({0}, 1 << 20); "
"""Start of the code of a child process that reads a request and answers by bytes of its own."""


def send_raw(sent, then="time.sleep(60)"):
    """Return the code of a child process that answers with these bytes."""
    return RAW + f"os.write({{0}}, {sent!r}); {then}"


SLEEP = "import time; time.sleep(60)"
GIB = 1 << 30


@contextmanager
def child(code, **options):
    made = AnsweringChild(code, **options)
    try:
        yield made
    finally:
        made.end()
        assert not os.path.exists(f"/proc/{made.process.pid}")


def ask(made, *parts, limit_seconds=SECONDS, max_bytes=1 << 20):
    return made.ask(parts, limit_seconds=limit_seconds, max_bytes=max_bytes)


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the waits of seconds to fractions of a second."""
    monkeypatch.setattr(channel, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr("popef._tools.stalls.STALL_SECONDS", 0.1)


# Requests and answers.


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        RAW + "os.write({0}, (1 << 20).to_bytes(8, 'little'))\n"
        "while True: os.write({0}, b'x'); time.sleep(0.05)",
        "import os, time\nwhile True: os.read({0}, 4096); time.sleep(0.05)",
    ],
    ids=["sends", "reads"],
)
def test_a_child_process_that_dribbles_is_ended(code):
    """No pause is long, and it would take hours."""
    with (
        child(code, pause_seconds=SECONDS / 10) as made,
        pytest.raises(StalledError, match="took too long"),
    ):
        ask(made, bytes(1 << 26 if "4096" in code else 1), limit_seconds=0.5)


def test_answers_come_in_the_order_of_the_requests():
    with child(ECHO) as made:
        for number in range(100):
            assert ask(made, b"%d" % number, b" and more") == b"%d and more" % number


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 20 << 20])
def test_a_frame_of_any_size_arrives(size):
    body = os.urandom(size)
    with child(ECHO) as made:
        assert ask(made, memoryview(body), max_bytes=size) == body
        assert ask(made, b"next") == b"next"


def test_parts_may_hold_elements_of_several_bytes():
    with child(ECHO) as made:
        assert ask(made, memoryview(b"12345678").cast("d")) == b"12345678"


def test_an_answer_longer_than_allowed_is_refused():
    with child(ECHO) as made, pytest.raises(ChannelError, match="at most 9 bytes, found 10"):
        ask(made, bytes(10), max_bytes=9)


@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 62, GIB + 1])
def test_a_huge_length_is_refused_before_anything_is_read(length):
    refused = pytest.raises(ChannelError, match=f"at most {GIB} bytes, found {length}")
    with child(send_raw(length.to_bytes(8, "little"))) as made, refused:
        ask(made, b"x", max_bytes=GIB)


def test_a_length_alone_costs_no_memory(impatient):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stalled = pytest.raises(
        StalledError, match=r"sent an incomplete response for 0\.2 s and was ended"
    )
    with child(send_raw(GIB.to_bytes(8, "little")), pause_seconds=0.2) as made, stalled:
        ask(made, b"x", max_bytes=GIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("sent", [b"\x05", bytes(7), b"\x05" + bytes(7) + b"1234"], ids=len)
def test_a_child_that_stops_in_the_middle_of_a_frame_is_stalled(impatient, sent):
    stalled = pytest.raises(StalledError, match=r"sent an incomplete response for 0\.2 s")
    with child(send_raw(sent), pause_seconds=0.2) as made, stalled:
        ask(made, b"x")


@pytest.mark.parametrize("sent", [b"\x05", b"\x05" + bytes(7) + b"1234"], ids=len)
def test_a_child_that_ends_in_the_middle_of_a_frame_sent_none(sent):
    with child(send_raw(sent, "pass")) as made:
        with pytest.raises(ChannelError, match=f"found {max(len(sent) % 8, 1)}$"):
            ask(made, b"x")
        assert made.end() == 0


def test_garbage_is_a_frame_of_another_length():
    refused = pytest.raises(ChannelError, match="expected a frame of at most")
    with child(send_raw(b"<html>garbage</html>")) as made, refused:
        ask(made, b"x")


@pytest.mark.parametrize(
    ("death", "status"),
    [("os._exit(0)", 0), ("os._exit(7)", 7), ("os.abort()", -6), ("os.kill(os.getpid(), 9)", -9)],
)
def test_a_child_that_dies_has_its_own_status(death, status):
    with child(RAW + death) as made:
        with pytest.raises(LOST):
            ask(made, b"x")
        assert made.end() == made.end() == status


def test_a_child_that_closes_its_end_and_lives_is_killed():
    with child(RAW + "os.close({0}); time.sleep(60)") as made:
        with pytest.raises(EOFError):
            ask(made, b"x")
        assert made.end() == -signal.SIGKILL


def test_a_child_that_is_dead_before_it_is_asked_is_lost():
    with child("pass") as made:
        assert made.process.wait(SECONDS)
        with pytest.raises(LOST):
            ask(made, bytes(1 << 20))


def test_a_child_that_does_not_answer_is_given_its_time_only():
    with child(RAW + f"time.sleep({2 * PATIENCE_SECONDS})") as made:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(made, b"x", limit_seconds=0.3)
        assert 0.3 <= time.monotonic() - begun < PATIENCE_SECONDS


def test_a_stopped_child_is_stalled(impatient):
    with child(ECHO) as made:
        ask(made, b"x")
        os.kill(made.process.pid, signal.SIGSTOP)
        with pytest.raises(StalledError, match=r"made no progress \(it is stopped\)"):
            ask(made, b"x")


@pytest.mark.parametrize(
    ("pause_seconds", "told"),
    [(0.1, r"read nothing for 0\.1 s"), (float("inf"), "made no progress")],
)
def test_a_stopped_child_that_takes_no_request_is_stalled(impatient, pause_seconds, told):
    """A request larger than the socket's buffer would otherwise wait for ever."""
    with child(ECHO, pause_seconds=pause_seconds) as made:
        os.kill(made.process.pid, signal.SIGSTOP)
        with pytest.raises(StalledError, match=told):
            ask(made, bytes(8 << 20))


def test_a_child_that_is_stopped_in_the_middle_of_an_answer_is_stalled(impatient):
    stop = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with (
        child(send_raw(bytes(3), stop)) as made,
        pytest.raises(StalledError, match="made no progress"),
    ):
        ask(made, b"x")


def test_a_child_that_is_killed_while_it_is_asked_is_lost():
    with child(RAW + "time.sleep(60)") as made:
        subprocess.Popen(["/bin/sh", "-c", f"sleep 0.2; kill -9 {made.process.pid}"])
        with pytest.raises(LOST):
            ask(made, b"x")
        assert made.end() == -signal.SIGKILL


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_child_that_ignores_signals_is_ended(name):
    ignoring = f"import signal; signal.signal(signal.{name}, signal.SIG_IGN); " + ECHO
    with child(ignoring) as made:
        ask(made, b"x")
        made.process.send_signal(getattr(signal, name))
        assert ask(made, b"y") == b"y"
        assert not made.process.wait(0.1)
        assert made.end() in (0, -signal.SIGKILL)


def test_nothing_is_left_open():
    with child(ECHO):
        pass
    before = count_descriptors()
    for _ in range(3):
        with child(ECHO) as made:
            ask(made, b"x")
        start_python(SLEEP).end()
        fork_child(lambda: 0, GIB).reap()
    assert count_descriptors() == before


# Processes.


def test_the_status_is_known_once_and_to_all():
    process = start_python("import sys; sys.exit(5)")
    assert process.wait(SECONDS)
    assert (process.reap(), process.reap(), process.has_ended()) == (5, 5, True)
    process.kill()  # it is gone: another process may have its number
    assert process.usage is not None


def test_waiting_has_an_end():
    process = start_python(SLEEP)
    assert not process.wait(0.05)
    assert not process.has_ended()
    assert process.end(0.05) == -signal.SIGKILL


def test_a_forked_child_returns_what_its_work_does():
    assert fork_child(lambda: 0, GIB).reap() == 0
    assert fork_child(lambda: 3, GIB).reap() == 3
    assert fork_child(lambda: sys.exit(4), GIB).reap() == 4


def test_a_forked_child_that_raises_fails(capfd):
    assert fork_child(lambda: 1 // 0, GIB).reap() == 1


def test_a_forked_child_has_its_limit_of_memory():
    def work():
        try:
            bytearray(4 * GIB)
        except MemoryError:
            return 6
        return 0

    assert fork_child(work, GIB).reap() == 6


def test_a_forked_child_is_ended_with_what_it_started(tmp_path):
    def work():
        started = subprocess.Popen(["sleep", "60"])
        (tmp_path / "part").write_text(str(started.pid))
        (tmp_path / "part").rename(tmp_path / "pid")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(60)
        return 0

    made = fork_child(work, GIB)
    wait_until((tmp_path / "pid").exists, "the child starts")
    made.send_signal(signal.SIGINT)
    assert made.end(0.1) == -signal.SIGKILL
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())), "the child ends")


def test_the_handle_tells_the_end():
    made = fork_child(lambda: time.sleep(0.2) or 0, GIB)
    assert not wait_for([made.handle], 0)
    assert wait_for([made.handle], SECONDS)
    assert made.has_ended()
    assert made.reap() == 0


def test_code_runs_to_its_end_with_its_arguments_and_output():
    done = run_python(
        "print(sys.argv[1:])", "a", "b c", seconds=SECONDS, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "['a', 'b c']\n")


def test_code_that_takes_too_long_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(SLEEP, seconds=0.2)


def test_die_with_returns_for_a_parent_that_is_dead_already():
    assert run_python(
        f"from {die_with.__module__} import die_with; sys.exit(die_with(1))", seconds=SECONDS
    )


# The end of the parent.

PARENT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
from popef._tools.channel import AnsweringChild
from popef._tools.child import fork_child, run_python
WORK = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
def tell():
    print(os.getpid(), flush=True)
    time.sleep(600)
    return 0
def ask():
    busy = "import os; print(os.getpid(), flush=True); " + sys.argv[2]
    AnsweringChild(busy).ask([b"x"], limit_seconds=600, max_bytes=1)
def fork():
    fork_child(tell, 1 << 30).reap()
def run():
    run_python(WORK, seconds=600)
globals()[sys.argv[1]]()
"""
BUSY = (
    "from popef._tools.channel import answer_requests\n"
    "def work(channel):\n"
    "    channel.receive(9)\n"
    "    while True: pass\n"
    "answer_requests({}, work)"
)


def is_alive(pid):
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
@pytest.mark.parametrize("kind", ["fork", "run", "ask"])
def test_no_child_outlives_its_parent(kind, death):
    """Ctrl-C is ignored everywhere, as under nohup or in a script's background job."""
    command = [sys.executable, "-c", PARENT, kind, BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert is_alive(pid)
        assert parent.poll() is None
        parent.send_signal(death)
        assert parent.wait(SECONDS) == -death
    wait_until(lambda: not is_alive(pid), "the child ends")


def test_a_channel_reads_what_was_sent_before_its_end():
    ours, theirs = make_channel()
    other = open_channel(theirs.detach())
    other.send(b"last")
    other.close()
    assert ours.is_ready(select.POLLIN, 0)
    assert ours.receive(4) == b"last"
    with pytest.raises(EOFError):
        ours.receive(4)
    with pytest.raises(BrokenPipeError):
        ours.send(b"x")
    ours.close()


def test_another_process_of_that_number_is_not_killed():
    made = ChildProcess(os.getppid())
    made.kill()
    assert made.has_ended()
    assert made.reap() == 0


def test_a_fork_leaves_its_parents_child_alone():
    with child(ECHO) as made:
        ask(made, b"x")
        assert (
            fork_child(lambda: made.end() or int(not is_alive(made.process.pid)), GIB).reap() == 0
        )
        assert ask(made, b"y") == b"y"


# Programs.


def test_a_program_runs_to_its_end():
    done = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_program_gets_the_interrupt_of_its_caller_and_time_to_clean_up(tmp_path):
    script = f"trap 'echo done > {tmp_path}/done; exit' INT; echo $$ > {tmp_path}/pid; sleep 0.1; kill -TERM $PPID; while true; do sleep 0.1; done"
    code = (
        "import sys; from popef._tools.child import run_program\n"
        "from popef._tools.interrupts import raising\n"
        "with raising():\n    try: run_program(['sh', '-c', sys.argv[1]])\n"
        "    except KeyboardInterrupt: sys.exit(130)"
    )
    done = subprocess.run([sys.executable, "-c", code, script], timeout=SECONDS, check=False)
    assert done.returncode == 130
    assert (tmp_path / "done").exists()
    assert not is_alive(int((tmp_path / "pid").read_text()))
