"""The process that runs a model for the operators, asked by hand.

Tests check what it answers, and what it does with data that is no frame.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from model_runtime import ModelRunner
from onnx import TensorProto, helper
from poplar_serving import FrameError, child
from poplar_serving.child import FrameKind, StatusCode, read_into
from poplar_serving.description import read_description
from sample_models import gather_model, make_model, write_handmade
from saved_models import is_alive
from sdk_files import replicate
from serving_children import HEADER, SECONDS, AskedFork, AskedInterpreter
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def asked(tmp_path):
    asked = AskedFork(tmp_path / "stderr")
    yield asked
    asked.process.kill()
    asked.end()


@pytest.fixture
def asked_interpreter():
    asked = AskedInterpreter()
    yield asked
    asked.process.kill()
    asked.end()


@pytest.mark.slow
def test_it_describes_the_model_and_answers_as_the_runner_does(
    asked_interpreter, linear, compile_popef
):
    file = compile_popef(linear)
    kind, _, _, body = asked_interpreter.start(file)
    assert kind == FrameKind.READY
    described = read_description(file)
    assert body == bytes(child.encode_ready(described, 300.0)[1])
    x = np.random.default_rng(1).normal(size=(4, 4)).astype("float32")
    with ModelRunner(file) as runner:
        expected = runner.execute({"x": x})
    asked_interpreter.send(child.encode_call(7, [x]))
    kind, _, call, body = asked_interpreter.receive()
    assert (kind, call) == (FrameKind.RESULT, 7)
    assert body == b"".join(expected[tensor.name].tobytes() for tensor in described.outputs)


def test_calls_are_answered_each_by_its_number(asked, linear, compile_popef):
    asked.start(compile_popef(linear))
    for call in range(1, 51):
        asked.send(child.encode_call(call, [np.full((4, 4), call, "float32")]))
    for _ in range(50):
        _, _, call, body = asked.receive()
        assert np.array_equal(
            np.frombuffer(body, "float32")[-16:], np.full(16, 2 * call, "float32")
        )


@pytest.mark.parametrize("timeout_us", [0, 1, 3_600_000_000])
def test_a_batch_waits_for_other_replicas_up_to_its_timeout(
    timeout_us, linear, compile_popef, asked
):
    file = compile_popef(linear)
    replicate(file, 2, 1)
    asked.start(file, timeout_us)
    # With a timeout of an hour, only the second call makes the child answer the first one.
    calls = [1, 2] if timeout_us > 1 else [1]
    for call in calls:
        asked.send(child.encode_call(call, [np.full((4, 4), call, "float32")]))
    assert [asked.receive()[:3] for _ in calls] == [
        (FrameKind.RESULT, StatusCode.NONE, call) for call in calls
    ]
    if len(calls) > 1:
        asked.send(child.encode_call(3, [np.zeros((4, 4), "float32")]))
        asked.connection.settimeout(1)
        with pytest.raises(TimeoutError):
            asked.receive()


@pytest.mark.slow
def test_it_ends_with_its_connection_even_in_the_middle_of_calls(
    asked_interpreter, linear, compile_popef
):
    asked_interpreter.start(compile_popef(linear))
    for call in range(1, 51):
        asked_interpreter.send(child.encode_call(call, [np.zeros((4, 4), "float32")]))
    assert asked_interpreter.end() == (0, "")


@pytest.mark.slow
def test_signals_for_the_server_do_not_end_it(asked_interpreter, linear, compile_popef):
    asked_interpreter.start(compile_popef(linear))
    for number in (signal.SIGINT, signal.SIGTERM):
        asked_interpreter.process.send_signal(number)
    asked_interpreter.send(child.encode_call(1, [np.zeros((4, 4), "float32")]))
    assert asked_interpreter.receive()[0] == FrameKind.RESULT


def test_a_request_that_the_model_rejects_fails_alone(asked, compile_popef):
    asked.start(compile_popef(gather_model()))
    asked.send(child.encode_call(1, [np.full((4, 2), 99, "int32")]))
    kind, code, call, text = asked.receive()
    assert (kind, code, call) == (FrameKind.FAULT, StatusCode.INVALID_ARGUMENT, 1)
    assert b"99" in text
    asked.send(child.encode_call(2, [np.zeros((4, 2), "int32")]))
    assert asked.receive()[:3] == (FrameKind.RESULT, StatusCode.NONE, 2)


def test_tensors_of_no_elements_and_of_no_dimensions_pass(asked, tmp_path):
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["e"], ["f"])],
        {"x": (TensorProto.FLOAT, []), "e": (TensorProto.INT8, [0, 3])},
        {"y": (TensorProto.FLOAT, []), "f": (TensorProto.INT8, [0, 3])},
        {},
    )
    file = tmp_path / "model.popef"
    write_handmade(file, model)
    kind, _, _, text = asked.start(file)
    assert kind == FrameKind.READY, text
    asked.send(child.encode_call(1, [np.float32(3), np.zeros((0, 3), "int8")]))
    assert asked.receive() == (FrameKind.RESULT, StatusCode.NONE, 1, np.float32(3).tobytes())


@pytest.mark.parametrize(
    ("make", "code", "expected"),
    [
        (
            lambda path: None,
            StatusCode.NOT_FOUND,
            "expected a PopEF file, found: No such file or directory",
        ),
        (
            lambda path: path.mkdir(),
            StatusCode.FAILED_PRECONDITION,
            "expected a PopEF file, found: Is a directory",
        ),
        (
            lambda path: path.write_bytes(b"\xff" * 99),
            StatusCode.INVALID_ARGUMENT,
            "damaged or not PopEF",
        ),
        (lambda path: path.write_bytes(b""), StatusCode.INVALID_ARGUMENT, "expected"),
    ],
)
def test_the_child_reports_a_file_that_is_no_model_before_it_ends(
    make, code, expected, asked, tmp_path
):
    path = tmp_path / "model\n.popef"
    make(path)
    kind, found, call, text = asked.start(path)
    assert (kind, found, call) == (FrameKind.FAULT, code, 0)
    assert expected in text.decode()
    assert "\n" not in text.decode()
    assert asked.end() == (0, "")


def test_a_type_that_the_operators_do_not_take_is_named(asked, tmp_path):
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.INT64, [2])},
        {"y": (TensorProto.INT64, [2])},
        {},
    )
    file = tmp_path / "model.popef"
    write_handmade(file, model)
    _, code, _, text = asked.start(file)
    assert code == StatusCode.INVALID_ARGUMENT
    assert "input 'x': expected float32, int32, uint8, int8, float16, found int64" in text.decode()


HOSTILE = {
    "another kind first": HEADER.pack(2, 0, 1, 0),
    "no kind": HEADER.pack(0xFFFFFFFF, 0xFFFFFFFF, 2**64 - 1, 2**64 - 1),
    "an endless path": HEADER.pack(1, 0, 0, 2**64 - 1),
    "no path": HEADER.pack(1, 0, 0, 8) + bytes(8),
    "no timeout": HEADER.pack(1, 0, 0, 3) + bytes(3),
    "a timeout before now": HEADER.pack(1, 0, 0, 9) + struct.pack("<q", -1) + b"x",
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_first_message_ends_the_child_and_is_logged(sent, asked):
    asked.connection.sendall(sent)
    with pytest.raises((EOFError, ConnectionError)):
        asked.receive()
    status, said = asked.end()
    assert status == 1
    assert said.startswith("poplar_serving: error: the connection to the operators: expected")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            HEADER.pack(2, 0, 1, 2**64 - 1),
            "call 1: expected 64 bytes of inputs, found 18446744073709551615",
        ),
        (HEADER.pack(2, 0, 2, 63), "call 2: expected 64 bytes of inputs, found 63"),
        (HEADER.pack(1, 0, 0, 64) + bytes(64), "expected a frame of kind 2 (CALL), found 1"),
        (HEADER.pack(5, 0, 1, 64) + bytes(64), "expected a frame of kind 2 (CALL), found 5"),
    ],
)
def test_an_invalid_call_ends_the_child_and_is_logged(sent, expected, asked, linear, compile_popef):
    asked.start(compile_popef(linear))
    asked.connection.sendall(sent)
    with pytest.raises((EOFError, ConnectionError)):
        asked.receive()
    status, said = asked.end()
    assert (status, expected in said) == (1, True), said


@pytest.mark.parametrize("sent", range(0, 24 + 64, 7))
def test_a_call_that_breaks_off_ends_it_in_peace(sent, linear, compile_popef):
    ours, theirs = socket.socketpair()
    ended = []

    def serve():
        try:
            child.serve(theirs)
        except (EOFError, OSError, FrameError) as error:
            ended.append(type(error))

    thread = threading.Thread(target=serve)
    with ours, theirs:
        thread.start()
        child.send(ours, child.encode_start(str(compile_popef(linear)), 5000))
        read_into(ours, memoryview(bytearray(HEADER.size)))
        ours.sendall(b"".join(child.encode_call(1, [np.zeros((4, 4), "float32")]))[:sent])
        ours.shutdown(socket.SHUT_WR)
        thread.join(SECONDS)
    assert ended == [EOFError]


def test_calls_that_wait_are_bounded(linear, compile_popef, monkeypatch):
    """Calls beyond the bound stay in the socket and are answered later."""
    monkeypatch.setattr(child, "_MAX_WAITING_BYTES", 128)
    most = []
    append = child.Calls._compute

    def watch(calls, *arguments):
        most.append(calls._waiting)
        append(calls, *arguments)

    monkeypatch.setattr(child.Calls, "_compute", watch)
    ours, theirs = socket.socketpair()

    def serve():
        with pytest.raises(EOFError):
            child.serve(theirs)

    thread = threading.Thread(target=serve)
    with ours, theirs:
        thread.start()
        child.send(ours, child.encode_start(str(compile_popef(linear)), 5000))
        header = bytearray(HEADER.size)
        read_into(ours, memoryview(header))
        read_into(ours, memoryview(bytearray(HEADER.unpack(header)[3])))
        for call in range(20):
            child.send(ours, child.encode_call(call, [np.zeros((4, 4), "float32")]))
        for _ in range(20):
            read_into(ours, memoryview(header))
            kind, _, _, size = HEADER.unpack(header)
            assert kind == FrameKind.RESULT
            read_into(ours, memoryview(bytearray(size)))
        ours.shutdown(socket.SHUT_WR)
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert 1 <= max(most) <= 2


@pytest.mark.slow
def test_it_ends_when_its_parent_is_killed(linear, compile_popef, tmp_path):
    """A killed parent cannot clean up; the kernel closes its end."""
    script = (
        "import socket, subprocess, sys, time\n"
        "from poplar_serving import child\n"
        "ours, theirs = socket.socketpair()\n"
        "code = f'from poplar_serving.child import main; main({theirs.fileno()})'\n"
        "process = subprocess.Popen([sys.executable, '-c', code], pass_fds=[theirs.fileno()])\n"
        "theirs.close()\n"
        "child.send(ours, child.encode_start(sys.argv[1], 5000))\n"
        "ours.recv(1)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(compile_popef(linear))],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_alive(pid), "the process ends")


def test_a_header_of_another_kind_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(HEADER.pack(3, 0, 0, 0))
        with pytest.raises(FrameError, match=r"expected a frame of kind 2 \(CALL\), found 3"):
            child.read_header(theirs, FrameKind.CALL)


def test_texts_of_faults_are_bounded():
    header, body = child.encode_fault(1, StatusCode.INTERNAL, "\udcff" * 100_000)
    assert HEADER.unpack(header) == (5, 13, 1, len(body))
    assert len(body) == child.MAX_TEXT_BYTES


@pytest.mark.slow
def test_importing_it_imports_no_tensorflow():
    code = "import sys, poplar_serving, poplar_serving.child; sys.exit('tensorflow' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=dict(os.environ), timeout=PATIENCE_SECONDS
        ).returncode
        == 0
    )
