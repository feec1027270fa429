"""File locks that keep two processes out of one folder.

The kernel releases a killed process's lock, and no file is left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock an existing folder; if another process holds it, raise BlockingIOError, or `wait` for
    it.

    Yields False if the file system has no locks, as some network file systems: there the folder is
    not protected.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


@contextmanager
def make_scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a new folder in `parent` that exists until the with statement ends.

    Folders that killed processes left are removed first.
    """
    with ExitStack() as held:
        # The parent is locked, so that no process sees a new folder before it is locked.
        with lock_folder(parent, wait=True):
            for left in parent.glob(f"{prefix}*"):
                with (
                    suppress(BlockingIOError, NotADirectoryError, FileNotFoundError),
                    lock_folder(left) as held_by_nobody,
                ):
                    if held_by_nobody:
                        shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            held.enter_context(lock_folder(folder))
        yield folder


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
