"""Cache of files that were loaded within limits before, by their digests: a folder of the user with
a small file for each, which holds the limits.

Entries that another user can write are not trusted. Without such a folder no file is known, and
none is stored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import onnxruntime

from simipu.version import package_hash

MAX_ENTRIES = 4096
"""Maximum number of entries; beyond it the older half is removed."""
_MAX_ENTRY_BYTES = 200
_PIECE_BYTES = 1 << 20
_VERSIONS = f"1 {package_hash()} {metadata.version('onnx')} {onnxruntime.__version__}"
"""Version of the entries' format and of the packages that load files; another version may take
longer."""
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Time and memory limits within which a file was loaded, or must be loaded."""

    seconds: float
    memory_bytes: int

    def covers(self, other: LoadLimits) -> bool:
        """Return whether a load within `other` is also within these limits."""
        return other.seconds <= self.seconds and other.memory_bytes <= self.memory_bytes


def digest_files(files: Sequence[Path]) -> str:
    """Return a digest of the contents of files, in their order. Raises OSError."""
    whole = hashlib.sha256(_VERSIONS.encode())
    piece = memoryview(bytearray(_PIECE_BYTES))
    for file in files:
        digest = hashlib.sha256()
        with open(file, "rb", buffering=0) as stream:
            while size := stream.readinto(piece):
                digest.update(piece[:size])
        whole.update(digest.digest())
    return whole.hexdigest()


def digest_places(files: Sequence[Path]) -> str:
    """Return a digest of the paths of files and of when they changed. Only the machine's owner can
    choose these. It identifies files whose contents were checked before. Raises OSError."""
    whole = hashlib.sha256(f"places {_VERSIONS}".encode())
    for file in files:
        found = os.stat(file)
        facts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        whole.update(repr((os.path.realpath(file), *facts)).encode())
    return whole.hexdigest()


def default_folder() -> Path:
    """Return the folder of this user: `poplar-triton/loads` in the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "poplar-triton", "loads")


class KnownFiles:
    """The digests of files, each with the limits within which it was loaded. An entry that cannot
    be read or written raises no error."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Folder of the entries; it changes with the environment variables."""
        return self._folder or default_folder()

    def is_known(self, digest: str, limits: LoadLimits) -> bool:
        """Return whether files of this digest were loaded within limits as tight as `limits`."""
        found = self._read(digest)
        return found is not None and limits.covers(found)

    def have_loaded(self, files: Sequence[Path], limits: LoadLimits) -> bool:
        """Return whether these files, or others with the same contents, were loaded within limits
        as tight as `limits`. Raises OSError for files that cannot be read."""
        if self.is_known(digest_places(files), limits):
            return True
        if not self.is_known(digest_files(files), limits):
            return False
        self.remember(digest_places(files), limits)
        return True

    def remember_files(self, files: Sequence[Path], limits: LoadLimits) -> None:
        """Note that these files were loaded within `limits`. Raises OSError for files that cannot
        be read."""
        self.remember(digest_files(files), limits)
        self.remember(digest_places(files), limits)

    def remember(self, digest: str, limits: LoadLimits) -> None:
        """Note that files of this digest were loaded within `limits`."""
        with suppress(OSError):
            os.makedirs(self.folder, 0o700, exist_ok=True)
        with suppress(OSError), self._open_folder() as folder:
            if folder is None:
                return
            self._make_room(folder)
            # One write, and an unreadable entry counts as unknown, so no temporary file is needed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN
            new = os.open(digest, flags, 0o600, dir_fd=folder)
            with open(new, "wb", buffering=0) as stream:
                stream.write(json.dumps(asdict(limits)).encode())

    def _read(self, digest: str) -> LoadLimits | None:
        with suppress(OSError, ValueError, KeyError, TypeError), self._open_folder() as folder:
            if folder is None:
                return None
            with open(os.open(digest, os.O_RDONLY | _OPEN, dir_fd=folder), "rb") as stream:
                entry = json.loads(stream.read(_MAX_ENTRY_BYTES))
            return LoadLimits(float(entry["seconds"]), int(entry["memory_bytes"]))
        return None

    @contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """Yield a descriptor of the folder, or None for one that other users could have written to.
        Raises OSError."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            found = os.fstat(folder)
            is_mine = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
            if not is_mine:
                text = "%s is not used: expected user %d, mode 0700, found user %d, mode %04o"
                mode = stat.S_IMODE(found.st_mode)
                _log.warning(text, self.folder, os.geteuid(), found.st_uid, mode)
            yield folder if is_mine else None
        finally:
            os.close(folder)

    @staticmethod
    def _make_room(folder: int) -> None:
        names = os.listdir(folder)
        if len(names) < MAX_ENTRIES:
            return
        ages = []
        for name in names:
            with suppress(OSError):
                ages.append((os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns, name))
        for _, name in sorted(ages)[: MAX_ENTRIES // 2]:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


KNOWN_FILES = KnownFiles()
"""Known files of this user."""
