"""Files made from the blobs of other files: compressed, decompressed, merged, split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence

from .._tools.console import Progress
from ..reader import ExecutableReader, Reader
from ..scan import Blob
from ..source import CHUNK_BYTES
from ..types import Executable, FeedDataInfo, Metadata, OpaqueBlob, TensorDataInfo
from ..writer import Writer
from .extract import count_bytes, harmless


def recode(source: str, target: str, *, compress: bool) -> None:
    """Write `source` to `target` with every executable compressed or with none compressed.

    Other blobs, and executables that already have the wanted form, are copied byte by byte. Raises
    OSError or a PopefError for anything wrong, and then leaves `target` unchanged.
    """
    with Reader(mapped=False) as reader, Writer(target) as writer:
        reader.parseFile(source)
        progress = Progress(f"{source}:", os.path.getsize(source))
        for blob in progress.track(reader.blobs(), count_bytes):
            executable = (
                ExecutableReader(blob, reader.limits)
                if isinstance(blob.structure, Executable)
                else None
            )
            if executable is None or executable.compressed == compress:
                writer.copyBlob(blob)
                continue
            stream = executable.getStandaloneExecutableStream()
            with stream, writer.createExecutable(executable.name, compress) as sink:
                shutil.copyfileobj(stream, sink, CHUNK_BYTES)


def merge(sources: Iterable[str], target: str) -> None:
    """Write the blobs of all files into `target`, one file after the other.

    Raises PopefError if two executables have the same name, and then leaves `target` unchanged.
    """
    with Reader(mapped=False) as reader, Writer(target) as writer:
        for source in sources:
            reader.parseFile(source)
        blobs = reader.blobs()
        progress = Progress(f"{target}:", sum(map(count_bytes, blobs)))
        for blob in progress.track(blobs, count_bytes):
            writer.copyBlob(blob)


def split(source: str, folder: str, by: str) -> list[str]:
    """Write the blobs of a file into several files of `folder`, which must exist; return the paths.

    `by` is "model", "data" or "blob". "model" writes a file for each executable and what belongs to
    it. "data" writes one file with tensor and feed data and one with the rest, as `executable_path`
    and `weights_path` of a Triton model need them. "blob" writes a file for each blob. Blobs that
    belong to no model go to a separate file, `rest.popef`. Data that belongs to several models is
    written to each of their files.
    """
    with Reader(mapped=False) as reader:
        reader.parseFile(source)
        parts = {"model": _by_model, "data": _by_data, "blob": _by_blob}[by](reader.blobs())
        paths = []
        for name, blobs in parts.items():
            paths.append(os.path.join(folder, f"{name}.popef"))
            with Writer(paths[-1]) as writer:
                for blob in blobs:
                    writer.copyBlob(blob)
    return paths


def _by_model(blobs: Sequence[Blob]) -> dict[str, list[Blob]]:
    parts: dict[str, list[Blob]] = {}
    taken: set[int] = set()
    for executable in blobs:
        if not isinstance(executable.structure, Executable):
            continue
        members = [
            blob
            for blob in blobs
            if blob is executable or _belongs(blob, executable.structure.name)
        ]
        anchors = {
            anchor.name
            for blob in members
            if isinstance(blob.structure, Metadata)
            for anchor in blob.structure.anchors
        }
        members += [blob for blob in blobs if _is_data(blob) and blob.structure.name in anchors]
        parts[_unique(harmless(executable.structure.name) or "model", parts)] = members
        taken |= {blob.index for blob in members}
    rest = [blob for blob in blobs if blob.index not in taken]
    return parts | {_unique("rest", parts): rest} if rest else parts


def _by_data(blobs: Sequence[Blob]) -> dict[str, list[Blob]]:
    parts = {
        "weights": [blob for blob in blobs if _is_data(blob)],
        "executable": [blob for blob in blobs if not _is_data(blob)],
    }
    return {name: members for name, members in parts.items() if members}


def _by_blob(blobs: Sequence[Blob]) -> dict[str, list[Blob]]:
    return {f"{blob.index:03}-{blob.type.name.lower()}": [blob] for blob in blobs}


def _belongs(blob: Blob, executable: str) -> bool:
    return (
        isinstance(blob.structure, (Metadata, OpaqueBlob))
        and blob.structure.executable == executable
    )


def _is_data(blob: Blob) -> bool:
    return isinstance(blob.structure, (TensorDataInfo, FeedDataInfo))


def _unique(name: str, taken: Iterable[str]) -> str:
    names, count, result = set(taken), 1, name
    while result in names:
        count += 1
        result = f"{name}-{count}"
    return result
