"""Tests that reproduce the published dump (Listing 1.1 of the backend guide), sizes included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import popef
from popef.codec import encode
from popef.commands import dump
from popef.record import Record
from popef.types import BlobHeader, Executable, OpaqueBlob

LISTING = Path(__file__).with_name("listing_1_1.txt").read_text()
STAMP = re.compile(r"^\[\d\d:\d\d:\d\d\.\d{3}\]", re.MULTILINE)


def message(record: Record) -> bytes:
    return encode(record)


@pytest.fixture
def listing_file(tmp_path: Path, listing_metadata: popef.Metadata) -> Path:
    """Write the file behind the listing and return its path. Its executable of 38 MB is a hole."""
    path = tmp_path / "executable.popef"
    name = "UNHASHED_EXECUTABLE"
    with path.open("wb") as file:
        file.write(message(BlobHeader(type=popef.BlobType.OPAQUE, size=432)))
        file.write(message(OpaqueBlob(name="tensorflow", executable=name)))
        file.seek(432)
        file.write(message(BlobHeader(type=popef.BlobType.POPLAR_EXECUTABLE, size=38172251)))
        file.write(message(Executable(name=name, uncompressedSize=361890868)))
        file.seek(432 + 38172251)
        popef_writer = popef.Writer(file)
        popef_writer.writeMetadata(listing_metadata)
        popef_writer.close()
    return path


def test_the_dump_of_the_listings_file_is_the_listing(
    listing_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump.main([str(listing_file)]) == 0
    assert STAMP.sub("[t]", capsys.readouterr().out) == STAMP.sub("[t]", LISTING)


def test_metadata_prints_as_in_the_listing(listing_metadata: popef.Metadata) -> None:
    assert str(listing_metadata) == LISTING.split("Read Metadata: ")[1].rstrip("\n")


def test_structures_have_the_sizes_of_the_listing(listing_metadata: popef.Metadata) -> None:
    assert len(message(BlobHeader(type=popef.BlobType.METADATA, size=568))) == 48
    assert len(message(OpaqueBlob(name="tensorflow", executable="UNHASHED_EXECUTABLE"))) == 72
    assert len(message(Executable(name="UNHASHED_EXECUTABLE", uncompressedSize=361890868))) == 56
    assert len(message(listing_metadata)) == 568 - 48


def test_each_inferred_field_alone_makes_the_form_long(listing_metadata: popef.Metadata) -> None:
    short = len(message(listing_metadata))
    listing_metadata.setDeviceIterations(1)
    assert len(message(listing_metadata)) == short + 2 * 8
    listing_metadata.setDeviceIterations(0)
    listing_metadata.anchors()[0].setPrograms([1])
    assert len(message(listing_metadata)) == short + 3 * 8 + 8
