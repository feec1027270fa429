"""The reference Cap'n Proto library reads what this package writes, and the other way round."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import capnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import popef
from popef import schema
from popef.codec import decode_message, encode
from popef.errors import Limits
from popef.headers import from_values
from popef.schema import Struct

capnp.remove_import_hook()
REFERENCE = capnp.load(str(Path(__file__).with_name("popef.capnp")))

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PROGRAMS = st.lists(st.integers(0, (1 << 32) - 1), max_size=4)


@st.composite
def metadata_values(draw: st.DrawFn) -> dict[str, Any]:
    """Values of a Metadata as plain data, the form both sides take."""
    info = st.fixed_dictionaries(
        {
            "shape": st.lists(st.integers(0, 1 << 40), max_size=5),
            "dataType": st.sampled_from(list(popef.DataType)),
        }
    )
    anchor = st.fixed_dictionaries(
        {
            "name": TEXT,
            "handle": TEXT,
            "tensorInfo": info,
            "type": st.sampled_from(list(popef.TensorType)),
            "isPerReplica": st.booleans(),
            "programs": PROGRAMS,
        }
    )
    options = st.lists(st.fixed_dictionaries({"name": TEXT, "value": TEXT}), max_size=3)
    fields = dict.fromkeys(("replicationFactor", "numIpus", "numProcesses", "ipuVersion"), INT64)
    fields |= {
        "seedHandle": TEXT,
        "executable": TEXT,
        "anchors": st.lists(anchor, max_size=4),
        "isPOD": st.booleans(),
        "isInference": st.booleans(),
        "engineOptions": options,
        "deviceOptions": options,
        "programFlow": st.fixed_dictionaries({name: st.lists(INT64, max_size=3) for name in ("load", "main", "save")}),
        "programsMap": st.dictionaries(st.integers(0, 99), TEXT, max_size=3),
        "deviceIterations": st.integers(0, (1 << 63) - 1),
    }
    return draw(st.fixed_dictionaries(fields))


def reference_form(values: dict[str, Any]) -> dict[str, Any]:
    """The same values as pycapnp wants and gives them: map as list, enumerants as ordinals."""
    programs_map = [{"index": index, "name": name} for index, name in sorted(values["programsMap"].items())]
    anchors = []
    for anchor in values["anchors"]:
        info = anchor["tensorInfo"]
        anchors.append(anchor | {"type": int(anchor["type"])})
        anchors[-1]["tensorInfo"] = info | {"dataType": int(info["dataType"])}
    return values | {"programsMap": programs_map, "anchors": anchors}


def reference_message(values: dict[str, Any], first_segment_words: int) -> bytes:
    message = REFERENCE.Metadata.new_message(num_first_segment_words=first_segment_words)
    message.from_dict(reference_form(values))
    return bytes(message.to_bytes())


def ours(data: bytes, structure: Struct = schema.METADATA) -> dict[str, Any]:
    values, end = decode_message(lambda at, n: data[at : at + n], 0, len(data), "test", Limits(), structure)
    assert end == len(data)
    return values


def as_dict(reader: Any) -> dict[str, Any]:
    """A pycapnp reader as plain data with ordinals for enumerants."""
    result = reader.to_dict(ordered=False)
    for anchor in result.get("anchors", []):
        anchor["type"] = int(popef.TensorType[anchor["type"].upper()])
        anchor["tensorInfo"]["dataType"] = int(popef.DataType[anchor["tensorInfo"]["dataType"].upper()])
        anchor.setdefault("programs", [])
    result.setdefault("programsMap", [])
    return result


@settings(max_examples=150, deadline=None)
@given(metadata_values())
def test_the_reference_reads_what_we_write(values: dict[str, Any]) -> None:
    with REFERENCE.Metadata.from_bytes(encode(schema.METADATA, values)) as reader:
        assert as_dict(reader) == reference_form(values)


@settings(max_examples=150, deadline=None)
@given(metadata_values(), st.sampled_from([1, 7, 12, 13, 20, 60, 1024]))
def test_we_read_what_the_reference_writes_in_any_number_of_segments(values: dict[str, Any], words: int) -> None:
    assert ours(reference_message(values, words)) == values


def test_the_reference_really_makes_many_segments() -> None:
    message = reference_message(MINIMAL | {"seedHandle": "x" * 100, "executable": "y" * 4000}, 1)
    assert int.from_bytes(message[:4], "little") > 0


MINIMAL: dict[str, Any] = {
    "anchors": [],
    "programsMap": {},
    "programFlow": {"load": [0], "main": [1], "save": []},
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BlobHeader", {"version": "", "type": 3, "size": (1 << 64) - 1}),
        ("Executable", {"name": "exe", "uncompressedSize": 7}),
        ("OpaqueBlob", {"name": "popart", "executable": "exe"}),
        ("TensorDataInfo", {"name": "w", "tensorInfo": {"shape": [2, 3], "dataType": 14}}),
        ("FeedDataInfo", {"name": "w", "tensorInfo": {"shape": [], "dataType": 2}, "numTensors": 9}),
    ],
)
def test_small_structures_are_byte_for_byte_those_of_the_reference(name: str, values: dict[str, Any]) -> None:
    table = next(table for table in (schema.BLOB_HEADER, *schema.PAYLOAD_STRUCTURE.values()) if table.name == name)
    message = getattr(REFERENCE, name).new_message(**values)
    theirs = bytes(message.to_bytes())
    assert encode(table, ours(theirs, table)) == theirs
    assert from_values(table, ours(theirs, table)).values() == ours(theirs, table)


def test_a_whole_file_of_the_reference_parses() -> None:
    structure = REFERENCE.OpaqueBlob.new_message(name="poptorch", executable="exe").to_bytes()
    header = REFERENCE.BlobHeader.new_message(version="2.1", type="opaque", size=0)
    header.size = len(header.to_bytes()) + len(structure) + 3
    reader = popef.Reader()
    header.clear_write_flag()
    reader.parseStream(io.BytesIO(bytes(header.to_bytes()) + bytes(structure) + b"abc"))
    (opaque,) = reader.opaqueBlobs()
    assert (opaque.name, opaque.executable, bytes(opaque.data())) == ("poptorch", "exe", b"abc")


def test_unset_fields_of_the_reference_read_as_defaults() -> None:
    values = ours(bytes(REFERENCE.Metadata.new_message().to_bytes()))
    assert values["seedHandle"] == ""
    assert values["anchors"] == []
    assert values["programFlow"] == {"load": [], "main": [], "save": []}
    assert values["deviceIterations"] == 0
