"""Tests that popef and the reference Cap'n Proto library read the same values, whichever of them,
or the tests' builder, wrote them.

EXAMPLES=50 generates ten thousand files and messages for each test instead of two hundred.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from random import Random
from typing import Any

import capnp
import pytest
from capnp_messages import (
    FAR,
    IntsNode,
    Node,
    PointersNode,
    StructNode,
    StructsNode,
    lay_out,
    text_node,
)
from capnp_reference import (
    INFERRED,
    LONGER,
    NARROW,
    PLAIN,
    RECORDS,
    ROOTS,
    SHORTER,
    Plain,
    only,
    plain_values,
    to_plain,
    to_record,
    with_more,
)
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from popef_mutations import mutate_words
from reference_files import (
    FILES,
    PlainBlob,
    split_by_reference,
    written_by_others,
    written_by_popef,
)
from scattered_messages import scatter

import popef
from popef.codec import decode_message, encode

FORGIVEN_REFUSALS = {
    popef.Rule.SHAPE: "a negative size is an integer to the reference, but no tensor to PopEF",
    popef.Rule.FAR_POINTER: "the reference takes a double-far landing pad whose first word is "
    "itself "
    "marked double, where "
    "popef asks for the single far pointer that the specification describes",
    popef.Rule.POINTER_BOUNDS: "the reference does not look where structures and lists of no words "
    "stand",
    popef.Rule.STRUCT_LIST: "the reference reads elements narrower than a word as structures; "
    "no list of PopEF can have grown "
    "that way, since the first field of none is that narrow",
}
"""Reasons why popef may reject a damaged message that the reference reads. LimitError is the other
reason: popef's budget is smaller.

