"""Atomic writing of files: under another name in the target's folder, then renamed.

Handles one file, or several that belong together; nothing here knows their content.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

AnyPath = str | os.PathLike[str]
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""Errors of renaming a folder to a name that is already taken."""
_LEFT_OVER = re.compile(r"\.(?P<name>.+)\.\d+\.[0-9a-f]{8}\.tmp", re.DOTALL)


class StagedFile:
    """A new file beside `target`, with the permissions of a plain open(); removed if it is dropped
    uncommitted.

    Every OSError of writing it, such as that of a full disk, names `target`.
    """

    def __init__(self, target: AnyPath) -> None:
        self.target = os.path.realpath(target)
        check_replaceable(self.target)
        folder, name = os.path.split(self.target)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        self.stream = create(temporary, self.target)
        self._temporary = temporary
        self.discard = weakref.finalize(self, _discard, self.stream, temporary)
        """Remove the new file; the target stays unchanged."""

    def finish(self) -> None:
        """Flush the whole file to the disk, still under the temporary name."""
        self.stream.flush()
        with _naming(self.target):
            os.fsync(self.stream.fileno())
        self.stream.close()

    def commit(self) -> None:
        """Rename the file to the target; call `finish` before."""
        with _naming(self.target):
            os.replace(self._temporary, self.target)
        self.discard.detach()


def check_replaceable(target: AnyPath) -> None:
    """Raise OSError for an existing target that is no regular file.

    Renaming a file to /dev/null replaces the device, for all programs, if root does it.
    """
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return  # it is not there, or the next operation reports it
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, "expected a file to replace, found a folder", os.fspath(target)
        )
    if not stat.S_ISREG(mode):
        raise FileExistsError(
            errno.EEXIST, "expected a file to replace, found a device or a pipe", os.fspath(target)
        )


class Staging:
    """Files of a folder that are replaced together, if the with statement ends without an error.

    They are replaced in the order in which they were opened or removed. After an error nothing has
    changed. An OSError names the file that it is about.
    """

    def __init__(self) -> None:
        self._files: dict[str, StagedFile | None] = {}

    def open(self, target: AnyPath) -> BinaryIO:
        """Return a file for the new content of `target`; it is closed at the end."""
        staged = StagedFile(target)
        self._files[staged.target] = staged
        return staged.stream

    def remove(self, target: AnyPath) -> None:
        """Remove `target` at the end."""
        self._files[os.path.realpath(target)] = None

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            for staged in self._files.values():
                if staged is not None:
                    staged.discard()

    def _commit(self) -> None:
        for target, staged in self._files.items():
            if os.path.isdir(target):  # renaming would find out when others had been replaced
                raise IsADirectoryError(
                    f"{target}: expected a file to replace, found a folder; remove it"
                )
            if staged is not None:
                staged.finish()
        for target, staged in self._files.items():
            if staged is not None:
                staged.commit()
            else:
                Path(target).unlink(missing_ok=True)


def create(path: AnyPath, target: AnyPath) -> BinaryIO:
    """Create a new file that will become `target`; every OSError of writing it names `target`."""
    return cast(BinaryIO, io.BufferedRandom(_NamedFile(os.fspath(path), os.fspath(target))))


def place_folder(staged: Path, target: Path, order: Sequence[str]) -> None:
    """Rename the folder `staged`, which holds files only, to `target`, atomically.

    On file systems that cannot rename folders, the files are copied into a new folder in this
    `order`. A program that looks for the last file then finds all or none. After an error the
    copies are removed. Raises FileExistsError, and changes nothing, if `target` exists.
    """
    for name in order:
        _sync(staged / name)
    _sync(staged)
    try:
        os.rename(staged, target)
    except OSError as error:
        if error.errno in _TAKEN:
            raise FileExistsError(error.errno, error.strerror, str(target)) from error
        # File systems differ in the error for an unsupported rename: ENOTSUP, EXDEV, EMFILE.
        target.mkdir()
        try:
            for name in order:
                _copy(staged / name, target / name)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    _sync(target.parent)


def place_file(staged: Path, target: Path) -> None:
    """Rename the file `staged` to `target`, which it replaces; copy it if the file system cannot
    rename."""
    _sync(staged)
    check_replaceable(target)
    try:
        os.replace(staged, target)
    except IsADirectoryError:
        raise
    except OSError:
        _copy(staged, target)
    _sync(target.parent)


def remove_left_overs(targets: Iterable[AnyPath]) -> None:
    """Remove the temporary files that killed writers of these files left; no writer may be
    active."""
    for target in map(Path, targets):
        for temporary in target.parent.glob(".*.tmp"):
            match = _LEFT_OVER.fullmatch(temporary.name)
            if match and match["name"] == target.name:
                temporary.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, _naming(str(target)), target.open("wb") as copy:
        shutil.copyfileobj(original, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _sync(path: Path) -> None:
    """Flush the file, or the entries of the folder, to disk; some file systems cannot do so for
    folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else _naming(str(path)):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _NamedFile(io.FileIO):
    def __init__(self, path: str, target: str) -> None:
        with _naming(target):
            super().__init__(path, "x+b")
        self._target = target

    def write(self, data: Any, /) -> int:
        with _naming(self._target):
            return super().write(data)


class _naming:
    """Context manager that sets the file of an OSError, which has another one or none, to
    `target`."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise type(error)(error.errno, error.strerror, self._target) from error


def _discard(stream: BinaryIO, temporary: str) -> None:
    # Closing writes the rest of the buffer, which fails again on a full disk.
    with suppress(OSError):
        stream.close()
    with suppress(FileNotFoundError):
        os.remove(temporary)
