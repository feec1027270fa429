"""Publishes a new version into a Triton model folder: a folder with the next number, created
atomically.

A server may look at any time, because it polls or is told to load the model. The numbered folder
therefore appears only when everything in it is written. In a new model folder config.pbtxt appears
after that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from simipu import CompileError

from popef._tools.staging import create, place_file, place_folder
from popef._tools.text import escape
from poprt.compile.compiler import Executable
from poprt.triton.config import ModelConfig
from poprt.triton.locks import lock_folder, make_scratch_folder
from poprt.triton.model_folder import ModelFolder, make_folders, note_executable

MAX_VERSION = 2**63 - 1
"""Maximum version number; a folder with a higher number ends Triton."""
_NUMBER = re.compile(r"\s*[+-]?([0-9]+)")
"""Pattern of what Triton takes for a version: a name that begins with a number, also "5.old"."""
_VERSION = re.compile("[1-9][0-9]*")
"""Pattern of version names whose folders Triton also finds."""
_SCRATCH = ".poprt-"
"""Prefix of scratch folders. It is not a number: Triton logs that it ignores such a folder."""
_MAX_RIVALS = 1_000
"""Maximum number of other publishers that may take the next number first."""
_CONFIG, _NAMES = "config.pbtxt", "name_map.json"


class NewVersion(ModelFolder):
    """New version in a model folder, which need not exist; several publishers may work at the same
    time.

    config.pbtxt is kept and must fit the new version, unless `overwrite_config` is set. The
    friendly names are those of the newest version that has a name_map.json.
    """

    def __enter__(self) -> NewVersion:
        find_newest(self.path)
        return self

    def write(self, compiled: Executable) -> list[str]:
        """Publish the model under the next free number and return a line for each file, like
        `ModelFolder.write`.

        Waits for other publishers, and for a poprt that writes into the folder without
        `new_version`. Raises OSError, and CompileError that lists all differences between
        config.pbtxt and the new version; the folder is then unchanged.
        """
        self._look()
        self._settle(compiled)
        with ExitStack() as held:
            make_folders(self.path, held)
            scratch = held.enter_context(make_scratch_folder(self.path, _SCRATCH))
            staged = scratch / "version"
            staged.mkdir()
            order = self._export(compiled, staged)
            held.enter_context(lock_folder(self.path, wait=True))
            return self._publish(compiled, scratch, order)

    def _publish(self, compiled: Executable, scratch: Path, order: list[str]) -> list[str]:
        """Publish the exported version.

        The caller keeps other publishers out if the file system has locks.
        """
        self._look()  # again: others may have published since
        names_file, staged = self._names_file, scratch / "version"
        texts = self._settle(compiled)
        with create(staged / _NAMES, self.version / _NAMES) as file:
            file.write(names_file.read_bytes() if texts.names is None else texts.names)
        if texts.config is not None:
            with create(scratch / _CONFIG, self._config_file) as file:
                file.write(texts.config)
        version = self._place(staged, [_NAMES, *order])
        note_executable(compiled, version)
        if texts.config is not None:
            place_file(scratch / _CONFIG, self._config_file)
        names = f"wrote {version / _NAMES}"
        return [
            *(f"wrote {version / name}" for name in reversed(order)),
            names if texts.names is not None else f"{names}, as {names_file} has it",
            f"{'kept' if texts.config is None else 'wrote'} {self._config_file}",
        ]

    def _export(self, compiled: Executable, staged: Path) -> list[str]:
        """Write the PopEF files and return their names in the order in which they may appear.

        A server looks for the executable, which is last.
        """
        order = [*(["weights.popef"] if compiled.weights else []), "executable.popef"]
        with ExitStack() as held:
            streams = [
                held.enter_context(create(staged / name, self.version / name)) for name in order
            ]
            compiled.export(*reversed(streams))
        return order

    def _place(self, staged: Path, order: list[str]) -> Path:
        first = find_newest(self.path) + 1
        for number in range(first, first + _MAX_RIVALS):
            version = self.path / str(number)
            try:
                place_folder(staged, version, order)
            except FileExistsError:  # a publisher on another machine, which no lock keeps out
                continue
            return version
        raise CompileError(
            f"model folder {escape(self.path)}: expected a free number from {first} on, found none "
            f"in {_MAX_RIVALS}; look what takes them"
        )

    def _look(self) -> None:
        """Find the next version, and the version whose names are kept."""
        self.version = self.path / str(find_newest(self.path) + 1)
        named = [
            file for file in self.path.glob(f"*/{_NAMES}") if _VERSION.fullmatch(file.parent.name)
        ]
        newest = max(named, key=lambda file: int(file.parent.name), default=None)
        self._names_file = newest or self.version / _NAMES

    def _check_config(
        self, kept: ModelConfig, compiled: Executable, names: Mapping[str, str]
    ) -> None:
        path = (
            kept.parameters["executable_path"].string_value
            if "executable_path" in kept.parameters
            else ""
        )
        if path and not self._is_ours(path):
            what = (
                f"executable_path {path!r} is one file for all versions, so that a new one "
                "changes nothing"
            )
            self._refuse(self._config_file, iter([what]))
        super()._check_config(kept, compiled, names)

    def _find(self, name: str) -> Path | None:
        """Return the file of a relative path; the new version folder will have only the name
        map."""
        if os.path.normpath(name) == _NAMES and self._names_file.is_file():
            return self._names_file
        return self.path / name if (self.path / name).is_file() else None


def publish_version(
    compiled: Executable, folder: str | Path, *, overwrite_config: bool = False
) -> list[str]:
    """Make a new version in the model folder `folder`, like `NewVersion.write`."""
    with NewVersion(folder, overwrite_config=overwrite_config) as held:
        return held.write(compiled)


def find_newest(folder: Path) -> int:
    """Return the highest number of an entry of a model folder, 0 if there is none.

    Raises CompileError if Triton could not count on from that number.
    """
    names = [entry.name for entry in os.scandir(folder)] if folder.is_dir() else []
    newest = max(
        (number for name in names if (number := _read_number(name)) is not None), default=0
    )
    if newest >= MAX_VERSION:
        raise CompileError(
            f"model folder {escape(folder)}: expected version numbers below {MAX_VERSION}, found "
            f"{escape(newest, 100)}; remove that folder: a higher number ends Triton"
        )
    return newest


def _read_number(name: str) -> int | None:
    match = _NUMBER.match(name)
    return int(match[1]) if match else None
