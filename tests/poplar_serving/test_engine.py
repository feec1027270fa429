"""The operators' engines, without TensorFlow and under sanitizers.

Tests check the processes that they start, share and replace, and processes that misbehave.
"""

import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from poplar_serving.library import FLAGS, SOURCES, UNITS, find_cxx
from sample_models import make_model
from saved_models import is_alive
from simipu.kernels.build import CompilerError, run
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow  # compiles, and waits for processes

FLAGS_HERE = ("-Werror", "-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
HEADER = struct.Struct("<IIQQ")


@pytest.fixture(scope="session")
def checker(tmp_path_factory):
    """Return the program of engine_check.cc, compiled once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    made = folder / "engine_check"
    with open(folder / "engine_check.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            sources = [SOURCES / unit for unit in UNITS[:-1]] + [
                Path(__file__).with_name("engine_check.cc")
            ]
            try:
                run(
                    [
                        *find_cxx(),
                        *FLAGS,
                        *FLAGS_HERE,
                        f"-I{SOURCES}",
                        *map(str, sources),
                        "-o",
                        str(made),
                    ]
                )
            except CompilerError as error:
                if "error:" in str(error):
                    raise
                pytest.skip(f"no C++ compiler with sanitizers: {error}")
    return made


class Checker:
    """Wrapper of the checking program, which reads a line and prints a line."""

    def __init__(self, path, **environment):
        self._process = subprocess.Popen(
            [path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "POPLAR_SERVING_PYTHON": sys.executable, **environment},
            text=True,
        )

    def __call__(self, *words):
        print(*words, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().rstrip("\n")

    def open(self, name, file):
        answer = self("open", name, file)
        assert answer.startswith("engine "), answer
        return answer.split()[1]

    def pid(self, engine):
        return int(self("pid", engine).split()[1])

    def end(self):
        """Wait for the process and return its stderr; no child process of it may be left."""
        _, said = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert self._process.returncode == 0, said
        return said

    def kill(self):
        self._process.kill()
        self._process.communicate()

    def children(self):
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]


@pytest.fixture
def check(checker):
    check = Checker(checker)
    yield check
    check.kill()


@pytest.fixture
def double(compile_popef):
    """Return the file of y = 2 x for one row of two numbers."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    shape = {"x": (TensorProto.FLOAT, ["n", 2])}
    return compile_popef(
        make_model(nodes, shape, {"y": (TensorProto.FLOAT, ["n", 2])}, {}), batch=1
    )


def row(*values):
    return np.array(values, "float32").tobytes().hex()


def test_a_call_is_answered_and_all_ends_with_the_last_user(check, double):
    engine = check.open("a", double)
    assert check("call", engine, 1, row(1, 2)) == f"result {row(2, 4)}"
    check("drop", engine)
    assert check("call", engine, 1, row(1, 2)) == "no engine"
    wait_until(lambda: not check.children(), "the process ends")
    assert check.end() == ""


def test_one_process_answers_calls_of_all_threads(check, double):
    engine = check.open("a", double)
    assert check("call", engine, 32, row(3, 4)) == f"result {row(6, 8)}"
    assert len(check.children()) == 1
    assert check.end() == ""


def test_the_same_name_and_file_are_the_same_engine_and_others_are_not(check, double, tmp_path):
    first = check.open("a", double)
    copy = tmp_path / "copy.popef"
    copy.write_bytes(double.read_bytes())
    assert check.open("a", double) == first
    assert check.open("b", double) != first
    assert check.open("a", copy) != first
    assert len(check.children()) == 3


def test_a_file_that_was_replaced_is_another_engine(check, double, tmp_path):
    file = tmp_path / "file.popef"
    file.write_bytes(double.read_bytes())
    first = check.open("a", file)
    other = tmp_path / "other.popef"
    other.write_bytes(double.read_bytes())
    other.replace(file)
    assert check.open("a", file) != first
    assert check("call", first, 1, row(1, 2)) == f"result {row(2, 4)}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_is_replaced(check, double, number):
    engine = check.open("a", double)
    pid = check.pid(engine)
    os.kill(pid, number)
    wait_until(lambda: pid not in check.children(), "the process ends")
    assert check("call", engine, 8, row(1, 2)) == f"result {row(2, 4)}"
    assert check.pid(engine) != pid
    assert check.end() == ""


def test_a_process_that_stops_is_ended_in_time(check, double):
    check("limits", 60_000, 1000)
    engine = check.open("a", double)
    pid = check.pid(engine)
    os.kill(pid, signal.SIGSTOP)
    answer = check("call", engine, 4, row(1, 2))
    assert answer.startswith("fault 4 engine 'a': its process answered nothing within "), answer
    assert check("call", engine, 1, row(1, 2)) == f"result {row(2, 4)}"
    assert pid not in check.children()


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """Limit a run to five seconds, so that a stopped process is found soon."""
    monkeypatch.setenv("POPLAR_RUNTIME_OPTIONS", '{"target.hostSyncTimeout": 5}')


def test_a_call_can_be_cancelled_and_others_go_on(check, double):
    engine = check.open("a", double)
    # On a busy machine the answer can be there before the call is cancelled.
    answers = {check("cancel", engine, row(1, 2)) for _ in range(20)}
    assert "fault 1 engine 'a': the call was cancelled" in answers
    assert answers <= {"fault 1 engine 'a': the call was cancelled", f"result {row(2, 4)}"}
    assert check("call", engine, 4, row(1, 2)) == f"result {row(2, 4)}"
    assert check.end() == ""


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        (
            "a",
            "/nonexistent",
            "fault 5 engine 'a': filename '/nonexistent': expected a PopEF file, found: No such",
        ),
        (
            "a",
            "/dev/null",
            "fault 3 engine 'a': filename '/dev/null': expected a PopEF file, found what is no",
        ),
        ("a", "/" + 5000 * "x", "expected the path of a PopEF file"),
        ("a\x1b[2J", "/nonexistent\x9b", "engine 'a\\x1b[2J': filename '/nonexistent\\xc2\\x9b'"),
        (2000 * "a", "/nonexistent", "engine_name: expected 1 to 1024 bytes, found 2000"),
        ("a", __file__, "damaged or not PopEF"),
    ],
)
def test_files_that_cannot_be_opened_are_named(check, name, file, expected):
    assert expected in check("open", name, file)
    assert not check.children()
    assert check.end() == ""


