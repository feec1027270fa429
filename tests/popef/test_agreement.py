"""The reference Cap'n Proto library reads what we write, and we read what it writes."""

import capnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popef import schema
from popef.codec import decode_message, encode
from popef.enums import enumerant
from popef.errors import Limits
from popef.schema import Kind

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
STRUCTURES = (*schema.PAYLOAD_STRUCTURE.values(), schema.BLOB_HEADER)


def field_values(field):
    """A strategy for the values of one field that both sides must agree on."""
    if field.kind is Kind.TEXT:
        return TEXT
    if field.kind is Kind.BOOL:
        return st.booleans()
    if field.kind is Kind.ENUM:
        return st.sampled_from(list(field.enum))
    if field.kind is Kind.U64:
        return st.integers(0, 2**64 - 1)
    if field.kind is Kind.I64:
        return st.integers(0, 2**63 - 1) if field.inferred else INT64
    if field.kind is Kind.INTS:
        return st.lists(st.integers(0, 2**32 - 1), max_size=4)
    if field.kind is Kind.MAP:
        return st.dictionaries(st.integers(0, 2**32 - 1), TEXT, max_size=3)
    inner = values(field.struct)
    return inner if field.kind is Kind.STRUCT else st.lists(inner, max_size=3)


def values(structure):
    return st.fixed_dictionaries({field.name: field_values(field) for field in structure.fields})


def to_reference(structure, given_values):
    """Our values in the reference library's spelling."""
    spelled = {}
    for field in structure.fields:
        value = given_values[field.name]
        if field.kind is Kind.ENUM:
            value = enumerant(value)
        elif field.kind is Kind.STRUCT:
            value = to_reference(field.struct, value)
        elif field.kind is Kind.STRUCTS:
            value = [to_reference(field.struct, element) for element in value]
        elif field.kind is Kind.MAP:
            value = [{"index": index, "name": name} for index, name in sorted(value.items())]
        spelled[field.name] = value
    return spelled


def decode(structure, data):
    found, end = decode_message(lambda at, size: data[at : at + size], 0, len(data), "test", Limits(), structure)
    assert end == len(data)
    return found


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_libraries_agree_in_both_directions(reference, structure, data):
    original = data.draw(values(structure))
    ours = encode(structure, original)
    assert decode(structure, ours) == original
    spelled = to_reference(structure, original)
    with getattr(reference, structure.name).from_bytes(ours) as message:
        assert message.to_dict(verbose=True) == spelled
    theirs = getattr(reference, structure.name).new_message(**spelled).to_bytes()
    assert decode(structure, theirs) == original


@settings(max_examples=60, deadline=None)
@given(original=values(schema.METADATA), first=st.integers(1, 8))
def test_messages_of_many_segments_are_read(reference, original, first):
    """A tiny first segment makes the reference library spill into others, through far pointers."""
    builder = capnp._MallocMessageBuilder(first)
    root = builder.init_root(reference.Metadata)
    root.from_dict(to_reference(schema.METADATA, original))
    assert decode(schema.METADATA, builder_bytes(builder)) == original


def builder_bytes(builder):
    """The framed message of a builder."""
    import struct

    segments = [bytes(segment) for segment in builder.get_segments_for_output()]
    table = struct.pack(f"<{1 + len(segments)}I", len(segments) - 1, *(len(segment) // 8 for segment in segments))
    return table + bytes(-len(table) % 8) + b"".join(segments)


def test_narrow_lists_of_integers_are_read(tmp_path):
    """The newer API says uint32_t: a list pointer carries its own width."""
    text = tmp_path / "narrow.capnp"
    text.write_text(
        "@0xbf5147bb3a2d1c02;\nstruct Flow8 { load @0 :List(UInt8); main @1 :List(UInt16); save @2 :List(UInt32); }\n"
    )
    narrow = capnp.load(str(text))
    data = narrow.Flow8.new_message(load=[1, 255], main=[65535], save=[2**32 - 1, 0, 7]).to_bytes()
    assert decode(schema.PROGRAM_FLOW, data) == {"load": [1, 255], "main": [65535], "save": [2**32 - 1, 0, 7]}
