"""Tests of compressed executables: every codec, and streams that do not match their declaration."""

from __future__ import annotations

import io
import tracemalloc
import zlib

import pytest
import zstandard
from popef_blobs import parse, parse_lazily, raw_executable

import popef


@pytest.mark.parametrize(
    "compressor", [None, zlib.compress, lambda data: __import__("gzip").compress(data)]
)
def test_compressed_executables_are_inflated(tmp_path, compressor):
    path = tmp_path / "m.popef"
    code = b"machine code " * 1000
    if compressor is None:
        with popef.Writer(path) as writer, writer.createExecutable("e", compress=True) as blob:
            blob.write(code)
    else:
        path.write_bytes(raw_executable(compressor(code), len(code)))
    reader = popef.Reader()
    reader.parseFile(path)
    (executable,) = reader.executables()
    assert executable.compressed
    assert path.stat().st_size < len(code)
    assert bytes(executable.executable()) == code


def test_zstd_executables_are_inflated():
    code = b"machine code " * 1000
    reader = parse(raw_executable(zstandard.compress(code), len(code)))
    assert bytes(reader.executables()[0].executable()) == code


@pytest.mark.parametrize(
    ("payload", "claimed", "error"),
    [
        (zlib.compress(bytes(10_000_000)), 100, popef.FormatError),
        (zlib.compress(bytes(100)), 10_000, popef.FormatError),
        (zlib.compress(bytes(100))[:-4], 100, popef.FormatError),
        (b"neither zlib nor gzip", 100, popef.UnsupportedError),
        (zlib.compress(bytes(100)), 2**63, popef.LimitError),
        (b"\x28\xb5\x2f\xfd....", 100, popef.PopefError),
    ],
)
def test_a_blob_that_does_not_inflate_to_its_size_is_rejected(payload, claimed, error):
    with pytest.raises(error, match="blob 0"):
        parse(raw_executable(payload, claimed))


def test_a_broken_stream_raises_while_it_is_read():
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(raw_executable(zlib.compress(bytes(100))[:-4], 100)))
    with pytest.raises(popef.FormatError, match="executable-size"):
        reader.executables()[0].getStandaloneExecutableStream().read()


def test_a_decompression_bomb_costs_what_it_announces_and_no_more():
    """Ten megabytes of zeros declare a size of a thousand bytes, and a declared gigabyte is
    missing."""
    reader = parse_lazily(raw_executable(zlib.compress(bytes(10_000_000)), 1000))
    hollow = parse_lazily(raw_executable(zlib.compress(b"x"), 1 << 30))
    tracemalloc.start()
    for each in (reader, hollow):
        with pytest.raises(popef.FormatError, match="executable-size"):
            each.executables()[0].executable()
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()
