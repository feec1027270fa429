"""Tests of popef's log: its messages and destination, as the environment sets them."""

from __future__ import annotations

import logging
import time

import pytest

import popef.log


@pytest.fixture
def configure(monkeypatch):
    """Configure the logger for the test alone."""
    logger = logging.getLogger("popef")
    before = logger.handlers[:], logger.level, logger.propagate
    yield popef.log.configure
    for handler in logger.handlers[:]:
        if handler not in before[0]:
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(before[1])
    logger.propagate = before[2]


def test_a_line_has_time_library_level_and_text_without_control_characters():
    when = 12 * 3600 + 62.0415
    stamp = time.strftime("%H:%M:%S", time.localtime(when))
    line = popef.log.log_line(when, logging.WARNING, "red \x1b[31m\nnext")
    assert line == f"[{stamp}.041] [popef:cpp] [warning] red \\x1b[31m\nnext"
    assert "[critical]" in popef.log.log_line(when, logging.CRITICAL, "x")


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("TRACE", ["debug", "info", "warning", "error"]),
        ("DEBUG", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("WARN", ["warning", "error"]),
        ("ERR", ["error"]),
        ("OFF", []),
    ],
)
def test_a_level_lets_through_what_is_as_grave(configure, tmp_path, level, said):
    file = tmp_path / "log"
    configure({"POPEF_LOG_LEVEL": level, "POPEF_LOG_DEST": str(file)})
    for word in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("popef"), word)("it happened")
    lines = file.read_text().splitlines()
    assert [line.partition("[popef:cpp] [")[2] for line in lines] == [
        f"{word}] it happened" for word in said
    ]
    assert not logging.getLogger("popef").propagate


@pytest.mark.parametrize(("destination", "stream"), [("stdout", 0), ("stderr", 1), (None, 1)])
def test_lines_go_to_a_stream(configure, capsys, destination, stream):
    configure(
        {"POPEF_LOG_LEVEL": "WARN"} | ({"POPEF_LOG_DEST": destination} if destination else {})
    )
    logging.getLogger("popef").warning("it happened")
    said = capsys.readouterr()
    assert said[stream].endswith("[popef:cpp] [warning] it happened\n")
    assert said[1 - stream] == ""


def test_an_invalid_log_level_in_the_environment_is_reported_and_ignored(
    configure, capsys, tmp_path
):
    handlers = logging.getLogger("popef").handlers[:]
    configure({})
    configure({"POPEF_LOG_LEVEL": "LOUD\x1b"})
    expected = "expected one of OFF, ERR, WARN, INFO, DEBUG, TRACE, got 'LOUD\\x1b'; ignored"
    assert capsys.readouterr().err == f"popef: POPEF_LOG_LEVEL: {expected}\n"
    assert logging.getLogger("popef").handlers == handlers
    configure({"POPEF_LOG_LEVEL": "WARN", "POPEF_LOG_DEST": str(tmp_path / "no" / "where")})
    logging.getLogger("popef").warning("it happened")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("; logging to stderr")
    assert second.endswith("it happened")
