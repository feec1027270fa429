"""Tests of an isolated child's answers: every byte is checked. Garbage ends the child, and no code
in it runs."""

import pickle
import random
import time

import hostile_graphs as hostile
import numpy as np
import pytest
from onnx import helper
from simipu import Device, DeviceLostError, Engine, GraphOptions, LoadError, RunError
from simipu.engines import isolation
from simipu.engines.answers import (
    AnswerError,
    decode_arrays,
    decode_loaded,
    encode_arrays,
    encode_error,
    encode_loaded,
)
from simipu.errors import LoadMemoryError, RunCancelledError, RunTimeoutError, SimIpuError
from waiting import PATIENCE_SECONDS

ONES = [np.ones(4, np.float32)]
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(True),
    np.zeros((0, 4), np.int64),
    np.arange(12, dtype=np.float16).reshape(3, 4).T,
]


class Bomb:
    """Object that makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def engine():
    executable = hostile.make_executable(
        hostile.make_model([helper.make_node("Relu", ["x"], ["y"])])
    )
    made = Engine(
        executable,
        Device(executable.target),
        graph_options=GraphOptions(num_threads=1),
        isolated=True,
    )
    yield made
    made.unload()


def send(answers):
    """Return the program of a child process that sends one answer for each question, as raw bytes
    if the answer is marked so."""
    return (
        "import os, time; from popef._tools.channel import open_channel\nchannel = "
        f"open_channel({{}}); answers = {answers!r}\nfor answer, is_raw in answers:\n    "
        "channel.receive(1 << 40)\n    os.write(channel.fileno(), answer) if is_raw else "
        "channel.send(answer)\ntime.sleep(20)"
    )


def test_arrays_come_back_as_they_were():
    found = decode_arrays(encode_arrays(ARRAYS), len(ARRAYS))
    for expected, array in zip(ARRAYS, found, strict=True):
        assert array.dtype == expected.dtype
        assert array.flags.writeable
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("names", ["", "openvino", "tensorrt,cuda,cpu", "avx512"])
def test_names_of_a_loaded_programs_engines_survive_encoding(names):
    assert decode_loaded(encode_loaded(names)) == names


@pytest.mark.parametrize("names", [b"a b", b'x"} 1\n', b"A", b"a" * 65, b"\xff"])
def test_names_that_would_not_fit_a_label_are_refused(names):
    with pytest.raises(AnswerError):
        decode_loaded(encode_loaded("") + names)


@pytest.mark.parametrize("kind", [LoadMemoryError, RunTimeoutError, DeviceLostError, RunError])
def test_errors_come_back_as_they_were(kind):
    for decode in (decode_loaded, lambda answer: decode_arrays(answer, 1)):
        with pytest.raises(kind, match="what ü happened") as caught:
            decode(encode_error(kind("what ü happened")))
        assert type(caught.value) is kind


def test_an_error_of_no_class_of_answers_is_one_of_a_run():
    with pytest.raises(RunError, match="gone"):
        decode_arrays(encode_error(RunCancelledError("gone")), 1)
    with pytest.raises(RunError, match=r"^x{65536}$"):
        decode_loaded(encode_error(RunError("x" * 100_000)))


@pytest.mark.parametrize(
    "value", [np.array(["text"]), np.array([None]), np.zeros(2, "datetime64[s]")]
)
def test_types_that_no_stream_supports_are_rejected(value):
    with pytest.raises(RunError, match="which no stream supports"):
        encode_arrays([value])


def test_damaged_answers_are_refused_or_arrays():
    draw = random.Random(3)
    whole = encode_arrays(ARRAYS)
    refused = 0
    for _ in range(3000):
        answer = bytearray(
            whole[: draw.choice([len(whole), len(whole), draw.randrange(len(whole))])]
        )
        for _ in range(draw.randrange(1, 4)):
            if answer:
                answer[draw.randrange(len(answer))] = draw.choice(
                    [0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)]
                )
        try:
            assert len(decode_arrays(bytes(answer), len(ARRAYS))) == len(ARRAYS)
        except (AnswerError, SimIpuError):
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x01",
        b"\x02",
        b"\x02\xff",
        b"\x02\x00" + b"x" * 100_000,
        encode_arrays([]),
        encode_arrays(ARRAYS[:2]),
        encode_arrays(ARRAYS[:1]) + b"x",
        b"\x03\x09\x02" + (2**40).to_bytes(8, "little") * 2,
        b"\x03\x09\x02" + (0).to_bytes(8, "little") + (2**63 - 1).to_bytes(8, "little"),
        b"\x03\x09\x01" + b"\xff" * 8,
    ],
)
def test_other_answers_are_refused(answer):
    with pytest.raises(AnswerError):
        decode_arrays(answer, 1)


def test_nothing_of_an_answer_is_unpickled(engine, monkeypatch, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "made"))
    monkeypatch.setattr(isolation, "_CHILD", send([(bomb, False)]))
    with pytest.raises(LoadError, match=r"sent an invalid answer .* and was ended"):
        engine.load(5)
    monkeypatch.setattr(isolation, "_CHILD", send([(encode_loaded("avx2"), False), (bomb, False)]))
    engine.load(5)
    with pytest.raises(DeviceLostError, match=r"sent an invalid answer .expected arrays"):
        engine.compute(5, ONES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"\x10" + bytes(7) + b"half", r"sent an incomplete response for 0\.1 s"),
        (b"\x00\x00\x00", r"sent an incomplete response for 0\.1 s"),
        (b"\xff" * 7 + b"\x7f", "signal SIGKILL"),
    ],
    ids=["half", "header", "huge"],
)
def test_an_answer_that_does_not_end_costs_the_child(engine, monkeypatch, raw, told):
    monkeypatch.setattr(isolation, "_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "_CHILD", send([(encode_loaded("avx2"), False), (raw, True)]))
    engine.load(5)
    begun = time.monotonic()
    with pytest.raises(DeviceLostError, match=told):
        engine.compute(5, ONES)
    assert time.monotonic() - begun < PATIENCE_SECONDS


def test_the_engine_is_as_good_as_new_after_garbage(engine, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            isolation, "_CHILD", send([(encode_loaded("avx2"), False), (b"garbage", False)])
        )
        engine.load(5)
    with pytest.raises(DeviceLostError):
        engine.compute(5, ONES)
    np.testing.assert_array_equal(engine.compute(5, ONES)[0], ONES[0])
