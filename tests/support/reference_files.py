"""Whole PopEF files, generated as plain data and written by popef, by the reference library or by
the tests' own builder."""

from __future__ import annotations

import io
import zlib
from typing import Any

from capnp_reference import PLAIN, STRUCTURE_OF_BLOB, TEXT, Plain, plain_values, to_record
from hypothesis import strategies as st
from scattered_messages import scatter

import popef

PlainBlob = tuple[int, Plain, bytes]
"""The ordinal of a blob's type, its structure, its payload."""


@st.composite
def blobs(draw: st.DrawFn) -> PlainBlob:
    """Draw one blob whose payload fits its structure."""
    kind = draw(st.integers(0, 4))
    shape = PLAIN.shapes[STRUCTURE_OF_BLOB[kind]]
    if kind == 1:
        return kind, draw(plain_values(shape)), b""
    values = shape.default | {"name": draw(TEXT.filter(bool))}
    if kind in (2, 3):
        values["tensorInfo"] = draw(TENSOR_INFOS)
        tensors = 1
        if kind == 3:
            values["numTensors"] = tensors = draw(st.integers(0, 3))
        return (
            kind,
            values,
            bytes([draw(st.integers(0, 255))]) * tensors * tensor_bytes(values["tensorInfo"]),
        )
    payload = draw(st.binary(max_size=40))
    if kind == 4:
        return kind, values | {"executable": draw(TEXT)}, payload
    if draw(st.booleans()) and payload:
        return kind, values | {"uncompressedSize": len(payload)}, zlib.compress(payload)
    return kind, values, payload


TENSOR_INFOS = st.fixed_dictionaries(
    {"shape": st.lists(st.integers(0, 3), max_size=3), "dataType": st.integers(0, 14)}
)
ITEM_BYTES = (1, 1, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1)


def tensor_bytes(info: Plain) -> int:
    """Return the bytes of one tensor."""
    size = ITEM_BYTES[info["dataType"]]
    for dimension in info["shape"]:
        size *= dimension
    return size


FILES = st.lists(
    blobs(),
    min_size=1,
    max_size=4,
    unique_by=lambda blob: (blob[0], blob[1]["name"]) if blob[0] == 0 else id(blob),
)


def written_by_popef(file: list[PlainBlob]) -> bytes:
    """Return the bytes of popef's writer."""
    sink = io.BytesIO()
    with popef.Writer(sink) as writer:
        for kind, values, payload in file:
            record: Any = to_record(STRUCTURE_OF_BLOB[kind], values)
            if kind == 1:
                writer.writeMetadata(record)
                continue
            if kind == 0:
                blob = writer.createExecutable(record.name, compress=record.uncompressedSize > 0)
                payload = zlib.decompress(payload) if record.uncompressedSize else payload
            elif kind == 4:
                blob = writer.createOpaqueBlob(record.name, record.executable)
            else:
                blob = (
                    writer.createTensorData(record) if kind == 2 else writer.createFeedData(record)
                )
            blob.write(payload)
    return sink.getvalue()


def written_by_others(blob: PlainBlob, seed: int) -> bytes:
    """Return a blob whose header and structure come from the reference or the builder."""
    kind, values, payload = blob

    def message(name: str, values: Plain) -> bytes:
        if seed % 2:
            return PLAIN.write(name, values, 1 + seed % 30)
        return scatter(PLAIN.shapes[name], values, seed)

    structure = message(STRUCTURE_OF_BLOB[kind], values)
    size = (
        len(message("BlobHeader", {"version": "2.1", "type": kind, "size": 1}))
        + len(structure)
        + len(payload)
    )
    return (
        message("BlobHeader", {"version": "2.1", "type": kind, "size": size}) + structure + payload
    )


def split_by_reference(data: bytes) -> list[PlainBlob]:
    """Return the blobs of a file, found from header to header with the reference library alone."""
    file, start = [], 0
    while start < len(data):
        header, structure = _first_message("BlobHeader", data, start)
        values, payload = _first_message(STRUCTURE_OF_BLOB[header["type"]], data, structure)
        end = start + header["size"]
        file.append((header["type"], values, data[payload:end]))
        start = end
    return file


def _first_message(name: str, data: bytes, start: int) -> tuple[Plain, int]:
    count = int.from_bytes(data[start : start + 4], "little") + 1
    sizes = [
        int.from_bytes(data[start + 4 + 4 * i : start + 8 + 4 * i], "little") for i in range(count)
    ]
    end = start + (4 + 4 * count + 7) // 8 * 8 + 8 * sum(sizes)
    return PLAIN.read(name, data[start:end]), end
