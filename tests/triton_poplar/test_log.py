"""The backend's own log lines: rare, named, and without control characters of a terminal."""

import logging
import subprocess
import sys

import pytest
from triton_poplar.log import MIN_INTERVAL_SECONDS, RateLimitedWarnings
from waiting import PATIENCE_SECONDS


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "triton_poplar")
    return lambda: [record.getMessage() for record in caplog.records]


def test_warnings_that_come_too_often_are_counted(lines):
    now = [0.0]
    warnings = RateLimitedWarnings("m_0", clock=lambda: now[0])
    for number in range(1000):
        warnings.warn(f"failure {number}")
    assert lines() == ["m_0: failure 0"]
    now[0] += MIN_INTERVAL_SECONDS
    warnings.warn("another")
    assert lines()[1:] == ["m_0: another (and 999 more since the last such line)"]
    warnings.warn("one more")
    warnings.close()
    warnings.close()
    assert lines()[2:] == ["m_0: and 1 more since the last such line"]


def test_nothing_is_logged_without_warnings(lines):
    RateLimitedWarnings("m_0").close()
    assert lines() == []


def test_a_message_is_one_line_of_bounded_length():
    code = """
import logging
from triton_poplar.log import log_to_stderr
log_to_stderr()
logging.getLogger("simipu").warning("node %s", "\\x1b[2J\\n\\0" + "x" * 100_000)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = child.stderr.splitlines()
    assert line.startswith(r"[poplar] node \x1b[2J\n\x00xxx")
    assert line.isprintable()
    assert len(line) < 3000


def test_a_request_that_logs_does_not_wait_for_a_reader_that_hangs():
    code = """
import logging
from triton_poplar.log import log_to_stderr
log_to_stderr()
for _ in range(2000):
    logging.getLogger("simipu").warning("x" * 99)
print("done", flush=True)
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"done\n"
            assert child.wait(PATIENCE_SECONDS) == 0
        finally:
            child.kill()
