"""Extraction of payloads: arrays as .npy, executables decompressed, metadata as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import BinaryIO

import numpy as np

from ..describe import json_text, tree
from ..dtypes import storage_dtype
from ..enums import BlobType
from ..errors import Limits
from ..reader import ExecutableReader
from ..scan import Blob
from ..source import CHUNK_BYTES
from ..types import Executable, FeedDataInfo, Metadata, TensorDataInfo

_SUFFIXES = {
    BlobType.POPLAR_EXECUTABLE: ".executable",
    BlobType.METADATA: ".json",
    BlobType.DATA_TENSOR: ".npy",
    BlobType.DATA_FEED: ".npy",
    BlobType.OPAQUE: ".opaque",
}
_MAX_NAME = 100


def file_name(blob: Blob, *, raw: bool) -> str:
    """Return a file name for the payload of a blob: its index, its harmless name and a suffix for
    its type."""
    structure = blob.structure
    name = (
        structure.executable if isinstance(structure, Metadata) else getattr(structure, "name", "")
    )
    suffix = ".bin" if raw else _SUFFIXES.get(blob.type, ".bin")
    return f"{blob.index:03}-{harmless(name) or blob.type.name.lower()}{suffix}"


def harmless(name: str) -> str:
    """Return a name from a file with everything removed that is unsafe in a path.

    The result cannot climb out of a folder or be hidden in it. It has at most 100 characters.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:_MAX_NAME].strip(".")


def write_payload(blob: Blob, sink: BinaryIO, *, raw: bool, limits: Limits | None = None) -> None:
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
        stream = ExecutableReader(blob, limits or Limits()).getStandaloneExecutableStream()
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
