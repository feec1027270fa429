"""Properties of popef for any bytes, and files to begin the search with."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import time
import zlib
from collections.abc import Callable, Iterator

import zstandard
from capnp_reference import PLAIN
from reference_files import PlainBlob, written_by_others, written_by_popef

import popef
from popef.commands.compare import iter_differences
from popef.commands.verify import Finding, Verification
from popef.commands.words import describe_words_of
from popef.scan import HEAD_BYTES, Blob, describe_blob, read_blob

LIMITS = popef.Limits(
    max_structure_bytes=1 << 16,
    max_list_items=1 << 12,
    max_blobs=1000,
    max_stream_bytes=1 << 18,
    max_executable_bytes=1 << 20,
)
SECONDS = 2.0
"""CPU time that 64 KiB may cost, everything `check` does taken together."""


def check(data: bytes) -> None:
    """Read `data` in every way; raises AssertionError for a broken promise, and any error that is
    no PopefError."""
    began = time.process_time()
    with popef.Reader(LIMITS) as reader:
        try:
            reader.parseStream(io.BytesIO(data))
        except popef.PopefError as error:
            _check_refused(data, error)
        else:
            _check_read(data, reader)
    spent = time.process_time() - began
    assert spent < SECONDS or len(data) > 1 << 16, f"{spent:.1f} s for {len(data)} bytes"


def _check_refused(data: bytes, error: popef.PopefError) -> None:
    assert str(error)
    with contextlib.suppress(popef.PopefError):
        list(describe_words_of(data))
    findings = _verify(data)
    if isinstance(error, popef.FormatError):
        errors = [finding.rule for finding in findings if finding.severity is popef.Severity.ERROR]
        assert error.rule in errors


def _verify(data: bytes) -> list[Finding]:
    """Return the findings on bytes, which are given the path that they need."""
    file = os.memfd_create("popef")
    try:
        os.write(file, data)
        findings = Verification([f"/proc/self/fd/{file}"], LIMITS).findings
    finally:
        os.close(file)
    assert all(map(str, findings))
    return list(findings)


def _check_read(data: bytes, reader: popef.Reader) -> None:
    assert list(describe_words_of(data))
    _verify(data)
    assert repr(
        reader.metadata()
        + reader.tensors()
        + reader.feeds()
        + reader.executables()
        + reader.opaqueBlobs()
    )
    for blob in reader.blobs():
        assert describe_blob(blob)
        _check_like_the_general_decoder(blob)
    for tensor in _arrays(reader):
        _check_array(tensor)
    for opaque in reader.opaqueBlobs():
        assert len(opaque.data()) == opaque.getAvailableReadSize()
        assert opaque.getStandaloneDataStream().read() == opaque.data()
    for executable in reader.executables():
        _check_executable(executable)
    with contextlib.suppress(popef.PopefError):
        popef.ModelBuilder(reader).createModels()
    _check_written_again(reader)


def _check_like_the_general_decoder(blob: Blob) -> None:
    """Check that blobs recognised by their template are equal to those of the general decoder."""
    general = read_blob(
        blob.source, blob.index, blob.start, blob.source.read(blob.start, HEAD_BYTES), LIMITS
    )
    for name in ("type", "version", "structure", "structure_start", "payload_start", "end"):
        assert getattr(general, name) == getattr(blob, name), name


def _check_array(tensor: popef.TensorReader | popef.FeedReader) -> None:
    with contextlib.suppress(popef.UnsupportedError, popef.LimitError):
        data = tensor.data()
        assert data.nbytes == tensor.blob.payload_bytes
        assert tensor.getStandaloneDataStream().read() == data.tobytes()


def _check_executable(executable: popef.ExecutableReader) -> None:
    code = _or_none(executable.executable)
    streamed = _or_none(lambda: executable.getStandaloneExecutableStream().read())
    assert streamed == code
    if code is None:
        return
    assert len(code) <= LIMITS.max_executable_bytes or not executable.compressed
    assert executable.uncompressedSize in (0, len(code))


def _or_none(read: Callable[[], bytes | memoryview]) -> bytes | memoryview | None:
    try:
        return read()
    except popef.PopefError:
        return None


def _check_written_again(reader: popef.Reader) -> None:
    """Check that blobs that are read and written again are read as equal."""
    sink = io.BytesIO()
    try:
        with popef.Writer(sink) as writer:
            for blob in reader.blobs():
                _write(writer, blob)
    except popef.PopefError:
        return  # two executables of one name, or an element type of unknown size
    if not sink.getvalue():
        return
    with popef.Reader() as again:
        again.parseStream(io.BytesIO(sink.getvalue()))
        assert _contents(again) == _contents(reader)
        # The writer gives no blob a version, and writes none of a type it does not know.
        if all(blob.type.known and not blob.version for blob in reader.blobs()):
            assert not list(iter_differences(reader, again))


def _write(writer: popef.Writer, blob: Blob) -> None:
    if blob.type is popef.BlobType.METADATA:
        writer.writeMetadata(blob.structure)
        return
    payload = blob.payload()
    if blob.type is popef.BlobType.DATA_TENSOR:
        sink = writer.createTensorData(blob.structure)
    elif blob.type is popef.BlobType.DATA_FEED:
        sink = writer.createFeedData(blob.structure)
    elif blob.type is popef.BlobType.OPAQUE:
        sink = writer.createOpaqueBlob(blob.structure.name, blob.structure.executable)
    elif blob.type is popef.BlobType.POPLAR_EXECUTABLE:
        executable = popef.ExecutableReader(blob, LIMITS)
        payload = executable.executable()
        sink = writer.createExecutable(executable.name, compress=executable.compressed)
    else:
        return
    sink.write(payload)


def _arrays(reader: popef.Reader) -> list[popef.TensorReader | popef.FeedReader]:
    return [*reader.tensors(), *reader.feeds()]


def _contents(reader: popef.Reader) -> list[object]:
    executables = [
        (executable.name, bytes(executable.executable())) for executable in reader.executables()
    ]
    data = [(data.info, bytes(data.blob.payload())) for data in _arrays(reader)]
    opaque = [
        (opaque.name, opaque.executable, bytes(opaque.data())) for opaque in reader.opaqueBlobs()
    ]
    return [reader.metadata(), executables, data, opaque]


CODE = b"IPU code " * 30


def seed_files() -> Iterator[bytes]:
    """Return valid files: every type of blob, every codec, the layouts of popef's writer, of the
    reference and of the builder."""
    yield written_by_popef(EXAMPLE)
    for seed in range(10):
        yield b"".join(written_by_others(blob, seed + i) for i, blob in enumerate(EXAMPLE))
        yield written_by_others(EXAMPLE[seed % len(EXAMPLE)], seed)
    for compress in (gzip.compress, zstandard.compress):
        yield written_by_others(
            (0, {"name": "e", "uncompressedSize": len(CODE)}, compress(CODE)), 1
        )


_INFO = {"shape": [2, 3], "dataType": 7}
_ANCHOR = {
    "name": "w",
    "handle": "h2d_w",
    "tensorInfo": _INFO,
    "type": 1,
    "isPerReplica": False,
    "programs": [1, 5],
}
EXAMPLE: list[PlainBlob] = [
    (
        1,
        PLAIN.shapes["Metadata"].default
        | {
            "anchors": [_ANCHOR, _ANCHOR | {"name": "out", "type": 2}],
            "executable": "e",
            "engineOptions": [{"name": "debug.x", "value": "true"}],
            "programFlow": {"load": [0], "main": [1, 5], "save": []},
            "programsMap": [{"index": 0, "name": "load"}, {"index": 5, "name": "main"}],
            "deviceIterations": 4,
        },
        b"",
    ),
    (0, {"name": "e", "uncompressedSize": len(CODE)}, zlib.compress(CODE)),
    (4, {"name": "popart", "executable": "e"}, b"private"),
    (2, {"name": "w", "tensorInfo": _INFO}, bytes(range(12))),
    (3, {"name": "w", "tensorInfo": _INFO, "numTensors": 2}, bytes(range(24))),
    (2, {"name": "s", "tensorInfo": {"shape": [], "dataType": 3}}, bytes(4)),
]
