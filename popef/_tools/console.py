"""Console output of the commands: error handling, lines without control characters, and
progress."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from ..errors import PopefError
from .arguments import Parser
from .interrupts import INTERRUPTED, is_asked, raising
from .paths import describe_folder
from .shortages import describe_last_line, name_limit
from .text import escape, shorten_words, write_utf_8

_PartT = TypeVar("_PartT")

TRACEBACK_VARIABLE = "POPLAR_TRITON_TRACEBACK"
"""Environment variable; 1 shows the traceback of every error."""
_OUTPUT = "standard output"
_ISSUE = "please report it, with the output of the same command under"
_REDRAW_SECONDS = 0.1
"""Interval between two updates of the line."""
_PATIENCE_SECONDS = 1.0
"""Time before the progress line appears; shorter work shows nothing."""


class UsageError(Exception):
    """A wrong call that argparse cannot detect; the process exits with status 2."""


def run(
    parser: Parser,
    arguments: Sequence[str] | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> int:
    """Parse `arguments`, call the parsed `run` function and return the exit status of the process.

    Every exception becomes one line on stderr. The status is 1 for bad input (`expected`,
    PopefError, OSError) and for our own defects. It is 2 for a wrong call (by SystemExit, as in
    argparse) and 130 for an interrupt. An error's `output_lines`, the output of a child process,
    are printed before that line.
    """
    for stream in (sys.stdout, sys.stderr):
        write_utf_8(stream)
    options = argparse.Namespace()

    def command() -> int:
        parser.parse_args(arguments, options)
        if not options.parser.checks_paths_itself:
            options.parser.check_paths(options)
        status: int = options.run(options)
        return status

    options.guard = partial(_guard, parser.prog, options, (PopefError, *expected))
    with raising():
        status: int = options.guard(command)
    return status


def _guard(
    program: str,
    options: argparse.Namespace,
    expected: tuple[type[Exception], ...],
    command: Callable[[], int],
    tell: Callable[[str], None] | None = None,
) -> int:
    """Return the exit status of `command`, also if it raises.

    `tell` gets the text of an error; without it, the text goes to stderr.
    """
    try:
        try:
            status = command()
        except UsageError as error:
            options.parser.error(str(error))
        except SystemExit:
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one guard at the edge: no caller could handle it better
        if is_asked():  # C code turns an interrupt into an error of its own
            return INTERRUPTED
        with suppress(OSError):
            _flush()
        text = escape(shorten_words(_describe(error, options, expected)))
        if tell is None:
            _report(program, error, text)
        else:
            tell(text)
        return 1
    return status


def print_line(text: object, *, stderr: bool = False) -> None:
    """Print one line of any length, with control characters escaped."""
    if stderr:
        print(escape(text, most=sys.maxsize), file=sys.stderr)
        return
    with naming(_OUTPUT):
        print(escape(text, most=sys.maxsize))


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Set the file name of an OSError raised inside to `path` if it has none, as for a failed
    write."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def _flush() -> None:
    try:
        with naming(_OUTPUT):
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError:
        _discard_output()
        raise


def _discard_output() -> None:
    """Redirect stdout to /dev/null, because Python's flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(program: str, error: Exception, text: str) -> None:
    lines = [*getattr(error, "output_lines", ())]
    if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0"):
        lines += "".join(traceback.format_exception(error)).splitlines()
    for line in (*lines, f"{program}: error: {shorten_words(text)}"):
        print_line(line, stderr=True)


def _describe(
    error: Exception, options: argparse.Namespace, expected: tuple[type[Exception], ...]
) -> str:
    limit = name_limit(f"{type(error).__name__}: {error}")
    if isinstance(error, expected):
        text = str(error)
    elif isinstance(error, OSError):
        text = _describe_os_error(error, options)
    elif isinstance(error, MemoryError):
        text = f"not enough memory{': ' if str(error) else ''}{error}"
    elif limit:
        text = describe_last_line(error)
    else:
        return _describe_defect(error)
    return "; ".join(filter(None, (text, limit)))


def _describe_defect(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"the input is nested deeper than can be followed ({error})"
    return (
        f"{type(error).__name__}: {error}; this is a defect of ours: {_ISSUE} "
        f"{TRACEBACK_VARIABLE}=1"
    )


def _describe_os_error(error: OSError, options: argparse.Namespace) -> str:
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    name = error.filename
    file = os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)
    option = _find_option(Path(file), options)
    what = describe_folder(file) if error.errno == errno.EISDIR else error.strerror
    return f"{option}{': ' if option else ''}{file}: {what}"


def _find_option(file: Path, options: argparse.Namespace) -> str:
    """Return the option that gave `file`, or else the one that gave the nearest folder above or
    below it.

    Returns "" if there is none.
    """
    option_of_path = {}
    wanted_path = Path(os.path.abspath(file))
    parser: Parser = options.parser
    for name, option in parser.path_options.items():
        value = getattr(options, name)
        if value is None or value == parser.get_default(name):
            continue
        for option_path in value if isinstance(value, list) else [value]:
            path = Path(os.path.abspath(option_path))
            if path == wanted_path or path in wanted_path.parents or wanted_path in path.parents:
                option_of_path[abs(len(path.parts) - len(wanted_path.parts))] = option
    return option_of_path[min(option_of_path)] if option_of_path else ""


class LineFormatter(logging.Formatter):
    """Formatter that prints log records as `PROGRAM: warning: TEXT`, without control characters."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without characters that a terminal interprets."""
        text = escape(shorten_words(record.getMessage()))
        return f"{self._program}: {record.levelname.lower()}: {text}"


@contextmanager
def quieted(name: str, level: int = logging.ERROR) -> Iterator[None]:
    """Log nothing below `level` to the logger `name` during the with statement: work whose outcome
    is reported in another way."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


class Progress:
    """Progress line on stderr; disabled if stderr is not a terminal. Threads may share it."""

    def __init__(self, title: str, total: int) -> None:
        self._title = escape(title)
        self._total = max(total, 1)
        self._lock = Lock()
        self._done = 0
        self._next = time.monotonic() + _PATIENCE_SECONDS if sys.stderr.isatty() else float("inf")
        self._drawn = False

    def add(self, size: int) -> None:
        """Add `size`, of the total's unit, to the work done."""
        with self._lock:
            self._done += size
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _REDRAW_SECONDS
                self._drawn = True
                text = f"\r{self._title} {100 * self._done // self._total:3} %"
                print(text, end="", file=sys.stderr, flush=True)

    def track(self, parts: Iterable[_PartT], size: Callable[[_PartT], int]) -> Iterator[_PartT]:
        """Yield the parts and count the `size` of each as done when the next one is requested."""
        for part in parts:
            yield part
            self.add(size(part))
        self.finish()

    def finish(self) -> None:
        """End the progress line."""
        if self._drawn:
            print(file=sys.stderr)
            self._drawn = False
