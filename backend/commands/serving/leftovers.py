"""What a server has on this machine beside its processes: shared memory and a temporary folder.

Each server holds a lock, which its own processes inherit; what belongs to a lock that nobody holds was left
by a server that was killed, and goes when the next one starts. (In a pod /dev/shm outlives its containers.)
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where the segments of Triton's Python backends lie, whatever we think of it
_FOLDER = "poplar-triton-"
_LOCK = re.compile(r"poplar_\d+_([A-Za-z0-9_]{8})_lock")


class Belongings:
    """The folder and the shared memory of one server, until `give_up`."""

    def __init__(self) -> None:
        _clear_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        self.prefix = f"poplar_{os.getpid()}_{self.folder.name[-8:]}_"
        """With which the names of its segments begin."""
        try:
            self.lock = self._take_lock()
            """A file descriptor for the server's processes to inherit."""
        except OSError:
            shutil.rmtree(self.folder)
            raise

    def _take_lock(self) -> int:
        """It has its name only once it is held: one with that name that nobody holds is cleared away."""
        new = SHARED_MEMORY / f"{self.prefix}new"
        lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(SHARED_MEMORY / f"{self.prefix}lock")
        return lock

    def clear_memory(self) -> None:
        """Of a server that has ended."""
        for segment in SHARED_MEMORY.glob(f"{self.prefix}*"):
            if not _LOCK.fullmatch(segment.name):
                segment.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Of this server, which has ended, nothing stays."""
        self.clear_memory()
        shutil.rmtree(self.folder, ignore_errors=True)
        (SHARED_MEMORY / f"{self.prefix}lock").unlink(missing_ok=True)
        os.close(self.lock)


def _clear_leftovers() -> None:
    """Another user's files are not opened, and stay."""
    for file in SHARED_MEMORY.glob("poplar_*_lock"):
        found = _LOCK.fullmatch(file.name)
        if found is None:
            continue
        with suppress(OSError):
            lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(file, Path(tempfile.gettempdir(), f"{_FOLDER}{found[1]}"))
            finally:
                os.close(lock)


def _remove(lock: Path, folder: Path) -> None:
    for segment in SHARED_MEMORY.glob(f"{lock.name.removesuffix('lock')}*"):
        if segment != lock:
            segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # refuses a link
    lock.unlink(missing_ok=True)
