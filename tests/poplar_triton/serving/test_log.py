"""Log lines with their time, for people and for collectors."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from poplar_triton.serving import log
from poplar_triton.serving.log import Log, LogFormat, ServerOutput
from waiting import PATIENCE_SECONDS

TIME = "2026-11-23T16:00:46.123Z"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(log.time, "time_ns", lambda: 1795449646_123_999_999)


def test_a_line_of_text_has_its_time_and_no_control_characters(capsys):
    with Log() as output:
        output.tell("model 'm\n\x1b[2J': reloaded")
    assert capsys.readouterr().err == f"poplar-triton: {TIME} model 'm\\n\\x1b[2J': reloaded\n"


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("dead: 'm\n'", "info", "dead: 'm\n'"),
        ("warning: little is left", "warning", "little is left"),
    ],
)
def test_a_line_of_json_is_one_object(capsys, text, level, message):
    with Log(LogFormat.JSON) as output:
        output.tell(text)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "time": TIME,
        "program": "poplar-triton",
        "level": level,
        "message": message,
    }


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ('I1123 15:37:31.928525 22769 python_be.cc:2249] "loaded"', "info"),
        ("W1123 15:37:31.928525 22769 python_be.cc:2249] late", "warning"),
        ("E1123 15:37:31.928525 22769 python_be.cc:2249] failed", "error"),
        ("| Option | Value |", "info"),
    ],
)
def test_the_lines_of_triton_have_their_level(capsys, line, level):
    with Log(LogFormat.JSON) as output:
        output.copy(line)
    found = json.loads(capsys.readouterr().err)
    assert found == {"time": TIME, "program": "tritonserver", "level": level, "message": line}


WITHOUT_GPU = [
    'E1125 22:22:36.379557 30799 server.cc:241] "CudaDriverHelper has not been initialized."',
    "Error: Failed to initialize NVML",
    'W1125 22:22:44.406252 30799 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
]
FAILURE = 'E1125 22:22:44.406252 30799 server.cc:2] "failed to load m"'


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("log_format", LogFormat)
def test_errors_about_a_missing_gpu_are_explained_only_where_there_is_none(
    log_format, has_gpu, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(log, "_GPU", tmp_path if has_gpu else Path("/none"))
    lines = [*WITHOUT_GPU, FAILURE]
    pipe = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    with Log(log_format) as written:
        output = ServerOutput(pipe, None, written.copy)
        output.join(PATIENCE_SECONDS)
    told = capsys.readouterr().err.splitlines()
    if log_format is LogFormat.JSON:
        objects = [json.loads(each) for each in told]
        levels = ["error", "info", "warning"] if has_gpu else ["info"] * 3
        assert [each["level"] for each in objects] == [*levels, "error"]
        told = [each["message"] for each in objects]
    note = "" if has_gpu else log._EXPLANATION
    assert told == [*(f"{line}{note}" for line in WITHOUT_GPU), FAILURE]
    assert output.reason == "failed to load m"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_line_that_repeats_the_last_one_is_counted():
    lines, clock = [], Clock()
    repeats = log._Repeats(lines.append, clock)
    error = "E1125 22:22:36.379557 30799 server.cc:241] full"
    for _ in range(5):
        repeats.copy(error)
    clock.now = log.REPEAT_SECONDS + 1
    repeats.copy("E1125 22:22:47.1 30799 server.cc:241] full")  # differs in its time only
    repeats.copy("other")
    repeats.copy("other")
    repeats.tell()
    assert lines == [error, "the last line was repeated 5 times", "other", "other"]


def test_errors_that_take_turns_without_end_are_counted_too():
    lines, clock = [], Clock()
    repeats = log._Repeats(lines.append, clock)
    errors = [f"E1125 22:22:36.379557 30799 server.cc:241] full {number}" for number in range(3)]
    for _ in range(1000):
        for error in errors:
            repeats.copy(error)
            repeats.copy(error)
    assert len(lines) <= 2 * 3 * log.MAX_COPIES
    shown = len(lines)
    clock.now = log.REPEAT_SECONDS + 1
    repeats.copy("I1125 22:22:47.1 30799 server.cc:1] other")
    (*counts, last) = lines[shown:]
    assert last.endswith("other")
    assert counts == [
        f"this line was repeated {2000 - shown // 3} times: server.cc:241] full {number}"
        for number in range(3)
    ]


def test_texts_of_which_there_are_many_take_little_memory_and_none_is_lost():
    lines, clock = [], Clock()
    repeats = log._Repeats(lines.append, clock)
    for number in range(1000):
        clock.now += 0.001
        repeats.copy(f"[warn] {number}")
        repeats.copy("[warn] often")
    repeats.tell()
    assert len(repeats._often) == 0
    assert sum(line.startswith("[warn] ") and line != "[warn] often" for line in lines) == 1000
    counted = [
        re.fullmatch(r"this line was repeated (\d+) times: \[warn\] often", x) for x in lines
    ]
    hidden = sum(int(found[1]) for found in counted if found)
    assert hidden + lines.count("[warn] often") == 1000


def test_lines_below_warnings_are_copied_unless_they_repeat_the_last_line():
    lines = []
    repeats = log._Repeats(lines.append, Clock())
    logged = [f"I1125 22:22:36.{place % 2} 1 a.cc:1] {place % 2}" for place in range(100)]
    for line in logged:
        repeats.copy(line)
    assert lines == logged


def test_lines_without_end_are_bounded_and_the_limit_that_they_name_is_a_reason(capsys):
    line = "[warn] Error from accept() call: Too many open files\n"
    with Log() as written:
        output = ServerOutput(io.BytesIO(line.encode() * 100_000), None, written.copy)
        output.join(PATIENCE_SECONDS)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == line.strip()
    assert len(told) < 10
    assert sum(int(found[0]) for text in told if (found := re.findall(r"\d+", text))) == 99_999
    assert re.fullmatch(r"the limit is \d+ files: raise it \(ulimit -n\)", output.reason)
