"""Comparison of two PopEF files, blob by blob and field by field."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..compression import open_view
from ..enums import BlobType, enumerant
from ..reader import ExecutableReader, Reader, TensorReader
from ..record import tree
from ..scan import Blob
from ..source import CHUNK_BYTES
from ..types import Executable, Metadata, TensorDataInfo

Key = tuple[BlobType, str, int]
"""Key that identifies a blob: its type, its name, and the number of blobs like it before it."""


def iter_differences(left: Reader, right: Reader) -> Iterator[str]:
    """Yield the differences between two files, one line each.

    Yields nothing if both hold the same, regardless of the order of blobs and of compression.
    Raises a PopefError for an executable that cannot be decompressed.
    """
    ours, theirs = _by_key(left), _by_key(right)
    for key, blob in ours.items():
        if key not in theirs:
            yield f"{_title(key)}: only in the first"
        else:
            for difference in _iter_blob_differences(blob, theirs[key], left, right):
                yield f"{_title(key)}: {difference}"
    for key in theirs:
        if key not in ours:
            yield f"{_title(key)}: only in the second"


def _by_key(reader: Reader) -> dict[Key, Blob]:
    blobs: dict[Key, Blob] = {}
    counts: Counter[tuple[BlobType, str]] = Counter()
    for blob in reader.blobs():
        kind = blob.type, blob.name
        blobs[blob.type, blob.name, counts[kind]] = blob
        counts[kind] += 1
    return blobs


def _title(key: Key) -> str:
    kind, name, count = key
    return f"{enumerant(kind)} {name!r}" + (f" ({count + 1})" if count else "")


def _iter_blob_differences(ours: Blob, theirs: Blob, left: Reader, right: Reader) -> Iterator[str]:
    if ours.version != theirs.version:
        yield f"version: {str(ours.version)!r} became {str(theirs.version)!r}"
    if ours.structure is not None:
        yield from _iter_tree_differences("", _fields(ours), _fields(theirs))
    yield from _iter_payload_differences(ours, theirs, left, right)


def _fields(blob: Blob) -> dict[str, Any]:
    fields = tree(blob.structure)
    if isinstance(blob.structure, Executable):
        del fields["uncompressedSize"]  # the same executable may be compressed in one file only
    if isinstance(blob.structure, Metadata):
        # By name, so that one more anchor is one difference and not one in every anchor behind it.
        fields["anchors"] = _by_name(fields["anchors"])
        for options in ("engineOptions", "deviceOptions"):
            fields[options] = _by_name(fields[options])
    return fields


def _by_name(items: list[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    entries: dict[str, Any] = {}
    for item in items:
        counts[item["name"]] += 1
        count = counts[item["name"]]
        entries[item["name"] if count == 1 else f"{item['name']} ({count})"] = item
    return entries


def _iter_tree_differences(path: str, ours: Any, theirs: Any) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            inner = f"{path}.{name}" if path else name
            if name not in theirs:
                yield f"{inner}: only in the first"
            elif name not in ours:
                yield f"{inner}: only in the second"
            else:
                yield from _iter_tree_differences(inner, ours[name], theirs[name])
    elif ours != theirs:
        yield f"{path}: {_short(ours)} became {_short(theirs)}"


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    return repr(value)


def _iter_payload_differences(
    ours: Blob, theirs: Blob, left: Reader, right: Reader
) -> Iterator[str]:
    if isinstance(ours.structure, TensorDataInfo) and ours.structure == theirs.structure:
        yield from _iter_array_differences(ours, theirs)
        return
    first, second = _open(ours, left), _open(theirs, right)
    offset = 0
    while True:
        a, b = first.read(CHUNK_BYTES), second.read(CHUNK_BYTES)
        if a != b:
            place = next(
                (i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]),
                min(len(a), len(b)),
            )
            yield f"payload: differs from byte {offset + place}"
            return
        if not a:
            return
        offset += len(a)


def _open(blob: Blob, reader: Reader) -> io.BufferedReader:
    if isinstance(blob.structure, Executable):
        return ExecutableReader(blob, reader.limits).getStandaloneExecutableStream()
    return open_view(blob.payload())


def _iter_array_differences(ours: Blob, theirs: Blob) -> Iterator[str]:
    a, b = TensorReader(ours).data().reshape(-1), TensorReader(theirs).data().reshape(-1)
    different, largest = 0, 0.0
    for i in range(0, a.size, CHUNK_BYTES):
        x, y = a[i : i + CHUNK_BYTES], b[i : i + CHUNK_BYTES]
        raw = x.view(np.uint8) != y.view(np.uint8)
        different += int(raw.reshape(x.size, -1).any(axis=1).sum())
        if raw.any() and a.dtype.kind in "fiu":
            with np.errstate(invalid="ignore", over="ignore"):
                distance = np.abs(x.astype(np.float64) - y.astype(np.float64))
                largest = max(largest, np.nan_to_num(distance).max())
    if different:
        yield f"data: {different} of {a.size} elements differ" + (
            f", at most by {largest:g}" if a.dtype.kind in "fiu" else ""
        )
