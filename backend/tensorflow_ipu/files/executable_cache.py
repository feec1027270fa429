"""Cache of compiled computations in a folder, shared by all processes that name it.

A computation is one file, `<hash>.poplar_exec`. Processes that need the same one wait for the first
of them to compile it: `<hash>.compile_lock` is held while a computation is compiled, and
`<hash>.read_lock` while its file is written (exclusively) or read (shared). Entries come from
strangers: one that cannot be read is compiled anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from simipu import package_hash, registered_libraries

from popef._tools.arrays import Array
from popef._tools.staging import Staging
from tensorflow_ipu.files.executable_description import (
    EntryDescription,
    EntryKind,
    ExecutableDescription,
    FeedDescription,
    TensorDescription,
    unmangle_name,
)
from tensorflow_ipu.files.executable_message import ExecutableFileError
from tensorflow_ipu.files.popef_files import (
    StoredExecutable,
    read_executable,
    write_executable,
)

SUFFIX: Final = ".poplar_exec"
_HASH_BYTES: Final = 8
_TYPES: Final = {
    "bool": "PRED",
    "int8": "S8",
    "int16": "S16",
    "int32": "S32",
    "int64": "S64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""Element types in the description of a serialized computation, by numpy's names."""
_log = logging.getLogger("tensorflow_ipu")


def hash_computation(
    graph: bytes, weights: Mapping[str, Array] | None = None, settings: Iterable[Any] = ()
) -> str:
    """Return the name of a computation: 64 bits in hexadecimal, without leading zeros.

    Equal computations have equal names in every process. The version of the compiler and the
    registered libraries of custom operators are part of it.

    Args:
        graph: The computation, as bytes that are equal for equal computations.
        weights: Values by name that are compiled in and are not part of `graph`.
        settings: Other values that the executable depends on, such as options and the device's
            number; the text of each is hashed.

    Returns:
        The name, such as "1c3f0a9be2d40771".
    """
    parts = [repr((package_hash(), registered_libraries())).encode(), graph]
    parts += [repr(setting).encode() for setting in settings]
    for name, value in sorted((weights or {}).items()):
        array = np.ascontiguousarray(value)
        parts.append(repr((name, array.dtype.str, array.shape)).encode())
        parts.append(array.tobytes())
    # A digest of digests: where one part ends and the next begins is part of it.
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return f"{int.from_bytes(digest.digest()[:_HASH_BYTES], 'little'):x}"


class ExecutableCache:
    """A folder of compiled computations."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder.

        Args:
            folder: The folder; it is made when the first computation is compiled.
        """
        self.folder = Path(folder)

    def find_file(self, name: str) -> Path:
        """Return the path of a computation's file, which may be missing.

        Args:
            name: What `hash_computation` returned.
        """
        return self.folder / f"{name}{SUFFIX}"

    def get_or_compile(
        self, name: str, compile_it: Callable[[], StoredExecutable]
    ) -> StoredExecutable:
        """Return a computation from the folder; compile it and write its file if there is none.

        Args:
            name: What `hash_computation` returned.
            compile_it: Function that compiles the computation; called at most once.

        Returns:
            The computation. If the folder cannot be used, a warning says so and the computation is
            compiled without it.
        """
        stored: StoredExecutable | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock(name, "compile_lock"):
                stored = self._read(name)
                if stored is None:
                    stored = compile_it()
                    self._write(name, stored)
                return stored
        except OSError as error:
            _log.warning(
                "The executable cache %s cannot be used: %s: %s",
                self.folder,
                error.filename,
                error.strerror,
            )
        return stored or compile_it()

    def _read(self, name: str) -> StoredExecutable | None:
        file = self.find_file(name)
        if not file.is_file():
            return None
        with self._lock(name, "read_lock", fcntl.LOCK_SH):
            try:
                stored = read_executable(file, name)
            except ExecutableFileError as error:
                _log.warning("The cached executable is compiled again: %s", error)
                return None
        _log.info("Loaded the executable %s instead of compiling it", file)
        return stored

    def _write(self, name: str, stored: StoredExecutable) -> None:
        with self._lock(name, "read_lock"):
            write_executable(stored, self.find_file(name))

    @contextmanager
    def _lock(self, name: str, suffix: str, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Hold a lock file; it is left in the folder, as the real stack leaves it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.folder / f"{name}.{suffix}", flags, 0o666)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)


def serialize_module(stored: StoredExecutable, folder: str | os.PathLike[str]) -> Path:
    """Write a computation to the folder of `IPUConfig.serialization_output_folder`.

    Two files are written: `<hash>.ipu_bin` in PopEF, and `<hash>.json`, which describes tensors.

    Args:
        stored: The computation.
        folder: The folder; it is made if it is missing.

    Returns:
        The path of the file in PopEF.

    Raises:
        ExecutableFileError: If the description is not that of the executable.
        OSError: If the files cannot be written.
    """
    place, description = Path(folder), stored.description
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{description.name}.ipu_bin"
    write_executable(stored, file)
    with Staging() as staging:
        text = json.dumps(_describe_tensors(description), indent=2)
        staging.open(file.with_suffix(".json")).write(text.encode())
    return file


def _describe_tensors(description: ExecutableDescription) -> dict[str, Any]:
    handles = description.find_handles()

    def describe(tensor: TensorDescription, name: str, kind: str) -> dict[str, Any]:
        return {
            "name": name,
            "handle": handles[tensor.name],
            "type": kind,
            "shape": {"data_type": _TYPES[tensor.dtype.name], "shape": list(tensor.shape)},
        }

    def describe_feeds(feeds: Sequence[FeedDescription], kind: str) -> list[dict[str, Any]]:
        return [
            {
                "name": feed.feed_id,
                "streams": [
                    describe(tensor, f"{feed.feed_id}.{place}", kind)
                    for place, tensor in enumerate(feed.tensors)
                ],
            }
            for feed in feeds
        ]

    def describe_entries(
        entries: Sequence[EntryDescription], value: str, variable: str
    ) -> list[dict[str, Any]]:
        return [
            describe(
                entry.tensor,
                unmangle_name(entry.name),
                value if entry.kind is EntryKind.STREAMED else variable,
            )
            for entry in entries
        ]

    return {
        "inputs": describe_entries(description.inputs, "input_data", "parameter"),
        "outputs": describe_entries(description.outputs, "output_data", "parameter_out"),
        "infeeds": describe_feeds(description.infeeds, "infeed"),
        "outfeeds": describe_feeds(description.outfeeds, "outfeed"),
        "options": dict(sorted(description.options.items())),
        "replication_count": description.replicas,
    }
