"""Large JSON bodies are read, and large answers written, in a process of their own.

No other request waits for them.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from poplar_triton.tfserving.json_answers import (
    LARGE_BYTES,
    LARGE_VALUES,
    JsonProcess,
    write_predictions,
)
from poplar_triton.tfserving.json_tensors import Format, parse_predict
from poplar_triton.tfserving.models import Code, ServingError
from poplar_triton.tfserving.rest import RestCall
from poplar_triton.tfserving.threads import Threads
from rest_servers import (
    FLOATS,
    PREDICT,
    SECONDS,
    make_models,
    open_connection,
    serve,
    wait_for,
    write_request,
)
from saved_models import list_children

from popef._tools.channel import Channel

ROW = b'{"instances": [1.0]}'
LARGE = (
    b'{"signature_name": "serving_default", "inputs": {"x": [' + b"0.25, " * LARGE_BYTES + b"1]}}"
)
LONG = b'{"instances": [' + b"1.5, " * 4_000_000 + b"1]}"
"""Body that takes Python seconds to read."""


@pytest.fixture(scope="module")
def threads():
    pool = Threads("pool of a test")
    yield pool
    pool.shutdown()


@pytest.fixture
def reader():
    reader = JsonProcess()
    yield reader
    reader.close()
    assert not find_children()


@pytest.fixture
def call(threads):
    return RestCall(None, threads)


def find_children():
    """Return the IDs of the child processes that work on JSON."""
    return list_children(program=b"tfserving.work_process")


def find_child():
    """Wait for the child process and return it."""
    assert wait_for(find_children), "no process reads"
    (child,) = find_children()
    return child


def test_a_large_body_is_read_as_a_small_one(reader, call):
    format, name, inputs = reader.read(bytearray(LARGE), FLOATS, call)
    assert (format, name) == (Format.COLUMN, "serving_default")
    assert inputs.keys() == {"x"}
    np.testing.assert_array_equal(inputs["x"], np.array([0.25] * LARGE_BYTES + [1], np.float32))
    assert inputs["x"].dtype == np.float32
    assert find_children()


def test_a_small_body_needs_no_process(reader, call):
    _, _, inputs = reader.read(bytearray(ROW), FLOATS, call)
    assert inputs["x"].tolist() == [1.0]
    assert not find_children()


@pytest.mark.slow
def test_a_large_body_has_the_same_errors_as_a_small_one(reader, call):
    for body in (
        b'{"instances": [' + b"[1], " * LARGE_BYTES + b"2]}",
        LARGE[:-4],
        LARGE.replace(b"0.25", b'"0"', 1),
        b"\xff" * (LARGE_BYTES + 1),
        b"[" * (LARGE_BYTES + 1),
    ):
        with pytest.raises(ServingError) as expected:
            parse_predict(body, FLOATS)
        with pytest.raises(ServingError) as found:
            reader.read(bytearray(body), FLOATS, call)
        assert (found.value.code, str(found.value)) == (Code.INVALID_ARGUMENT, str(expected.value))
    assert len(find_children()) == 1


def test_a_large_body_of_a_client_that_has_gone_is_read_no_further(reader, threads):
    call = RestCall(None, threads)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.read, bytearray(LONG), FLOATS, call)
        child = find_child()
        waiting = pool.submit(reader.read, bytearray(LARGE), FLOATS, RestCall(None, threads))
        call.give_up()
        with pytest.raises(ServingError, match="request cancelled") as error:
            reading.result(SECONDS)
        assert error.value.code is Code.CANCELLED
        assert waiting.result(SECONDS)[2]["x"].size == LARGE_BYTES + 1
    assert child not in find_children()


def test_a_dead_process_is_reported_and_replaced(reader, call):
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.read, bytearray(LONG), FLOATS, call)
        os.kill(find_child(), signal.SIGKILL)
        with pytest.raises(
            ServingError, match="process of large JSON ended, status -9; try again"
        ) as error:
            reading.result(SECONDS)
        assert error.value.code is Code.INTERNAL
    for _ in range(2):
        assert reader.read(bytearray(LARGE), FLOATS, call)[2]["x"].size == LARGE_BYTES + 1
        child = find_child()
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # all its threads have ended


def test_an_answer_that_is_not_taken_is_not_the_next_ones(reader, call, monkeypatch):
    def lack_memory(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "receive", lack_memory)
        with pytest.raises(MemoryError):
            reader.read(bytearray(LARGE), FLOATS, call)
    other = LARGE.replace(b"0.25", b"0.75")
    assert reader.read(bytearray(other), FLOATS, call)[2]["x"][0] == 0.75


def test_the_end_ends_what_is_read_and_refuses_what_waits(reader, threads):
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.read, bytearray(LONG), FLOATS, RestCall(None, threads))
        find_child()
        waiting = pool.submit(reader.read, bytearray(LARGE), FLOATS, RestCall(None, threads))
        reader.close()
        for refused in reading, waiting:
            assert isinstance(refused.exception(SECONDS), ServingError)
        assert not find_children()
        with pytest.raises(ServingError, match="the server is stopping"):
            reader.read(bytearray(LARGE), FLOATS, RestCall(None, threads))


def test_others_are_answered_while_a_large_body_is_read():
    with serve(make_models()) as server, ThreadPoolExecutor() as pool:
        slow = pool.submit(server.ask, "POST", PREDICT, LARGE[:-1])
        child = find_child()
        os.kill(child, signal.SIGSTOP)
        for _ in range(3):  # within the second that a process may be stopped
            assert server.ask("POST", PREDICT, ROW).document == {"predictions": [2.5]}
        assert not slow.done()
        os.kill(child, signal.SIGCONT)
        assert slow.result(SECONDS).error.startswith("JSON Parse error")
    assert not find_children()


def test_a_client_that_gives_up_a_large_body_ends_its_reading():
    with serve(make_models()) as server:
        with open_connection(server) as connection:
            connection.sendall(write_request(LONG))
            child = find_child()
            os.kill(child, signal.SIGSTOP)
        assert wait_for(lambda: child not in find_children())
        assert server.ask("POST", PREDICT, ROW).status == 200


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(LARGE_VALUES + 2).reshape(-1, 2),
        np.linspace(-1, 1, LARGE_VALUES + 1, dtype=np.float32),
        np.array([b"\xff" * LARGE_BYTES, b"a"], object),
    ],
    ids=["numbers", "decimals", "strings"],
)
def test_a_large_answer_is_written_as_a_small_one(reader, call, array, format):
    assert reader.write({"y": array}, format, call) == write_predictions({"y": array}, format)
    assert find_children()


def test_a_small_answer_needs_no_process(reader, call):
    outputs = {"y": np.arange(LARGE_VALUES)}
    assert reader.write(outputs, Format.ROW, call) == write_predictions(outputs, Format.ROW)
    assert not find_children()


def test_an_invalid_large_answer_is_an_error(reader, call):
    outputs = {"y": np.arange(LARGE_VALUES + 1), "z": np.arange(2)}
    with pytest.raises(ServingError, match="inconsistent batch size: 2") as error:
        reader.write(outputs, Format.ROW, call)
    assert error.value.code is Code.INVALID_ARGUMENT


def test_others_are_answered_while_a_large_answer_is_written():
    body = b'{"instances": [' + b"1, " * LARGE_VALUES + b"1]}"
    assert len(body) < LARGE_BYTES  # so that only the answer is large
    with serve(make_models()) as server, ThreadPoolExecutor() as pool:
        assert len(server.ask("POST", PREDICT, body).document["predictions"]) == LARGE_VALUES + 1
        child = find_child()
        os.kill(child, signal.SIGSTOP)
        slow = pool.submit(server.ask, "POST", PREDICT, body)
        for _ in range(3):  # within the second that a process may be stopped
            assert server.ask("POST", PREDICT, ROW).document == {"predictions": [2.5]}
        assert not slow.done()
        os.kill(child, signal.SIGCONT)
        assert slow.result(SECONDS).document["predictions"][-1] == 2.5


@pytest.mark.slow
def test_a_stalled_process_is_reported_and_replaced(reader, call):
    outputs = {"y": np.arange(LARGE_VALUES + 1)}
    expected = reader.write(outputs, Format.ROW, call)
    os.kill(find_child(), signal.SIGSTOP)
    with pytest.raises(ServingError, match=r"made no progress \(it is stopped\) and was ended"):
        reader.write(outputs, Format.ROW, call)
    assert reader.write(outputs, Format.ROW, call) == expected
