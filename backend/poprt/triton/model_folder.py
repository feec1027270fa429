"""Writes Triton model folders: config.pbtxt, name_map.json and the PopEF files of a version.

`ModelFolder` writes version 1. Existing config.pbtxt and name_map.json are kept, because a user may
have edited them. They are checked against the new executable, and nothing is replaced unless they
fit it. All files are replaced together, the executable last.

`NewVersion` publishes a folder with the next number. A server may look at any time, because it
polls or is told to load the model. The numbered folder therefore appears only when everything in it
is written. In a new model folder config.pbtxt appears after that.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from simipu import CompileError

import popef
from popef._tools.staging import Staging, create, place_file, place_folder, remove_left_overs
from popef._tools.text import escape, find_name_fault, find_shell_fault
from popef._tools.zero_requests import make_curl
from popef.name_map import read_names
from poprt.compile.executable import Executable
from poprt.triton.config import (
    KINDS,
    ModelConfig,
    encode_config,
    iter_differences,
    iter_policy_differences,
    make_config,
    read_config,
    user_anchors,
)


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock an existing folder; if another process holds it, raise BlockingIOError, or `wait` for
    it.

    Yields False if the file system has no locks, as some network file systems: there the folder is
    not protected.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


@contextmanager
def make_scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a new folder in `parent` that exists until the with statement ends.

    Folders that killed processes left are removed first.
    """
    with ExitStack() as stack:
        # The parent is locked, so that no process sees a new folder before it is locked.
        with lock_folder(parent, wait=True):
            for old_folder in parent.glob(f"{prefix}*"):
                with (
                    suppress(BlockingIOError, NotADirectoryError, FileNotFoundError),
                    lock_folder(old_folder) as held_by_nobody,
                ):
                    if held_by_nobody:
                        shutil.rmtree(old_folder, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(lock_folder(folder))
        yield folder


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


VERSION = "1"
_CONFIG, _NAMES = "config.pbtxt", "name_map.json"
_WEIGHTS, _EXECUTABLE = "weights.popef", "executable.popef"
ADDRESS = "127.0.0.1:8000"
"""Address of the HTTP of `poplar-triton serve` with its default port."""


Texts = tuple[bytes | None, bytes | None]
"""New contents of name_map.json and config.pbtxt; None for an existing file that is kept."""


class ModelFolder:
    """Model folder that is locked against other poprt processes during the with statement; removed
    if it stays empty.

    `overwrite_config` also replaces config.pbtxt and name_map.json. `queue_timeout_ms` is how long
    the configuration lets requests wait (None: no limit). Raises CompileError if another process
    writes into the folder, and for a name that a file or a terminal could not show.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        overwrite_config: bool = False,
        queue_timeout_ms: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.version = self.path / VERSION
        self.name = os.path.basename(os.path.abspath(self.path))
        """Name of the model."""
        if fault := find_name_fault(self.name) or find_shell_fault(self.name):
            raise CompileError(
                f"model folder {escape(self.path)}: its name is the model's: {fault}; rename it"
            )
        self._overwrite = overwrite_config
        self._queue_timeout_ms = queue_timeout_ms
        self._held = ExitStack()
        self._config_file = self.path / _CONFIG
        self._names_file = self.version / _NAMES

    def __enter__(self) -> ModelFolder:
        with ExitStack() as stack:
            make_folders(self.version, stack)
            try:
                alone = stack.enter_context(lock_folder(self.path))
            except BlockingIOError:
                raise CompileError(
                    f"model folder {escape(self.path)}: another poprt writes into it; wait for it, "
                    "or give another folder"
                ) from None
            if alone:
                remove_left_overs([self._config_file, self._names_file, *self._popef_files()])
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def write(self, compiled: Executable) -> list[str]:
        """Write the model and return a line for each file: whether it was written or kept.

        Raises CompileError, which lists all differences between a kept file and the new executable;
        the folder is then unchanged.
        """
        names, config = self._settle(compiled)
        weights, executable = self._popef_files()
        with Staging() as staging:
            for text, file in ((names, self._names_file), (config, self._config_file)):
                if text is not None:
                    staging.open(file).write(text)
            if not compiled.weights:
                staging.remove(weights)
            _stage(staging, compiled, self.version)
        _note(compiled, self.version)
        lines = [f"wrote {file}" for file in (executable, weights)[: 1 + bool(compiled.weights)]]
        return [
            *lines,
            f"{'kept' if names is None else 'wrote'} {self._names_file}",
            f"{'kept' if config is None else 'wrote'} {self._config_file}",
        ]

    def describe_use(self) -> list[str]:
        """Return lines with the commands that serve the written model and send it a request."""
        from google.protobuf.json_format import MessageToDict  # few commands write a folder

        message = read_config(self._config_file)
        config = MessageToDict(message, preserving_proto_field_name=True)
        lines = [f"serve it: poplar-triton serve {shlex.quote(escape(self.path.parent))}"]
        # A kept configuration may leave its inputs to Triton, which reads them from the PopEF file.
        if config.get("input"):
            with suppress(ValueError):
                lines.append(f"ask it: {make_curl(ADDRESS, self.name, config)}")
        tensors = [tensor for field in KINDS for tensor in config.get(field, ())]
        if any(tensor["data_type"] == "TYPE_FP16" for tensor in tensors):
            lines.append(
                "its inputs or outputs are FP16, which Triton does not carry in JSON: send them in "
                "binary, or compile with --io_precision fp32"
            )
        return lines

    def _settle(self, compiled: Executable) -> Texts:
        """Return the texts to write with the executable.

        Raises CompileError if a kept file does not fit it.
        """
        _check_names(compiled)
        names, kept_names = self._find_names(compiled)
        kept_config = not self._overwrite and self._config_file.exists()
        if kept_config:
            self._check_config(read_config(self._config_file), compiled, names)
        config = None
        if not kept_config:
            model_config = make_config(self.name, compiled, names, self._queue_timeout_ms)
            config = encode_config(model_config).encode()
        return None if kept_names else (json.dumps(names, indent=4) + "\n").encode(), config

    def _popef_files(self) -> tuple[Path, Path]:
        """Return the PopEF files in the order in which they are replaced.

        A server looks for the executable, which is last.
        """
        return self.version / _WEIGHTS, self.version / _EXECUTABLE

    def _find_names(self, compiled: Executable) -> tuple[dict[str, str], bool]:
        """Return the friendly names of all anchors, and whether they come from a kept file."""
        names = {anchor.name(): anchor.name() for anchor in user_anchors(compiled)}
        if self._overwrite or not self._names_file.exists():
            return names, False
        return self._merge_names(self._names_file, names), True

    def _merge_names(self, file: Path, names: Mapping[str, str]) -> dict[str, str]:
        try:
            own_names = read_names(file)
        except popef.PopefError as error:
            raise CompileError(f"{error}, or have --overwrite_config write it anew") from error
        self._refuse(file, _iter_name_differences(own_names, names))
        return {**names, **own_names}

    def _check_config(
        self, kept: ModelConfig, compiled: Executable, names: Mapping[str, str]
    ) -> None:
        if self._queue_timeout_ms is not None:
            self._refuse(self._config_file, iter_policy_differences(kept, self._queue_timeout_ms))
        paths = {key: value.string_value for key, value in kept.parameters.items()}
        if (path := paths.get("executable_path")) and not self._is_ours(path):
            return  # it serves another executable than the one written here
        if path := paths.get("name_map_file_path"):
            file = self._find(path)
            if file is None:
                self._refuse(self._config_file, [f"name_map_file_path {path!r} is not there"])
            else:
                names = self._merge_names(
                    file, {anchor.name(): anchor.name() for anchor in user_anchors(compiled)}
                )
        self._refuse(self._config_file, iter_differences(kept, compiled, names))

    def _is_ours(self, path: str) -> bool:
        ours = self._popef_files()[1]
        return os.path.realpath(self._find(path) or self.version / path) == os.path.realpath(ours)

    def _find(self, name: str) -> Path | None:
        """Return the file of a relative path in the version folder, or else in the model folder."""
        return next(
            (folder / name for folder in (self.version, self.path) if (folder / name).is_file()),
            None,
        )

    def _refuse(self, file: Path, differences: Iterable[str]) -> None:
        if listed := "; ".join(differences):
            raise CompileError(
                escape(
                    f"{file} is kept and does not fit the new executable, so nothing was "
                    f"replaced: {listed}; edit it, give another folder, or have --overwrite_config "
                    "write it anew"
                )
            )


def write_triton_model(
    compiled: Executable, folder: str | Path, *, overwrite_config: bool = False
) -> list[str]:
    """Write the model folder `folder`, as `ModelFolder.write` does."""
    with ModelFolder(folder, overwrite_config=overwrite_config) as model_folder:
        return model_folder.write(compiled)


def write_executable(compiled: Executable, folder: Path) -> list[str]:
    """Write executable.popef and, if weights are streamed, weights.popef into a folder, and let
    servers know them. Return a line for each file."""
    with Staging() as staging:
        _stage(staging, compiled, folder)
    _note(compiled, folder)
    names = (_EXECUTABLE, _WEIGHTS)[: 1 + bool(compiled.weights)]
    return [f"wrote {folder / name}" for name in names]


def _stage(staging: Staging, compiled: Executable, folder: Path) -> None:
    """Write executable.popef and, if weights are streamed, weights.popef.

    weights.popef is replaced just before executable.popef.
    """
    weights = staging.open(folder / _WEIGHTS) if compiled.weights else None
    compiled.export(staging.open(folder / _EXECUTABLE), weights)


def _note(compiled: Executable, folder: Path) -> None:
    """Let servers know the files that _stage wrote."""
    names = (_EXECUTABLE, _WEIGHTS)[: 1 + bool(compiled.weights)]
    compiled.note_loadable([folder / name for name in names])


def _check_names(compiled: Executable) -> None:
    for anchor in user_anchors(compiled):
        if fault := find_name_fault(anchor.name()):
            kind = next(field for field, direction in KINDS.items() if direction == anchor.type())
            raise CompileError(
                f"{kind} '{escape(anchor.name(), 100)}': {fault}; rename it in the ONNX model"
            )


def _iter_name_differences(given: Mapping[str, str], names: Mapping[str, str]) -> Iterator[str]:
    for anchor in given:
        if anchor not in names:
            yield f"{anchor!r} is no input or output, which are {', '.join(map(repr, names))}"
    owners: dict[str, str] = {}
    for anchor, friendly in {
        **names,
        **{anchor: given[anchor] for anchor in names if anchor in given},
    }.items():
        if owners.setdefault(friendly, anchor) != anchor:
            yield f"{owners[friendly]!r} and {anchor!r} are both called {friendly!r}"


def make_folders(folder: Path, held: ExitStack) -> None:
    """Make `folder` and its missing parents; those that are empty when `held` ends are removed."""
    for parent in (*reversed(folder.parents), folder):
        if not parent.exists():
            parent.mkdir(exist_ok=True)
            held.callback(_remove_empty, parent)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


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


class NewVersion(ModelFolder):
    """New version in a model folder, which need not exist; several publishers may work at the same
    time.

    config.pbtxt is kept and must fit the new version, unless `overwrite_config` is set. The
    friendly names are those of the newest version that has a name_map.json and an
    executable.popef.
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
        with ExitStack() as stack:
            make_folders(self.path, stack)
            scratch = stack.enter_context(make_scratch_folder(self.path, _SCRATCH))
            staged = scratch / "version"
            staged.mkdir()
            order = self._export(compiled, staged)
            stack.enter_context(lock_folder(self.path, wait=True))
            return self._publish(compiled, scratch, order)

    def _publish(self, compiled: Executable, scratch: Path, order: list[str]) -> list[str]:
        """Publish the exported version.

        The caller keeps other publishers out if the file system has locks.
        """
        self._look()  # again: others may have published since
        names_file, staged = self._names_file, scratch / "version"
        names, config = self._settle(compiled)
        with create(staged / _NAMES, self.version / _NAMES) as file:
            file.write(names_file.read_bytes() if names is None else names)
        if config is not None:
            with create(scratch / _CONFIG, self._config_file) as file:
                file.write(config)
        version = self._place(staged, [_NAMES, *order])
        _note(compiled, version)
        if config is not None:
            place_file(scratch / _CONFIG, self._config_file)
        message = f"wrote {version / _NAMES}"
        return [
            *(f"wrote {version / name}" for name in reversed(order)),
            message if names is not None else f"{message}, as {names_file} has it",
            f"{'kept' if config is None else 'wrote'} {self._config_file}",
        ]

    def _export(self, compiled: Executable, staged: Path) -> list[str]:
        """Write the PopEF files and return their names in the order in which they may appear.

        A server looks for the executable, which is last.
        """
        order = [*([_WEIGHTS] if compiled.weights else []), _EXECUTABLE]
        with ExitStack() as stack:
            streams = [
                stack.enter_context(create(staged / name, self.version / name)) for name in order
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
            f"in {_MAX_RIVALS}; find out which process makes versions"
        )

    def _look(self) -> None:
        """Find the next version, and the version whose names are kept."""
        self.version = self.path / str(find_newest(self.path) + 1)
        # Where files are copied, the map may be incomplete until the executable, the last, appears.
        numbered = [
            file
            for file in self.path.glob(f"*/{_NAMES}")
            if _VERSION.fullmatch(file.parent.name) and (file.parent / _EXECUTABLE).exists()
        ]
        newest = max(numbered, key=lambda file: int(file.parent.name), default=None)
        self._names_file = newest or self.version / _NAMES

    def _check_config(
        self, kept: ModelConfig, compiled: Executable, names: Mapping[str, str]
    ) -> None:
        paths = {key: value.string_value for key, value in kept.parameters.items()}
        path = paths.get("executable_path")
        if path and not self._is_ours(path):
            what = (
                f"executable_path {path!r} is one file for all versions, so that a new one "
                "changes nothing"
            )
            self._refuse(self._config_file, [what])
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
    with NewVersion(folder, overwrite_config=overwrite_config) as version_folder:
        return version_folder.write(compiled)


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
