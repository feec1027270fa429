"""Log lines with their time, for people and for collectors."""

from __future__ import annotations

import json

import pytest
from poplar_triton.serving import log
from poplar_triton.serving.log import LogFormat, make_copy, make_tell

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