In an inferred field the reasons of both tables make one of the two ignore the field instead.
"""

FORGIVEN_VALUES = {
    "Message contained list with incompatible element type": "popef takes integers of any width, "
    "and "
    "an empty list of "
    "anything where integers are expected",
    "Found bit list where struct list was expected": "popef takes an empty list of bits where "
    "integers are expected",
    "Expected a primitive list, but got a list of pointer-only "
    "structs": "popef takes an empty list of any structures",
    "pointer to unknown segment": "to the reference a segment without words is none, even for what "
    "takes no words",
}
"""Reasons why popef may read a damaged message that the reference rejects, by the reference's
message."""

EXAMPLES = examples(200)
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, (1 << 32) - 1)
FIRST_SEGMENT_WORDS = st.sampled_from([1, 2, 7, 13, 20, 60, 1024])


@st.composite
def structures(draw: st.DrawFn, bits: int = 64) -> tuple[str, Plain]:
    """Return the name of a structure that is a message of its own, and its values."""
    name = draw(st.sampled_from(ROOTS))
    return name, draw(plain_values(PLAIN.shapes[name], bits))


def ours(name: str, message: bytes) -> Plain:
    """Return the values that popef reads."""
    record, _ = decode_message(
        lambda at, size: message[at : at + size],
        0,
        len(message),
        "test",
        popef.Limits(),
        RECORDS[name],
    )
    return to_plain(record)


@many
@given(structures())
def test_the_reference_reads_what_popef_writes(structure: tuple[str, Plain]) -> None:
    name, values = structure
    message = encode(to_record(name, values))
    assert PLAIN.read(name, message) == values
    assert SHORTER.read(name, message) == only(values, SHORTER.shapes[name])
    assert LONGER.read(name, message) == _longer_without_more(values)


def _longer_without_more(values: Plain) -> Plain:
    """Return the values as a newer schema reads them when its new fields are not set."""
    defaults = {"more0": False, "more1": 0, "more2": "", "more3": [], "more4": 0}
    inner = {name: _each(value) for name, value in values.items()}
    return inner | defaults


def _each(value: Any) -> Any:
    if isinstance(value, dict):
        return _longer_without_more(value)
    return [_each(item) for item in value] if isinstance(value, list) else value


@many
@given(structures(), FIRST_SEGMENT_WORDS)
def test_popef_reads_what_the_reference_writes_in_any_number_of_segments(
    structure: tuple[str, Plain], words: int
) -> None:
    name, values = structure
    message = PLAIN.write(name, values, words)
    assert ours(name, message) == PLAIN.read(name, message) == values


@many
@given(structures(), FIRST_SEGMENT_WORDS)
def test_popef_reads_what_newer_and_older_schemas_write(
    structure: tuple[str, Plain], words: int
) -> None:
    name, values = structure
    newer = LONGER.write(name, with_more(values), words)
    assert ours(name, newer) == PLAIN.read(name, newer) == values
    older = SHORTER.write(name, only(values, SHORTER.shapes[name]), words)
    assert ours(name, older) == PLAIN.read(name, older)
    assert only(ours(name, older), SHORTER.shapes[name]) == only(values, SHORTER.shapes[name])


@many
@given(structures(), SEEDS)
def test_both_read_what_the_builder_scatters_over_segments(
    structure: tuple[str, Plain], seed: int
) -> None:
    name, values = structure
    message = scatter(PLAIN.shapes[name], values, seed)
    assert ours(name, message) == PLAIN.read(name, message) == values


@pytest.mark.parametrize("bits", NARROW)
def test_both_read_integer_lists_of_narrow_elements(bits: int) -> None:
    @settings(many, max_examples=EXAMPLES // 3)
    @given(structures(bits), SEEDS, FIRST_SEGMENT_WORDS)
    def check(structure: tuple[str, Plain], seed: int, words: int) -> None:
        name, values = structure
        for message in (
            scatter(PLAIN.shapes[name], values, seed, bits),
            NARROW[bits].write(name, values, words),
        ):
            assert ours(name, message) == NARROW[bits].read(name, message) == values

    check()


def test_a_32_bit_schema_reads_the_low_halves_of_what_popef_writes() -> None:
    flow = popef.ProgramFlow(load=[0], main=[1, 7], save=[(1 << 32) - 1])
    read = NARROW[32].read("Metadata", encode(popef.Metadata(programFlow=flow)))
    assert read["programFlow"] == to_plain(flow)


def test_the_builder_makes_every_form_it_promises() -> None:
    seen: Counter[str] = Counter()
    option = {"name": "n", "value": ""}
    anchor = PLAIN.shapes["Metadata"].fields[3].struct.default | {"type": 2}
    values = PLAIN.shapes["Metadata"].default | {
        "anchors": [anchor],
        "engineOptions": [option],
        "programFlow": FLOW,
    }
    for seed in range(200):
        message = scatter(PLAIN.shapes["Metadata"], values, seed, 64, seen)
        assert ours("Metadata", message) == PLAIN.read("Metadata", message) == values
    assert set(seen) == {
        "near pointer",
        "pointer backwards",
        "single-far pointer",
        "double-far pointer",
        "null pointer",
        "longer structure",
        "shorter structure",
        "integers in structures",
        "structures in integers",
        "structures in pointers",
    }
    assert min(seen.values()) > 50


FLOW = {"load": [1, -1], "main": [], "save": [1 << 40]}


def test_the_reference_really_makes_many_segments() -> None:
    message = PLAIN.write("OpaqueBlob", {"name": "x" * 100, "executable": "y" * 4000}, 1)
    assert int.from_bytes(message[:4], "little") > 0


def test_small_structures_are_byte_for_byte_those_of_the_reference() -> None:
    for name in ROOTS:
        if name == "Metadata":
            continue  # popef leaves the inferred fields out
        values = PLAIN.shapes[name].default
        values |= {"name": "w"} if "name" in values else {"version": "", "size": 7}
        if "tensorInfo" in values:
            values["tensorInfo"] = {"shape": [2, 3], "dataType": 14}
        assert encode(to_record(name, values)) == PLAIN.write(name, values)


def test_unset_fields_of_the_reference_read_as_defaults() -> None:
    for name in ROOTS:
        assert ours(name, PLAIN.write(name, {})) == PLAIN.shapes[name].default


def test_unknown_enumerants_keep_their_ordinals() -> None:
    message = PLAIN.write("TensorDataInfo", {"tensorInfo": {"dataType": 99}})
    info, _ = decode_message(
        lambda at, size: message[at : at + size],
        0,
        len(message),
        "test",
        popef.Limits(),
        popef.TensorDataInfo,
    )
    assert (int(info.tensorInfo.dataType), info.tensorInfo.dataType.name) == (99, "UNKNOWN_99")
    assert PLAIN.read("TensorDataInfo", message)["tensorInfo"]["dataType"] == 99


@pytest.mark.parametrize("code", [2, 3, 4])
def test_narrow_elements_are_no_structures(code: int) -> None:
    """The reference reads a byte as a structure without its 16-bit field; popef once read the field
    anyway."""
    message = metadata_with_pointer(1, IntsNode(code, [2]))
    assert PLAIN.read("Metadata", message)["anchors"][0]["type"] == (0 if code == 2 else 2)
    with pytest.raises(popef.FormatError, match="struct-list"):
        ours("Metadata", message)


@pytest.mark.parametrize(
    ("slot", "name", "node", "expected"),
    [
        (1, "anchors", IntsNode(0, [0, 0]), 2),
        (1, "anchors", StructsNode([StructNode(), StructNode()], 0, 0), 2),
        (1, "anchors", IntsNode(5, []), 0),
        (3, "engineOptions", PointersNode([text_node("a"), None]), 2),
    ],
)
def test_lists_that_say_little_are_read_alike(
    slot: int, name: str, node: Node, expected: int
) -> None:
    message = metadata_with_pointer(slot, node)
    values = ours("Metadata", message)
    assert values == PLAIN.read("Metadata", message)
    assert len(values[name]) == expected


def metadata_with_pointer(slot: int, node: Node) -> bytes:
    """Return a Metadata message that is null except for one pointer."""
    pointers: list[Node | None] = [None] * 7
    pointers[slot] = node
    return lay_out(StructNode([0] * 6, pointers), Random(1), 1, Counter())


def test_null_in_a_landing_pad_is_no_list() -> None:
    """popef once read it as null; for the reference the pad is a structure of no words."""
    message = encode(popef.Metadata(anchors=[popef.Anchor()]))
    words = [int.from_bytes(message[i : i + 8], "little") for i in range(8, len(message), 8)]
    flow, anchors = 1 + 5 + 5, 1 + 5 + 1
    for pointer, refused in ((anchors, True), (flow, False)):
        damaged = _framed([*words[:pointer], FAR | len(words) << 3, *words[pointer + 1 :], 0])
        if refused:
            with pytest.raises(capnp.KjException, match="non-list pointer"):
                PLAIN.read("Metadata", damaged)
            with pytest.raises(popef.FormatError, match="pointer-kind"):
                ours("Metadata", damaged)
        else:
            assert ours("Metadata", damaged) == PLAIN.read("Metadata", damaged)


def _framed(words: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in (len(words) << 32, *words))


@many
@given(FILES)
def test_the_reference_reads_the_files_popef_writes(file: list[PlainBlob]) -> None:
    assert split_by_reference(written_by_popef(file)) == file


@many
@given(FILES, SEEDS)
def test_popef_reads_files_of_the_reference_and_of_the_builder(
    file: list[PlainBlob], seed: int
) -> None:
    data = b"".join(written_by_others(blob, seed + i) for i, blob in enumerate(file))
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    found = [
        (int(blob.type), to_plain(blob.structure), bytes(blob.payload())) for blob in reader.blobs()
    ]
    assert found == split_by_reference(data) == file


@pytest.mark.slow
@settings(many, max_examples=3 * EXAMPLES)
@given(structures(), SEEDS)
def test_damaged_messages_are_read_alike_or_refused(
    structure: tuple[str, Plain], seed: int
) -> None:
    name, values = structure
    message = (
        encode(to_record(name, values))
        if seed % 4 == 0
        else scatter(PLAIN.shapes[name], values, seed)
    )
    for i in range(4):
        compare(name, mutate_words(message, Random(seed + i)))


def compare(name: str, message: bytes) -> None:
    """Compare both libraries on a message that may be damaged."""
    try:
        theirs = PLAIN.read(name, message)
    except (capnp.KjException, ValueError) as error:
        theirs = str(error)
    try:
        found = ours(name, message)
    except popef.LimitError:
        return
    except popef.FormatError as error:
        assert isinstance(theirs, str) or _forgiven(error)  # noqa: PT017 - either outcome may be right
        return
    if isinstance(theirs, str):
        assert any(text in theirs for text in FORGIVEN_VALUES), theirs
    else:
        assert found == _without_ignored(theirs, found)


def _forgiven(error: popef.FormatError) -> bool:
    if error.rule is popef.Rule.POINTER_BOUNDS:
        first, last = re.findall(r"-?\d+", error.got)
        return first == last
    return error.rule in FORGIVEN_REFUSALS


def _without_ignored(theirs: Any, found: Any) -> Any:
    """Return the reference's values. Where either reader ignored an inferred field, use the value
    that popef read."""
    if isinstance(theirs, dict):
        return {
            name: found[name]
            if name in INFERRED and not (value and found[name])
            else _without_ignored(value, found[name])
            for name, value in theirs.items()
        }
    if isinstance(theirs, list) and len(theirs) == len(found):
        return [_without_ignored(*pair) for pair in zip(theirs, found, strict=True)]
    return theirs
