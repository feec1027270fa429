"""Files that take their places whole or not at all: written beside their place under another name, then
renamed.

One file or several that belong together; nothing here knows what is in them.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

AnyPath = str | os.PathLike[str]
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""What renaming a folder to a name says that something else has."""
_LEFT_OVER = re.compile(r"\.(?P<name>.+)\.\d+\.[0-9a-f]{8}\.tmp", re.DOTALL)


class StagedFile:
    """A new file beside `target`, with the permissions a plain open() would give; gone when it is dropped
    uncommitted.

    Every OSError of writing it, such as a full disk's, names `target`.
    """

    def __init__(self, target: AnyPath) -> None:
        self.target = os.path.realpath(target)
        folder, name = os.path.split(self.target)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        self.stream = create(temporary, self.target)
        self._temporary = temporary
        self.discard = weakref.finalize(self, _discard, self.stream, temporary)
        """Gives up: the target stays as it was."""

    def finish(self) -> None:
        """All of it is on the disk afterwards, still under the other name."""
        self.stream.flush()
        with _naming(self.target):
            os.fsync(self.stream.fileno())
        self.stream.close()

    def commit(self) -> None:
        """Take the target's place; `finish` comes before."""
        with _naming(self.target):
            os.replace(self._temporary, self.target)
        self.discard.detach()


class Staging:
    """Files of a folder that are replaced together, in the order in which they were opened or removed, when
    the with statement ends well; otherwise nothing has changed. An OSError names the file that it is
    about."""

    def __init__(self) -> None:
        self._files: dict[str, StagedFile | None] = {}

    def open(self, target: AnyPath) -> BinaryIO:
        """Where the new content of `target` is written; it is closed at the end."""
        staged = StagedFile(target)
        self._files[staged.target] = staged
        return staged.stream

    def remove(self, target: AnyPath) -> None:
        """`target` will not be there any more."""
        self._files[os.path.realpath(target)] = None

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
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
                raise IsADirectoryError(f"{target}: expected a file to replace, found a folder; remove it")
            if staged is not None:
                staged.finish()
        for target, staged in self._files.items():
            if staged is not None:
                staged.commit()
            else:
                Path(target).unlink(missing_ok=True)


def create(path: AnyPath, target: AnyPath) -> BinaryIO:
    """A new file on its way to `target`, which every OSError of writing it names."""
    return cast(BinaryIO, io.BufferedRandom(_NamedFile(os.fspath(path), os.fspath(target))))


def place_folder(staged: Path, target: Path, order: Sequence[str]) -> None:
    """Give the folder `staged`, which holds files only, the name `target`: it is there whole or not at all.

    Where the file system renames no folder, the files are copied into a new one in this `order`, so that
    whoever looks for the last one finds all or is refused; what an error leaves of it goes again. Raises
    FileExistsError, and changes nothing, where `target` is there already.
    """
    for name in order:
        _sync(staged / name)
    _sync(staged)
    try:
        os.rename(staged, target)
    except OSError as error:
        if error.errno in _TAKEN:
            raise FileExistsError(error.errno, error.strerror, str(target)) from error
        # Which error a file system has for what it cannot do is its own affair: ENOTSUP, EXDEV, EMFILE.
        target.mkdir()
        try:
            for name in order:
                _copy(staged / name, target / name)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    _sync(target.parent)


def place_file(staged: Path, target: Path) -> None:
    """Give the file `staged` the name `target`, in whose place it is; a copy where the file system renames
    none."""
    _sync(staged)
    try:
        os.replace(staged, target)
    except IsADirectoryError:
        raise
    except OSError:
        _copy(staged, target)
    _sync(target.parent)


def remove_left_overs(targets: Iterable[AnyPath]) -> None:
    """Remove what killed writers of these files left beside them; nobody may be writing them."""
    for target in map(Path, targets):
        for left in target.parent.glob(".*.tmp"):
            match = _LEFT_OVER.fullmatch(left.name)
            if match and match["name"] == target.name:
                left.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as given, _naming(str(target)), target.open("wb") as copy:
        shutil.copyfileobj(given, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _sync(path: Path) -> None:
    """Have the file, or what a folder lists, on the disk; some file systems cannot do that to folders."""
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
    """Names the file in an OSError, which tells another one or none."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise type(error)(error.errno, error.strerror, self._target) from error


def _discard(stream: BinaryIO, temporary: str) -> None:
    # Closing writes what is left, which a full disk refuses once more.
    with suppress(OSError):
        stream.close()
    with suppress(FileNotFoundError):
        os.remove(temporary)
