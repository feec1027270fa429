"""Keeps two processes out of one folder. The kernel lets go of a killed process's folder, and no file is left
behind."""

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
    """Hold a folder that is there; BlockingIOError if another one does, unless to `wait` for it.

    False where the file system has no locks, as some of networks: everyone is let in then.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


@contextmanager
def make_scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent` for the length of the with statement; those that killed processes left go
    first."""
    with ExitStack() as held:
        # Nobody else looks between the making of a folder and its locking.
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
