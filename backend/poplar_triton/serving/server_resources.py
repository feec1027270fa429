"""Resources of a server on this machine other than its processes: shared memory and a temporary
folder.

Each server holds a lock, which its own processes inherit. If no process holds a lock, its server
was killed, and the next server removes what belongs to the lock. (In a pod /dev/shm outlives its
containers.)

Every user may write to /dev/shm, so the lock is in a folder there that only its owner can have made
and filled. Otherwise another user's lock could make resources of a running server look abandoned.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  Triton's Python backends put their segments there
_FOLDER = "poplar-triton-"
_LOCK_FILE = "held"
"""Name of the file in the folder of the lock."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
"""Mode bits that a folder may inherit from its parent folder."""
_LOCK = re.compile(r"poplar_\d+_([A-Za-z0-9_]{8})_lock")


class ServerResources:
    """Folder and shared memory of one server, until `release`."""

    def __init__(self) -> None:
        _clear_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        self.empty_folder = self.folder / "empty"
        """Working directory of the server, from where its stubs could import a user's files."""
        self.empty_folder.mkdir()
        self.prefix = f"poplar_{os.getpid()}_{self.folder.name[-8:]}_"
        """Prefix of the names of the server's segments."""
        try:
            self.lock = self._take_lock()
            """File descriptor that the server's processes inherit."""
        except OSError:
            shutil.rmtree(self.folder)
            shutil.rmtree(SHARED_MEMORY / f"{self.prefix}new", ignore_errors=True)
            raise

    def _take_lock(self) -> int:
        """Take the lock, and rename it only once it is held: another server removes a lock with the
        final name that no process holds."""
        new = SHARED_MEMORY / f"{self.prefix}new"
        new.mkdir(mode=0o700)
        lock = os.open(new / _LOCK_FILE, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(SHARED_MEMORY / f"{self.prefix}lock")
        return lock

    def restrict_memory(self) -> None:
        """Deny other users access to the segments. The library that makes them (Boost.Interprocess)
        gives them mode 644, whatever the umask is."""
        for segment in _iter_segments(self.prefix):
            with suppress(OSError):
                file = os.open(segment, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if os.fstat(file).st_uid == os.geteuid():
                        os.fchmod(file, 0o600)
                finally:
                    os.close(file)

    def count_segments(self) -> int:
        """Return the number of segments of shared memory."""
        return sum(1 for _ in _iter_segments(self.prefix))

    def clear_memory(self) -> None:
        """Remove the segments of a server that has ended."""
        _remove_segments(self.prefix)

    def release(self) -> None:
        """Remove everything of this server, which has ended."""
        self.clear_memory()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(SHARED_MEMORY / f"{self.prefix}lock", ignore_errors=True)
        os.close(self.lock)


def _clear_leftovers() -> None:
    """Remove what ended servers have left. Files that another user could have made are neither
    opened nor removed."""
    for folder in SHARED_MEMORY.glob("poplar_*_lock"):
        match = _LOCK.fullmatch(folder.name)
        if match is None:
            continue
        with suppress(OSError), _open_lock(folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_segments(folder.name.removesuffix("lock"))
            shutil.rmtree(  # refuses a link
                Path(tempfile.gettempdir(), f"{_FOLDER}{match[1]}"), ignore_errors=True
            )
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _open_lock(folder: Path) -> Iterator[int]:
    """Open the lock in a folder. Raises OSError if another user may have made either."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_owner(inside, stat.S_IFDIR | 0o700)
        lock = os.open(_LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
        try:
            _check_owner(lock, stat.S_IFREG | 0o600)
            yield lock
        finally:
            os.close(lock)
    finally:
        os.close(inside)


def _check_owner(file: int, mode: int) -> None:
    """Raise PermissionError unless a file or folder is this user's, has this type and mode, and has
    no second name."""
    status = os.fstat(file)
    is_ours = status.st_uid == os.geteuid() and status.st_mode & ~_SPECIAL_BITS == mode
    if not is_ours or (stat.S_ISREG(mode) and status.st_nlink != 1):
        raise PermissionError(f"expected owner {os.geteuid()} and mode {mode:o}, found {status}")


def _remove_segments(prefix: str) -> None:
    for segment in _iter_segments(prefix):
        with suppress(OSError):  # another user's
            segment.unlink()


def _iter_segments(prefix: str) -> Iterator[Path]:
    return (path for path in SHARED_MEMORY.glob(f"{prefix}*") if not _LOCK.fullmatch(path.name))
