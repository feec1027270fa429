"""SIGINT and SIGTERM end a command with status 130 and nothing on stderr, at every moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import PATIENCE_SECONDS

from popef._tools import interrupts
from popef._tools.interrupts import exit_at_once, is_asked, raising

NUMBERS = [signal.SIGINT, signal.SIGTERM]
START = """
import os, signal, sys, types
from popef._tools.start import start
def interrupt():
    os.kill(os.getpid(), {number})
{code}
sys.exit(start("command", lambda: "1"))
"""
MODULE = """
command = types.ModuleType("command")
command.main = lambda: main()
sys.modules["command"] = command
from popef._tools.arguments import Parser
from popef._tools.console import run
def main():
    parser = Parser(prog="command")
    parser.set_defaults(run=lambda options: work() or 0)
    return run(parser, [])
"""


def run_code(number: int, code: str, module: str = MODULE) -> tuple[int, str]:
    """Run a command whose `work` is in `code`; return its status and stderr."""
    program = START.format(number=int(number), code=module + code)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return ended.returncode, ended.stderr


WORK = {
    "in the work": "def work(): interrupt()",
    "twice": "def work():\n    try: interrupt()\n    finally: interrupt()",
    "while it handles an error": (
        "def work():\n    try: raise OSError('x')\n    except OSError: interrupt()"
    ),
    "in a finalizer, whose errors Python drops": (
        "import time\nclass Last:\n    def __del__(self): interrupt()\n"
        "def work():\n    Last()\n    time.sleep(60)"
    ),
    "in a C extension that makes another error of it": (
        "def work():\n    try: interrupt()\n    except KeyboardInterrupt: raise ImportError('x')"
    ),
    "in an exit handler": (
        "import atexit, time\n"
        "def work(): atexit.register(time.sleep, 60); atexit.register(interrupt)"
    ),
    "while the threads end": (
        "import threading, time\n"
        "def later():\n    threading.main_thread().join(); time.sleep(0.3); interrupt(); time.sleep(60)\n"
        "def work(): threading.Thread(target=later).start()"
    ),
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", WORK)
def test_an_interrupt_is_status_130_and_nothing_else(place, number):
    assert run_code(number, WORK[place]) == (130, "")


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_while_the_command_is_imported_exits_at_once(number, tmp_path):
    (tmp_path / "command.py").write_text(
        f"import os\ntry: os.kill(os.getpid(), {int(number)})\nexcept BaseException: print('caught')\n"
    )
    code = f"sys.path.insert(0, {str(tmp_path)!r})"
    assert run_code(number, code, module="") == (130, "")


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_waits_for_the_end_of_an_import_in_the_work(number, tmp_path):
    """An import of C code would turn it into an error of its own, or print it."""
    (tmp_path / "part.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {int(number)})\n"
        "try: time.sleep(0.3)\nexcept BaseException: os._exit(7)\n"
    )
    code = f"sys.path.insert(0, {str(tmp_path)!r})\ndef work():\n    import part, time\n    time.sleep(60)"
    assert run_code(number, code) == (130, "")


def test_a_second_interrupt_after_a_while_exits_although_the_clean_up_hangs():
    code = (
        "import threading, time\n"
        "def work():\n    try: interrupt()\n"
        "    finally:\n        threading.Timer(1.2, interrupt).start(); time.sleep(60)"
    )
    assert run_code(signal.SIGINT, code) == (130, "")


def test_the_handlers_are_restored_and_ignored_signals_stay_ignored(monkeypatch):
    before = [signal.getsignal(number) for number in NUMBERS]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with raising():
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            assert is_asked()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is before[1]
        monkeypatch.setattr(interrupts.atexit, "register", lambda *_: None)
        exit_at_once()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)


def test_other_errors_that_python_drops_are_shown():
    status, errors = run_code(
        signal.SIGINT, "class Last:\n    def __del__(self): 1 / 0\ndef work(): Last()"
    )
    assert status == 0
    assert "ZeroDivisionError" in errors


FIRST = {
    "poplar_triton.start": ["poplar_triton", "poplar_triton.start"],
    "popef._tools.start": ["popef", "popef._tools", "popef._tools.start"],
}
"""The first module of commands: all that its import may import."""


@pytest.mark.parametrize("module", FIRST)
def test_nothing_is_imported_before_an_interrupt_exits_a_command(module):
    program = (
        "import os, signal, sys\nbefore = {*sys.modules}\n"
        f"import {module}\n"
        "print(*sorted({*sys.modules} - before))\nos.kill(os.getpid(), signal.SIGINT)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (130, "")
    assert ended.stdout.split() == FIRST[module]


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_a_command_may_be_interrupted_at_any_moment_of_its_start(number):
    """Moments are drawn over the whole start of a command, from the import of its first module on:
    what is before is Python's own."""
    program = (
        "import sys; from poplar_triton.start import poplar_triton\n"
        "print('here', flush=True)\nsys.exit(poplar_triton())"
    )
    words = [sys.executable, "-c", program, "tfserving", "/none"]
    for delay in (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"here\n"
            time.sleep(delay)
            process.send_signal(number)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        if process.returncode != 130:  # it had ended
            assert process.returncode == 1
            assert errors == b"poplar-triton: error: /none: No such file or directory\n"
        else:
            assert errors == b"", delay