def test_an_interpreter_that_is_not_there_is_named(check, double):
    check("python", "/nonexistent/python")
    answer = check("open", "a", double)
    assert answer.startswith(
        "fault 9 engine 'a': the process that runs its model cannot be started: "
        "'/nonexistent/python': "
    )
    assert "POPLAR_SERVING_PYTHON" in answer


def test_an_interpreter_without_this_project_is_named(check, double, tmp_path):
    python = fake(tmp_path, "raise SystemExit(3)")
    check("python", python)
    answer = check("open", "a", double)
    assert answer.startswith(
        "fault 14 engine 'a': its process died (exit status 3); the log has what it said last"
    )
    assert f"'{python}' has to be a Python that has poplar-triton installed" in answer


def fake(folder, code, limit_ms=60_000):
    """Return a fake interpreter that runs `code` instead, with the connection as `c`."""
    code = code.replace("LIMIT_MS", str(limit_ms))
    path = folder / "python"
    path.write_text(
        f"#!{sys.executable}\nimport os, socket, struct, time\nc = socket.socket(fileno=3)\n"
        f"frame = struct.Struct('<IIQQ').pack\n{code}\n"
    )
    path.chmod(0o755)
    return str(path)


READY = (
    "tensor = struct.pack('<III', 1, 1, 1) + b'x' + struct.pack('<q', 2)\n"
    "body = struct.pack('<QII', LIMIT_MS, 1, 1) + 2 * tensor\n"
    "c.sendall(frame(3, 0, 0, len(body)) + body)\n"
)
"""Answer of a process whose model has one input and one output of two floats."""

LIES = {
    "not a frame": ("c.sendall(b'\\xff' * 100)", "a frame of kind 4294967295"),
    "an endless description": (
        "c.sendall(frame(3, 0, 0, 2**63))",
        "a frame of 9223372036854775808 bytes",
    ),
    "an endless fault": (
        "c.sendall(frame(5, 9, 0, 2**64 - 1))",
        "a frame of 18446744073709551615 bytes",
    ),
    "a result before it is ready": ("c.sendall(frame(4, 0, 0, 8) + bytes(8))", "a frame of kind 4"),
    "an empty description": ("c.sendall(frame(3, 0, 0, 0))", "a damaged description"),
    "a short description": (
        "c.sendall(frame(3, 0, 0, 16) + b'\\xff' * 16)",
        "a damaged description",
    ),
    "too many tensors": (
        "c.sendall(frame(3, 0, 0, 16) + struct.pack('<QII', 1, 2**32 - 1, 2**32 - 1))",
        "a damaged description",
    ),
    "half a header": ("c.sendall(bytes(7))", "its process died"),
    "half a description": ("c.sendall(frame(3, 0, 0, 16) + bytes(3))", "its process died"),
    "a code of no fault": ("c.sendall(frame(5, 0, 0, 1) + b'x')", "fault 13 engine 'a': x"),
    "a code of none": ("c.sendall(frame(5, 4294967295, 0, 1) + b'x')", "fault 13 engine 'a': x"),
}
TENSORS = {
    "a type of none": struct.pack("<III", 99, 0, 0),
    "a name that is too long": struct.pack("<III", 1, 2**32 - 1, 0),
    "too many dimensions": struct.pack("<III", 1, 0, 65) + bytes(8 * 65),
    "a dimension below 0": struct.pack("<IIIq", 1, 0, 1, -1),
    "a dimension of all there is": struct.pack("<IIIq", 1, 0, 1, 2**63 - 1),
    "more bytes than can be counted": struct.pack("<IIIqq", 1, 0, 2, 2**39, 2**39),
    "bytes behind its end": struct.pack("<IIIq", 1, 0, 1, 1) + b"x",
}
LIES |= {
    name: (
        f"body = struct.pack('<QII', 1, 1, 0) + {tensor!r}\nc.sendall(frame(3, 0, 0, len(body)) + "
        "body)",
        "a damaged description",
    )
    for name, tensor in TENSORS.items()
}


