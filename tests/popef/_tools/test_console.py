"""Tests of the guard around every command: any error becomes one line on stderr and an exit
status."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from popef import PopefError
from popef._tools import console
from popef._tools.arguments import Parser, positive, proportion, whole_number

ESCAPE = "\x1b[31mred\nnext"


def call(
    action: Callable[..., object], *arguments: str, expected: tuple[type[Exception], ...] = ()
) -> int:
    """Run a command `tool` that does `action` with its options, as a process would."""
    parser = Parser(prog="tool", version="tool 1")
    parser.add_path("file", nargs="?")
    parser.add_path("-o", "--output", folder=True, default=".")
    parser.add_argument("--count", type=positive)
    parser.set_defaults(run=action)
    try:
        return console.run(parser, arguments, expected)
    except SystemExit as end:
        return int(end.code or 0)


def fail(error: BaseException) -> Callable[..., object]:
    def action(options: object) -> object:
        raise error

    return action


class ChildError(Exception):
    output_lines = ("first\x1b[2J", "second")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PopefError(f"name {ESCAPE}"), r"tool: error: name \x1b[31mred\nnext"),
        (LookupError("wanted"), "tool: error: wanted"),
        (
            MemoryError(),
            "tool: error: not enough memory; the system has no more memory: add some, raise the "
            "limit (memory.max), or do less",
        ),
        (
            RecursionError("too deep"),
            "tool: error: the input is nested deeper than can be followed (too deep)",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "tool: error: No space left on device"),
        (OSError("made up"), "tool: error: made up"),
        (
            FileNotFoundError(2, "No such file", f"/tmp/{ESCAPE}"),
            r"tool: error: /tmp/\x1b[31mred\nnext: No such file",
        ),
    ],
)
def test_expected_errors_are_one_line_without_control_characters(error, said, capsys):
    assert call(fail(error), expected=(LookupError,)) == 1
    assert capsys.readouterr().err == f"{said}\n"


def test_a_defect_is_one_line_as_well_and_says_how_to_report_it(capsys, monkeypatch):
    assert call(fail(KeyError(ESCAPE))) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tool: error: KeyError: ")
    assert line.endswith(
        "this is a defect of ours: please report it, with the output of the same command under "
        "POPLAR_TRITON_TRACEBACK=1"
    )
    monkeypatch.setenv("POPLAR_TRITON_TRACEBACK", "1")
    assert call(fail(ValueError(ESCAPE))) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("tool: error: ValueError: ")
    assert "\x1b" not in "".join(lines)


def test_a_name_of_a_megabyte_is_not_printed_whole(capsys):
    def fail(_):
        raise PopefError(f"node '{'n' * 1_000_000}' is wrong")

    assert call(fail) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 500
    assert line.endswith("n' is wrong")


def test_a_childs_lines_come_before_ours(capsys):
    assert call(fail(ChildError("it failed")), expected=(ChildError,)) == 1
    assert capsys.readouterr().err.splitlines() == [
        r"first\x1b[2J",
        "second",
        "tool: error: it failed",
    ]


def test_an_interrupt_is_status_130(capsys):
    assert call(fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "file", "said"),
    [
        (("--output", "/proc/x"), "/proc/x", "--output: /proc/x: no"),
        (("--output", "/proc/x"), "/proc/x/inside/file", "--output: /proc/x/inside/file: no"),
        (("--output", "/proc/x/inside"), "/proc/x", "--output: /proc/x: no"),
        (("model", "--output", "/proc"), "model", "model: no"),
        (("model", "--output", "/proc"), "/etc/else", "/etc/else: no"),
        (("model",), "elsewhere", "elsewhere: no"),
    ],
)
def test_an_error_of_the_system_names_the_option_that_gave_the_file(arguments, file, said, capsys):
    assert call(fail(PermissionError(errno.EACCES, "no", file)), *arguments) == 1
    assert capsys.readouterr().err == f"tool: error: {said}\n"


def test_an_error_that_names_no_file_is_about_the_one_that_is_written(capsys):
    def action(options: object) -> None:
        with console.naming(Path("/proc/x/page.html")):
            raise OSError(errno.ENOSPC, "full")

    assert call(action, "-o", "/proc/x") == 1
    assert capsys.readouterr().err == "tool: error: --output: /proc/x/page.html: full\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--counts", "1"), "unknown option '--counts'; did you mean --count?"),
        (("--cou", "1"), "unknown option '--cou'"),
        (
            ("--count", ESCAPE),
            r"argument --count: expected a whole number of at least 1, found '\x1b[31mred\nnext'",
        ),
        ((f"--{ESCAPE}",), r"unknown option '--\x1b[31mred\nnext'"),
    ],
)
def test_a_wrong_call_is_one_line_that_points_to_the_help_and_status_2(arguments, said, capsys):
    assert call(fail(AssertionError()), *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tool: error: {said}")
    assert line.endswith("; see tool --help")
    assert call(fail(console.UsageError("a b"))) == 2
    assert capsys.readouterr().err == "tool: error: a b; see tool --help\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (whole_number(0, 65535), "99999"),
        (whole_number(0, 65535), "-1"),
        (positive, "0"),
        (positive, "1.5"),
        (positive, "9" * 5000),
        (proportion, "nan"),
        (proportion, "0"),
        (proportion, "x"),
    ],
)
def test_numbers_out_of_range_are_usage_errors(kind, text):
    parser = Parser(prog="tool")
    parser.add_argument("--number", type=kind)
    with pytest.raises(SystemExit) as end:
        parser.parse_args([f"--number={text}"])
    assert end.value.code == 2


@pytest.mark.slow
def test_a_closed_pipe_or_a_full_disk_prints_no_traceback(tmp_path, small_file):
    file = tmp_path / "small.popef"
    file.write_bytes(small_file)
    dump = [sys.executable, "-m", "popef.commands.dump"]
    read, write = os.pipe()
    os.close(read)
    for arguments in ([str(file)], ["--help"]):
        done = subprocess.run(
            [*dump, *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(write)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*dump, str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"popef_dump: error: standard output: No space left on device\n",
    )


def test_a_terminal_without_unicode_is_no_traceback(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "popef.commands.dump", str(tmp_path / "é")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=environment,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(r"\xe9: No such file or directory" + "\n")


class Clock:
    """Simulated clock and terminal."""

    def __init__(self, monkeypatch, is_terminal=True):
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)


def test_progress_shows_after_a_second_and_not_too_often(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    progress = console.Progress(f"copying {ESCAPE}", 200)
    for seconds in (0.9, 0.1, 0.05, 0.05):
        clock.now += seconds
        progress.add(50)
    shown = r"copying \x1b[31mred\nnext"
    assert capsys.readouterr().err == f"\r{shown}  50 %\r{shown} 100 %"
    progress.finish()
    progress.finish()
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_short_work_and_what_is_no_terminal_show_nothing(monkeypatch, capsys, is_terminal):
    clock = Clock(monkeypatch, is_terminal)
    progress = console.Progress("copying", 0)
    clock.now += 0.99 if is_terminal else 1000
    progress.add(1)
    progress.finish()
    assert capsys.readouterr().err == ""


def test_parts_are_done_when_the_next_is_asked_for(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    parts = ["first", "other"]
    found = []
    for part in console.Progress("copying", 10).track(parts, len):
        clock.now += 2
        found.append((part, capsys.readouterr().err))
    assert found == [("first", ""), ("other", "\rcopying  50 %")]
    assert capsys.readouterr().err == "\rcopying 100 %\n"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (whole_number(0, 65535), "65535", 65535),
        (whole_number(0, 65535), "0", 0),
        (whole_number(3), "3", 3),
        (positive, "1", 1),
        (proportion, "1", 1.0),
        (proportion, "0.001", 0.001),
    ],
)
def test_bounds_are_included(kind, text, value):
    assert kind(text) == value


def test_lines_of_records_name_the_program_and_the_level():
    record = logging.LogRecord("poprt", logging.WARNING, "", 0, "node %s", (ESCAPE,), None)
    assert console.LineFormatter("tool").format(record) == r"tool: warning: node \x1b[31mred\nnext"
