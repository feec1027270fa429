"""Files made from the blobs of other files: payloads (arrays as .npy, executables decompressed,
metadata as JSON), and PopEF files compressed, decompressed, merged and split."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import numpy as np

from .._tools.console import Progress
from ..enums import BlobType, storage_dtype
from ..errors import Limits
from ..reader import ExecutableReader, Reader
from ..record import json_text, tree
from ..scan import Blob
from ..source import CHUNK_BYTES
from ..types import Executable, FeedDataInfo, Metadata, OpaqueBlob, TensorDataInfo
from ..writer import Writer

_SUFFIXES = {
    BlobType.POPLAR_EXECUTABLE: ".executable",
    BlobType.METADATA: ".json",
    BlobType.DATA_TENSOR: ".npy",
    BlobType.DATA_FEED: ".npy",
    BlobType.OPAQUE: ".opaque",
}
_MAX_NAME = 100
"""Maximum length of a name in a file's name: file systems allow 255 bytes, which the suffix is part
of."""


def file_name(blob: Blob, *, raw: bool) -> str:
    """Return a file name for the payload of a blob: its index, its harmless name and a suffix for
    its type."""
    suffix = ".bin" if raw else _SUFFIXES.get(blob.type, ".bin")
    return f"{blob.index:03}-{harmless(blob.name) or blob.type.name.lower()}{suffix}"


def harmless(name: str) -> str:
    """Return a name from a file with everything removed that is unsafe in a path.

    The result cannot climb out of a folder or be hidden in it. It has at most 100 characters.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:_MAX_NAME].strip(".")


def write_payload(blob: Blob, sink: BinaryIO, *, raw: bool) -> None:
    """Write the payload of a blob, one chunk in memory at a time.

    Tensors and feeds become .npy files (8-bit floats as uint8, which numpy has no other name for).
    Executables are decompressed and metadata is written as JSON. With `raw` the bytes are written
    unchanged. Raises a PopefError for a payload that is wrong.
    """
    structure = blob.structure
    pieces: Iterable[bytes | memoryview]
    if raw:
        pieces = _iter_payload(blob)
    elif isinstance(structure, Executable):
        stream = ExecutableReader(blob, Limits()).getStandaloneExecutableStream()
        pieces = iter(partial(stream.read, CHUNK_BYTES), b"")
    elif isinstance(structure, Metadata):
        pieces = [f"{json_text(tree(structure))}\n".encode()]
    else:
        if isinstance(structure, (TensorDataInfo, FeedDataInfo)):
            _write_npy_header(structure, sink)
        pieces = _iter_payload(blob)
    for piece in pieces:
        sink.write(piece)


def _iter_payload(blob: Blob) -> Iterator[memoryview]:
    for offset in range(blob.payload_start, blob.end, CHUNK_BYTES):
        yield blob.source.view(offset, min(CHUNK_BYTES, blob.end - offset))


def _write_npy_header(info: TensorDataInfo | FeedDataInfo, sink: BinaryIO) -> None:
    dtype = storage_dtype(info.tensorInfo.dataType)
    plain = np.dtype(np.uint8) if dtype.kind == "V" else dtype
    leading = (int(info.numTensors),) if isinstance(info, FeedDataInfo) else ()
    header = {
        "descr": plain.str,
        "fortran_order": False,
        "shape": (*leading, *info.tensorInfo.shape),
    }
    np.lib.format.write_array_header_2_0(sink, header)  # type: ignore[no-untyped-call]


def extract(blob: Blob, folder: str, *, raw: bool, overwrite: bool) -> str:
    """Write the payload of a blob into a folder and return the path.

    Raises FileExistsError if the file exists, unless `overwrite` is set. An unfinished file is
    removed.
    """
    path = os.path.join(folder, file_name(blob, raw=raw))
    with open(path, "wb" if overwrite else "xb") as sink:
        try:
            write_payload(blob, sink, raw=raw)
        except BaseException:
            os.remove(path)
            raise
    return path


def count_bytes(blob: Blob) -> int:
    """Return the number of bytes of a whole blob, header included."""
    return blob.end - blob.start


def recode(source: str, target: str, *, compress: bool) -> None:
    """Write `source` to `target` with every executable compressed or with none compressed.

    Other blobs, and executables that already have the wanted form, are copied byte by byte. Raises
    OSError or a PopefError for anything wrong, and then leaves `target` unchanged.
    """
    with Reader(mapped=False) as reader, Writer(target) as writer:
        reader.parseFile(source)
        progress = Progress(f"{source}:", os.path.getsize(source))
        for blob in progress.track(reader.blobs(), count_bytes):
            executable = None
            if isinstance(blob.structure, Executable):
                executable = ExecutableReader(blob, reader.limits)
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
    """Write the blobs of a file into several files of `folder`, which is made if the file is valid;
    return the paths.

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
        os.makedirs(folder, exist_ok=True)
        for name, blobs in parts.items():
            paths.append(os.path.join(folder, f"{name}.popef"))
            with Writer(paths[-1]) as writer:
                for blob in blobs:
                    writer.copyBlob(blob)
    return paths


def _by_model(blobs: Sequence[Blob]) -> dict[str, list[Blob]]:
    parts: dict[str, list[Blob]] = {}
    used_indices: set[int] = set()
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
        used_indices |= {blob.index for blob in members}
    rest = [blob for blob in blobs if blob.index not in used_indices]
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


def _unique(name: str, used_names: Iterable[str]) -> str:
    names, count, result = set(used_names), 1, name
    while result in names:
        count += 1
        result = f"{name}-{count}"
    return result
