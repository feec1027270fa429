"""Checks of the paths that a command reads and writes, before its work begins: a report that cannot
be written must not be noticed after minutes of work, and a misspelt path is named with the nearest
one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import islice
from typing import Literal, TypeAlias

from .text import find_near, name_some

Kind: TypeAlias = Literal["file", "folder", "path"]
"""What a path must be; "path": a file or a folder."""
AnyPath: TypeAlias = str | os.PathLike[str]
_MAX_ENTRIES = 1_000
"""Maximum number of names of a folder among which a misspelt one is looked for."""


def check_input(path: AnyPath, expected: Kind) -> None:
    """Check that a path to be read is there and of the expected kind; "path" means either.

    Raises FileNotFoundError with the nearest name, IsADirectoryError, NotADirectoryError, or
    another OSError; each names the path.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        hint = did_you_mean_path(os.fspath(path))
        raise FileNotFoundError(error.errno, f"{error.strerror}{hint}", os.fspath(path)) from None
    if stat.S_ISDIR(mode) and expected == "file":
        raise IsADirectoryError(errno.EISDIR, describe_folder(path), os.fspath(path))
    if not stat.S_ISDIR(mode) and expected == "folder":
        raise NotADirectoryError(errno.ENOTDIR, "expected a folder, found a file", os.fspath(path))


def describe_folder(folder: AnyPath) -> str:
    """Return what is wrong with a folder where a file is expected, with the models in it."""
    from .file_kinds import name_models

    models = name_models(folder, ".popef", ".onnx")
    further = f"; name a file in it: {name_some(models)}" if models else ""
    return f"expected a file, found a folder{further}"


def check_output(path: AnyPath, expected: Kind) -> None:
    """Check that a path can be written: a file into a folder that is there, a folder, or what may
    be either, with those above it anywhere.

    Raises FileNotFoundError with the nearest name, IsADirectoryError, NotADirectoryError, or
    another OSError; each names the path.
    """
    name = os.fspath(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        os.stat(name)
    parent = os.path.dirname(name.rstrip("/")) or "."
    if os.path.isdir(name):
        if expected == "file":
            raise IsADirectoryError(errno.EISDIR, "expected a file to write, found a folder", name)
        return
    if expected == "file":
        check_input(parent, "folder")
        return
    if os.path.exists(name):
        if expected == "path":
            return
        raise NotADirectoryError(errno.ENOTDIR, "expected a folder, found a file", name)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent) or "."
    check_input(parent, "folder")


def did_you_mean_path(path: str) -> str:
    """Return "; did you mean X?" with the nearest path that exists, if one part of `path` is
    misspelt; else ""."""
    folder, name = os.path.split(path.rstrip("/"))
    rest = ""
    while folder and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        rest = os.path.join(name, rest) if rest else name
        folder, name = os.path.split(folder)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except OSError:
        return ""
    near = find_near(name, names)
    candidate = os.path.join(folder, near, *filter(None, [rest])) if near else ""
    return f"; did you mean {candidate}?" if candidate and os.path.exists(candidate) else ""
