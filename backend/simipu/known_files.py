"""Cache of files that were loaded within limits before, by digests of the files and of how they
were loaded: a folder of the user with a small file for each, which holds the limits.

One file may hold several executables, and options change what a load does with them. A load that is
known says nothing of a load of another executable, or with other options.

The digests are those of the files that were loaded: whoever loads a file says which one it was
(`FileState`), so a file that takes another's path meanwhile does not become known for it.

Entries that another user can write are not trusted (`private_folder`). Without such a folder no
file is known, and none is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import onnxruntime

from popef._tools.file_state import FileState
from simipu.accelerators import describe_engines
from simipu.engines.computed import GraphOptions
from simipu.processes.private_folder import PrivateFolder, find_cache_folder
from simipu.version import find_onnx_version, package_hash

MAX_ENTRIES = 4096
"""Maximum number of entries; beyond it the older half is removed."""
MIN_SECONDS = 1.0
"""Minimum time limit that is remembered of a file: a shorter load is as fast on no busy machine."""
SETTLED_SECONDS = 60.0
"""Time since a file's last change after which its times identify its contents. A program that has
mapped the file for writing changes it without new times until the kernel has written the page to
the disk, which takes half of this time (vm.dirty_expire_centisecs)."""
_MAX_ENTRY_BYTES = 200
_PIECE_BYTES = 1 << 20
"""Bytes of a file that are read at a time."""
_VERSIONS = f"2 {package_hash()} {find_onnx_version()} {onnxruntime.__version__}"
"""Version of the entries' format and of the packages that load files; another version may take
longer."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Time and memory limits within which a file was loaded, or must be loaded."""

    seconds: float
    memory_bytes: int

    def covers(self, other: LoadLimits) -> bool:
        """Return whether a load within `other` is also within these limits."""
        return other.seconds <= self.seconds and other.memory_bytes <= self.memory_bytes


_INDIFFERENT = frozenset(
    ("caches", "limit_seconds", "memory_bytes", "num_threads", "ready_seconds")
)
"""Options without effect on what a load does. Two are limits, which each entry holds. More threads
make a load faster at most by their number, and a longer run only admits more graphs."""


@dataclass(frozen=True, slots=True)
class FileLoad:
    """A load of files: the name of the executable in them that is loaded, and the options."""

    executable: str
    options: GraphOptions

    @property
    def limits(self) -> LoadLimits:
        """Limits of the load."""
        return LoadLimits(self.options.ready_seconds, self.options.memory_bytes)

    def within(self, seconds: float) -> FileLoad:
        """Return the load with the time that it took as its limit: it needs no child process within
        any limit above."""
        limit = min(self.options.ready_seconds, max(seconds, MIN_SECONDS))
        return FileLoad(self.executable, replace(self.options, ready_seconds=limit))

    def describe(self) -> str:
        """Return all that the load depends on besides the files and its limits."""
        options = {
            option.name: getattr(self.options, option.name)
            for option in fields(GraphOptions)
            if option.name not in _INDIFFERENT
        }
        return repr((self.executable, options, describe_engines(self.options.accelerators)))


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """Files of a model, in their order, and the states that they had when they were opened for the
    load."""

    paths: Sequence[Path]
    states: Sequence[FileState | None]

    @classmethod
    def at(cls, paths: Sequence[Path]) -> LoadedFiles:
        """Return the files that are at these paths now. Raises OSError."""
        return cls(paths, [FileState.of(path) for path in paths])

    def digest(self, load: str = "") -> str:
        """Return a digest of the contents of the files and of a load's description. Raises OSError,
        also for a file that is not the one that was loaded."""
        digest = hashlib.sha256(repr((_VERSIONS, load)).encode())
        for path, state in zip(self.paths, self.states, strict=True):
            digest.update(_digest_file(path, state))
        return digest.hexdigest()

    def digest_places(self, load: str = "") -> str:
        """Return a digest of the paths and states of the files, and of a load's description. It
        identifies files whose contents were checked before. Only the machine's owner can choose
        paths and times."""
        digest = hashlib.sha256(repr(("places", _VERSIONS, load)).encode())
        for path, state in zip(self.paths, self.states, strict=True):
            digest.update(repr((os.path.realpath(path), *(state or ()))).encode())
        return digest.hexdigest()

    @property
    def are_settled(self) -> bool:
        """Whether the last change of each file is so long ago that the states identify the
        contents."""
        latest_ns = time.time_ns() - SETTLED_SECONDS * 1e9
        return all(
            state is not None and max(state.modified_ns, state.changed_ns) < latest_ns
            for state in self.states
        )


def _digest_file(path: Path, state: FileState | None) -> bytes:
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with open(path, "rb", buffering=0) as stream:
        while size := stream.readinto(piece):
            digest.update(piece[:size])
        if FileState.of(stream.fileno()) != state:
            raise OSError(
                f"{path}: the file was exchanged or written to while it was loaded; load it again"
            )
    return digest.digest()


class KnownFiles:
    """The digests of files, each with the limits within which it was loaded. An entry that cannot
    be read or written raises no error."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Folder of the entries; it changes with the environment variables."""
        return self._folder or find_cache_folder("loads")

    def is_known(self, digest: str, limits: LoadLimits) -> bool:
        """Return whether files of this digest were loaded within limits as tight as `limits`."""
        entry = self._read(digest)
        return entry is not None and limits.covers(entry)

    def have_loaded(self, files: LoadedFiles, load: FileLoad) -> bool:
        """Return whether these files, or others with the same contents, were loaded in the same way
        within limits as tight as those of `load`. Raises OSError for files that cannot be read, or
        are not those that were opened."""
        kind = load.describe()
        if self.is_known(files.digest_places(kind), load.limits):
            return True
        if not self.is_known(files.digest(kind), load.limits):
            return False
        self._remember_places(files, load)
        return True

    def remember_files(self, files: LoadedFiles, load: FileLoad) -> None:
        """Note that these files were loaded. Raises OSError for files that cannot be read, or are
        no longer those that were loaded."""
        self.remember(files.digest(load.describe()), load.limits)
        self._remember_places(files, load)

    def _remember_places(self, files: LoadedFiles, load: FileLoad) -> None:
        if files.are_settled:
            self.remember(files.digest_places(load.describe()), load.limits)

    def remember(self, digest: str, limits: LoadLimits) -> None:
        """Note that files of this digest were loaded within `limits`."""
        with suppress(OSError):
            self._store.write(digest, [json.dumps(asdict(limits)).encode()])

    def _read(self, digest: str) -> LoadLimits | None:
        with suppress(ValueError, KeyError, TypeError):
            entry = json.loads(bytes(self._store.read(digest) or b""))
            return LoadLimits(float(entry["seconds"]), int(entry["memory_bytes"]))
        return None

    @property
    def _store(self) -> PrivateFolder:
        max_bytes = MAX_ENTRIES * _MAX_ENTRY_BYTES
        return PrivateFolder(self.folder, MAX_ENTRIES, max_bytes, _MAX_ENTRY_BYTES)


KNOWN_FILES = KnownFiles()
"""Known files of this user."""
