"""Terminal output of the commands through rich: consoles, cells, a progress bar, and log lines.

No text is interpreted as markup.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from popef._tools.console import LineFormatter
from popef._tools.text import escape

_UNBOUNDED_WIDTH = 1 << 20
"""Number of columns for output to a file or a pipe, which has no width of its own. Nothing is
wrapped or cut there."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr; without a terminal its width is unlimited."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else _UNBOUNDED_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def cell(text: object) -> Text:
    """Return a text from a file for a table or a line, without markup or control characters."""
    return Text(escape(text))


def configure_logging(program: str, level: str) -> None:
    """Log to stderr: in colours on a terminal, elsewhere as lines `PROGRAM: warning: TEXT`."""
    console = make_console(stderr=True)
    handler = (
        RichHandler(console=console) if console.is_terminal else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(_TextFormatter() if console.is_terminal else LineFormatter(program))
    logging.basicConfig(level=level, handlers=[handler])


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
    console = make_console(stderr=True)
    if disabled or not console.is_terminal:
        yield lambda _: None
        return
    # Imported here: it takes 15 ms, and only a terminal needs it.
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, auto_refresh=threads) as progress:
        task = progress.add_task(title, total=steps)

        def on_step(step: str) -> None:
            progress.update(task, description=escape(step), advance=1, refresh=not threads)

        yield on_step
