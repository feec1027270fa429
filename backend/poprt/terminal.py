"""Terminal output of the commands through rich: consoles, cells, a progress bar, and log lines.

No text is interpreted as markup. rich is imported when something is printed by it: a command whose
output goes to files or pipes needs none of it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from popef._tools.console import LineFormatter
from popef._tools.text import escape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNBOUNDED_WIDTH = 1 << 20
"""Number of columns for output to a file or a pipe, which has no width of its own. Nothing is
wrapped or cut there."""
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Environment variables by which rich takes any stream for a terminal."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr; without a terminal its width is unlimited."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else _UNBOUNDED_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def cell(text: object) -> Text:
    """Return a text from a file for a table or a line, without markup or control characters."""
    from rich.text import Text

    return Text(escape(text))


def _find_terminal() -> Console | None:
    """Return a console on stderr if that is a terminal, or is used as one."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal and not any(os.environ.get(name) for name in _FORCING):
        return None
    console = make_console(stderr=True)
    return console if console.is_terminal else None


def configure_logging(program: str, level: str) -> None:
    """Log to stderr: in colours on a terminal, elsewhere as lines `PROGRAM: warning: TEXT`."""
    logging.basicConfig(level=level, handlers=[_make_handler(program)])


def _make_handler(program: str) -> logging.Handler:
    console = _find_terminal()
    if console is None:
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(LineFormatter(program))
        return lines
    from rich.logging import RichHandler

    handler = RichHandler(console=console)
    handler.setFormatter(_TextFormatter())
    return handler


class _TextFormatter(logging.Formatter):
    """Formats a record as its text alone: RichHandler shows its time and level."""

    def format(self, record: logging.LogRecord) -> str:
        return escape(record.getMessage())


@contextmanager
def show_progress(
    title: str, steps: int, *, disabled: bool = False, threads: bool = True
) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr and yield a function that advances it with the next step's
    name.

    Nothing is shown if stderr is not a terminal. Without `threads`, for programs that fork, the bar
    is drawn only when the function is called.
    """
    console = None if disabled else _find_terminal()
    if console is None:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, auto_refresh=threads) as progress:
        task = progress.add_task(title, total=steps)

        def on_step(step: str) -> None:
            progress.update(task, description=escape(step), advance=1, refresh=not threads)

        yield on_step
