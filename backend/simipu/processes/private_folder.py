"""Small files in a folder that only this user can read and write: the store of caches.

What another user could have written is not read: neither a folder nor an entry of another owner,
with other permissions, or behind a symbolic link. Entries are replaced atomically. What they mean
is their caller's.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from pathlib import Path

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = 0o077

_log = logging.getLogger("simipu")


def find_cache_folder(name: str) -> Path:
    """Return the folder of this user's cache of that name: `poplar-triton/NAME` in the user's cache
    folder. It changes with the environment variables, and is relative if the user has no home."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # the specification of XDG_CACHE_HOME ignores such a path
        caches = os.path.expanduser("~/.cache")
    return Path(caches, "poplar-triton", name)


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """Entries in the folder `path`. Beyond `max_entries` or `max_bytes` the oldest are removed,
    until half of that is left. An entry of more than `max_entry_bytes` is neither read nor
    written."""

    path: Path
    max_entries: int
    max_bytes: int
    max_entry_bytes: int

    def read(self, name: str) -> memoryview | None:
        """Return the content of an entry, mapped from its file, so that processes share it; None if
        there is none, or no safe one. A read makes it the newest entry. Writing into the result
        changes no file."""
        with suppress(OSError), self._open() as folder:
            if folder is None:
                return None
            with open(os.open(name, os.O_RDONLY | _OPEN, dir_fd=folder), "rb") as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode) or not _is_mine(status):
                    _log.warning("%s is not used: it is not this user's file", self.path / name)
                    return None
                if status.st_size > self.max_entry_bytes:
                    return None
                with suppress(OSError):
                    os.utime(stream.fileno())
                if not status.st_size:
                    return memoryview(b"")
                # No entry shrinks: another one takes its place by another file.
                return memoryview(mmap(stream.fileno(), status.st_size, access=ACCESS_COPY))
        return None

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write an entry, atomically.

        Raises OSError if it cannot be written. A folder that is not safe only logs a warning.
        """
        if not self.path.is_absolute():
            raise FileNotFoundError(errno.ENOENT, "no home folder; set XDG_CACHE_HOME", self.path)
        os.makedirs(self.path.parent, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        with self._open() as folder:
            if folder is None:
                return
            self._make_room(folder)
            temporary = f".{name[:16]}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
            try:
                with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as stream:
                    for piece in pieces:
                        stream.write(piece)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextmanager
    def _open(self) -> Iterator[int | None]:
        """Yield a descriptor of the folder, or None for one that other users could have written to.
        Raises OSError."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            status = os.fstat(folder)
            if not _is_mine(status):
                text = "%s is not used: expected user %d, mode 0700, found user %d, mode %04o"
                mode = stat.S_IMODE(status.st_mode)
                _log.warning(text, self.path, os.geteuid(), status.st_uid, mode)
            yield folder if _is_mine(status) else None
        finally:
            os.close(folder)

    def _make_room(self, folder: int) -> None:
        """Remove the oldest entries, if there are too many or too large ones. Another process may
        do the same."""
        names, entries = os.listdir(folder), []
        if len(names) < self.max_entries and len(names) * self.max_entry_bytes < self.max_bytes:
            return
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                entries.append((status.st_mtime_ns, name, status.st_size))
        count, size = len(entries), sum(entry[2] for entry in entries)
        if count < self.max_entries and size < self.max_bytes:
            return
        for _, name, num_bytes in sorted(entries):
            if count <= self.max_entries // 2 and size <= self.max_bytes // 2:
                return
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            count, size = count - 1, size - num_bytes


def _is_mine(found: os.stat_result) -> bool:
    """Return whether this user owns a file or folder, and no other user can read or write it."""
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & _OTHERS