@pytest.mark.parametrize(("code", "expected"), LIES.values(), ids=LIES)
def test_a_process_that_says_what_it_should_not_is_ended(code, expected, check, double, tmp_path):
    check("python", fake(tmp_path, f"c.recv(1000)\n{code}"))
    answer = check("open", "a", double)
    assert answer.startswith("fault "), answer
    assert expected in answer
    assert not check.children()
    assert check.end() == ""


ANSWERS = {
    "too few bytes": (
        "c.sendall(frame(4, 0, call, 7) + bytes(7))",
        "outputs of 7 bytes, expected 8",
    ),
    "too many": (
        "c.sendall(frame(4, 0, call, 2**64 - 1))",
        "outputs of 18446744073709551615 bytes, expected 8",
    ),
    "an incomplete response": (
        "c.sendall(frame(4, 0, call, 8) + bytes(3))",
        "its process died (exit status 0)",
    ),
    "ready again": (READY, "a frame of kind 3"),
}
SILENCES = {
    "nothing": "",
    "an answer to another call": "c.sendall(frame(4, 0, call + 1, 8) + bytes(8))",
    "an incomplete response": "c.sendall(frame(4, 0, call, 8) + bytes(3))",
}
READ = "call = struct.unpack_from('<IIQQ', c.recv(1000))[2]\n"


@pytest.mark.parametrize(("code", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_a_process_that_answers_what_it_should_not_is_ended(
    code, expected, check, double, tmp_path
):
    check("python", fake(tmp_path, f"c.recv(1000)\n{READY}{READ}{code}"))
    engine = check.open("a", double)
    answer = check("call", engine, 1, row(1, 2))
    assert answer.startswith("fault "), answer
    assert expected in answer
    assert check.end() == ""


@pytest.mark.parametrize("code", SILENCES.values(), ids=SILENCES)
def test_a_process_that_falls_silent_is_ended_in_time(code, check, double, tmp_path):
    check("limits", 60_000, 100)
    check(
        "python",
        fake(tmp_path, f"c.recv(1000)\n{READY}{READ}{code}\ntime.sleep(600)", limit_ms=400),
    )
    engine = check.open("a", double)
    assert "its process answered nothing within 505 ms" in check("call", engine, 1, row(1, 2))
    assert check.end() == ""


def test_a_process_that_never_starts_is_ended_in_time(check, double, tmp_path):
    check("limits", 300, 100)
    check("python", fake(tmp_path, "time.sleep(600)"))
    assert "its process was not ready within 300 ms and was ended" in check("open", "a", double)
    assert not check.children()


def test_a_process_that_does_not_read_is_ended_in_time(check, double, tmp_path):
    check("limits", 60_000, 100)
    check("python", fake(tmp_path, f"c.recv(1000)\n{READY}time.sleep(600)", limit_ms=400))
    engine = check.open("a", double)
    answer = check("call", engine, 64, 1_000_000 * "00")
    assert "its process answered nothing within" in answer
    assert check.end() == ""


def test_answers_come_in_any_order_and_in_pieces(check, double, tmp_path):
    answers = (
        "calls = [struct.unpack('<IIQQ8x', c.recv(32, socket.MSG_WAITALL))[2] for _ in "
        "range(8)]\nfor byte in b''.join(frame(4, 0, call, 8) + bytes(8) for call in "
        "reversed(calls)):\n    c.sendall(bytes([byte]))\ntime.sleep(60)\n"
    )
    check("python", fake(tmp_path, f"c.recv(1000)\n{READY}{answers}"))
    engine = check.open("a", double)
    assert check("call", engine, 8, row(1, 2)) == f"result {row(0, 0)}"
    assert check.end() == ""


def test_a_fork_of_the_server_gets_an_error_and_does_not_wait(check, double):
    engine = check.open("a", double)
    answer = check("fork", engine)
    assert answer.startswith("fault 9 engine 'a': it was started by process "), answer
    assert check("call", engine, 1, row(1, 2)) == f"result {row(2, 4)}"
    assert check.end() == ""


def test_its_processes_end_when_it_is_killed(check, double):
    check.open("a", double)
    (pid,) = check.children()
    check.kill()

    wait_until(lambda: not is_alive(pid), "the process ends")
