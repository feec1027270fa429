"""Small PopEF files, most of them valid, for the tests of readers and writers."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

import popef
from popef import BlobType
from popef.codec import encode
from popef.types import BlobHeader, Executable


def info(
    shape: tuple[int, ...] = (2, 3), data_type: popef.DataType = popef.DataType.F32
) -> popef.TensorInfo:
    """Return the info of a small tensor."""
    return popef.TensorInfo(shape=shape, dataType=data_type)


def write_whole(
    target: str | os.PathLike[str] | BinaryIO, metadata: popef.Metadata | None = None
) -> None:
    """Write one blob of each kind; the tensor is 0..5."""
    with popef.Writer(target) as writer:
        writer.writeMetadata(
            metadata or popef.Metadata(executable="e", anchors=[popef.Anchor(name="w")])
        )
        with writer.createExecutable("e") as blob:
            blob.write(b"co")
            blob.write(bytearray(b"deXX"), 2)
        with writer.createOpaqueBlob("popart", "e") as blob:
            blob.write(b"odd")
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info())) as blob:
            blob.write(np.arange(6, dtype=np.float32).data)
        feed = popef.FeedDataInfo(name="w", tensorInfo=info((2,), popef.DataType.U8), numTensors=3)
        with writer.createFeedData(feed) as blob:
            blob.write(bytes(range(6)))


def parse_lazily(data: bytes) -> popef.Reader:
    """Return a reader that has read headers and structures of some bytes only."""
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    return reader


def parse(data: bytes) -> popef.Reader:
    """Return a reader that has read everything in some bytes."""
    reader = parse_lazily(data)
    for executable in reader.executables():
        executable.executable()
    for tensor in reader.tensors():
        tensor.data()
    for feed in reader.feeds():
        feed.data()
    for opaque in reader.opaqueBlobs():
        opaque.data()
    reader.metadata()
    return reader


def whole() -> bytes:
    """Return the bytes that `write_whole` writes."""
    sink = io.BytesIO()
    write_whole(sink)
    return sink.getvalue()


def raw_executable(payload: bytes, uncompressed: int) -> bytes:
    """Return an executable blob with any payload."""
    body = encode(Executable(name="e", uncompressedSize=uncompressed))
    return (
        encode(BlobHeader(type=BlobType.POPLAR_EXECUTABLE, size=48 + len(body) + len(payload)))
        + body
        + payload
    )


def build(*paths: Path, name: str | None = None) -> popef.Model:
    """Return the model in some files."""
    reader = popef.Reader()
    for path in paths:
        reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel(name)


class Pipe(io.BytesIO):
    """A sink that cannot seek."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> NoReturn:
        raise OSError("a pipe cannot seek")


def message(*words: int) -> bytes:
    """Return a message of one segment; the first word is the root pointer."""
    return struct.pack("<II", 0, len(words)) + struct.pack(f"<{len(words)}Q", *words)


def metadata_blob(words: Sequence[int]) -> bytes:
    """Return a metadata blob whose structure has these words."""
    body = message(*words)
    return encode(BlobHeader(type=BlobType.METADATA, size=48 + len(body))) + body
