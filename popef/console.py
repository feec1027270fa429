"""What the commands share: errors in one line, exit statuses, and a line that shows how far they are."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from .errors import PopefError
from .scan import Blob

_REDRAW_SECONDS = 0.1
_PATIENCE_SECONDS = 1.0
"""Work that is done sooner shows nothing."""


def run(program: str, command: Callable[[], int]) -> int:
    """The status of `command`; 1, and a line on stderr, for a file that is wrong; 130 when it was interrupted."""
    try:
        status = command()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads our output has seen enough. Python flushes stdout once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (OSError, PopefError) as error:
        sys.stdout.flush()
        print(f"{program}: {_describe(error)}", file=sys.stderr)
        return 1
    return status


def _describe(error: OSError | PopefError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Progress:
    """A line on stderr that is drawn again as work advances; nothing where stderr is no terminal."""

    def __init__(self, title: str, total_bytes: int) -> None:
        self._title = title
        self._total = max(total_bytes, 1)
        self._done = 0
        self._next = time.monotonic() + _PATIENCE_SECONDS if sys.stderr.isatty() else float("inf")
        self._drawn = False

    def add(self, size: int) -> None:
        """Note that `size` more bytes are done."""
        self._done += size
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            self._drawn = True
            print(f"\r{self._title} {100 * self._done // self._total:3} %", end="", file=sys.stderr, flush=True)

    def blobs(self, blobs: Iterable[Blob]) -> Iterator[Blob]:
        """The blobs, each noted as done when the next is asked for."""
        for blob in blobs:
            yield blob
            self.add(blob.end - blob.start)
        self.finish()

    def finish(self) -> None:
        """Leave the line."""
        if self._drawn:
            print(file=sys.stderr)
            self._drawn = False
