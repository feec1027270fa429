"""Log lines with their time, for people and for collectors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from poplar_triton.serving import log
from poplar_triton.serving.log import LogFormat, ServerOutput, make_copy, make_tell

TIME = "2026-11-23T16:00:46.123Z"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(log.time, "time_ns", lambda: 1795449646_123_999_999)


def test_a_line_of_text_has_its_time_and_no_control_characters(capsys):
    make_tell()("model 'm\n\x1b[2J': reloaded")
    assert capsys.readouterr().err == f"poplar-triton: {TIME} model 'm\\n\\x1b[2J': reloaded\n"
    assert make_copy(LogFormat.TEXT) is None


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("dead: 'm\n'", "info", "dead: 'm\n'"),
        ("warning: little is left", "warning", "little is left"),
    ],
)
def test_a_line_of_json_is_one_object(capsys, text, level, message):
    make_tell(LogFormat.JSON)(text)
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
    make_copy(LogFormat.JSON)(line)
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
    output = ServerOutput(pipe, None, make_copy(log_format))
    output.join(10)
    told = capsys.readouterr().err.splitlines()
    if log_format is LogFormat.JSON:
        objects = [json.loads(each) for each in told]
        levels = ["error", "info", "warning"] if has_gpu else ["info"] * 3
        assert [each["level"] for each in objects] == [*levels, "error"]
        told = [each["message"] for each in objects]
    note = "" if has_gpu else log._EXPLANATION
    assert told == [*(f"{line}{note}" for line in WITHOUT_GPU), FAILURE]
    assert output.reason == "failed to load m"
