"""Progress bar of a compilation, shown if stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
_TOTAL = 100
"""Total that the compiler's callback gets."""


@contextmanager
def show_progress(enabled: bool) -> Iterator[Callable[[int, int], Any] | None]:
    """Show the bar "Graph compilation" within.

    Args:
        enabled: Whether to show it.

    Yields:
        The function that takes the progress and its total; None if there is no bar.
    """
    if not enabled:
        yield None
        return
    # disable=None: only on a terminal.
    with tqdm(desc="Graph compilation", total=_TOTAL, bar_format=_FORMAT, disable=None) as bar:

        def report(done: int, total: int) -> None:
            bar.update(done * _TOTAL // (total or _TOTAL) - bar.n)

        yield report
