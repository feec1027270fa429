"""Tests of every limit of the wire's reader from both sides: just within it, and just beyond."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from popef_blobs import message

from popef import FormatError, LimitError, Limits, Rule
from popef.wire import MAX_SEGMENTS, VISITS_PER_WORD, Message, StructsAt, list_words, read_message

NOTHING, BIT, BYTE, SHORT, INT, LONG, POINTER, COMPOSITE = range(8)
ONE_WORD = 1 << 32
"""Half of a struct pointer for one word of data and no pointers."""
MASK = (1 << 64) - 1


START = 24
"""Offset at which messages begin in their files."""


def read(data: bytes, limits: Limits | None = None, *, size: int | None = None) -> Message:
    """Return the message at the start of `data`, or of its first `size` bytes. Other bytes come
    before it in the file."""
    file = b"?" * START + data
    end = START + (len(data) if size is None else size)
    return read_message(
        lambda at, size: file[at : at + size], START, end, "blob 7", limits or Limits()
    )


def segment(*words: int, limits: Limits | None = None) -> Message:
    """Return a message of one segment of these words."""
    return read(message(*words), limits)


def segments(*contents: list[int]) -> Message:
    """Return a message of several segments."""
    return read(
        frame(*map(len, contents))
        + b"".join(struct.pack(f"<{len(each)}Q", *each) for each in contents)
    )


def frame(*sizes: int) -> bytes:
    """Return a segment table."""
    table = struct.pack(f"<{len(sizes) + 1}I", len(sizes) - 1, *sizes)
    return table + bytes(-len(table) % 8)


def struct_pointer(offset: int, data_words: int = 0, num_pointers: int = 0) -> int:
    return (offset & 0x3FFFFFFF) << 2 | data_words << 32 | num_pointers << 48


def list_pointer(offset: int, code: int, count: int) -> int:
    return 1 | (offset & 0x3FFFFFFF) << 2 | code << 32 | count << 35


def far(target: int, offset: int, *, double: bool = False) -> int:
    return 2 | double << 2 | offset << 3 | target << 32


def breaks(rule: Rule, got: str = "") -> AbstractContextManager[pytest.ExceptionInfo[FormatError]]:
    """Expect an error that cites this rule and reports `got`."""
    return pytest.raises(FormatError, match=rf"got .*{re.escape(got)}.*\({rule}\)$")


def test_a_message_has_16_bytes_at_least() -> None:
    assert read(message(0)).end == START + 16
    with breaks(Rule.SEGMENT_TABLE, "15 bytes"):
        read(message(0), size=15)


def test_a_message_has_512_segments_at_most() -> None:
    assert len(read(frame(1, *[0] * (MAX_SEGMENTS - 1)) + bytes(8)).segments) == MAX_SEGMENTS == 512
    with breaks(Rule.SEGMENT_TABLE, "513 segments"):
        read(frame(1, *[0] * MAX_SEGMENTS) + bytes(8))
    with breaks(Rule.SEGMENT_TABLE, f"{2**24 + 1} segments"):
        read(struct.pack("<II", 2**24, 1) + bytes(8))


def test_a_segment_table_may_end_with_the_blob_and_not_behind_it() -> None:
    """A table for three segments takes 16 bytes, and one for four takes 24."""
    with breaks(Rule.SEGMENT_BOUNDS, "8 bytes of segments"):
        read(frame(1, 0, 0))
    with breaks(Rule.SEGMENT_TABLE, "16 bytes"):
        read(frame(1, 0, 0, 0), size=16)


@pytest.mark.parametrize(
    ("num_segments", "table_bytes"), [(1, 8), (2, 16), (3, 16), (4, 24), (5, 24)]
)
def test_a_segment_table_is_padded_to_words(num_segments: int, table_bytes: int) -> None:
    found = read(frame(*[1] * num_segments) + bytes(8 * num_segments))
    assert found.offset(0, 0) == START + table_bytes
    assert found.end == START + table_bytes + 8 * num_segments


def test_only_the_first_segment_must_hold_something() -> None:
    assert [len(each) for each in read(frame(1, 0) + bytes(8)).segments] == [8, 0]
    with breaks(Rule.SEGMENT_TABLE, "an empty one"):
        read(frame(0, 1) + bytes(8))


def test_segments_may_end_with_the_blob_and_not_behind_it() -> None:
    data = frame(2, 1) + bytes(24)
    assert read(data).end == START + len(data)
    with breaks(Rule.SEGMENT_BOUNDS, "24 bytes of segments") as caught:
        read(data, size=len(data) - 1)
    assert (caught.value.offset, caught.value.expected) == (START, "a message of at most 23 bytes")


def test_words_stand_where_the_file_has_them() -> None:
    found = read(frame(2, 1) + struct.pack("<3Q", 10, 20, 30) + b"after")
    assert [list(words) for words in found.words] == [[10, 20], [30]]
    assert [found.offset(0, 0), found.offset(0, 1), found.offset(1, 0)] == [
        START + 16,
        START + 24,
        START + 32,
    ]
    assert found.end == START + 40


def test_a_message_is_as_large_as_its_limit_allows() -> None:
    assert len(segment(0, 0, limits=Limits(max_structure_bytes=16)).segments[0]) == 16
    with pytest.raises(
        LimitError, match=r"at most 15 bytes, got 16; raise Limits\.max_structure_bytes"
    ):
        segment(0, 0, limits=Limits(max_structure_bytes=15))


@pytest.mark.parametrize("size", [3, 7, 8, 15])
def test_a_file_that_shrinks_while_it_is_read_is_refused(size: int) -> None:
    """The file shrinks in the number of segments, in the table, or in the segments."""
    data = message(0)[:size]
    with breaks(Rule.BLOB_SIZE, "the file shrank while being read"):
        read(data, size=16)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    ("bits", "offset"),
    [(0, 0), (1, 1), (0x1FFFFFFF, 2**29 - 1), (0x20000000, -(2**29)), (0x3FFFFFFF, -1)],
)
def test_the_offset_of_a_pointer_has_30_bits_with_a_sign(kind: int, bits: int, offset: int) -> None:
    word = kind | bits << 2 | ONE_WORD
    assert segment(0, word).follow(0, 1) == (0, 2 + offset, word)


def test_a_pointer_of_zeros_leads_nowhere() -> None:
    found = segment(0)
    assert found.follow(0, 0) is None
    assert found.struct(0, 0) is None
    assert found.structs(0, 0) == StructsAt(0, 0, 0, 0, 0)
    assert (found.text(0, 0), found.ints(0, 0)) == ("", ())


def test_a_capability_is_refused() -> None:
    with breaks(Rule.POINTER_KIND, "a capability pointer 0x0000000000000003"):
        segment(3).follow(0, 0)


@pytest.mark.parametrize(("offset", "right"), [(1, True), (2, False), (-2, True), (-3, False)])
def test_a_structure_lies_inside_its_segment(offset: int, right: bool) -> None:
    """The structure is one word after the second of four: at both ends, and a word beyond
    either."""
    found = segment(0, struct_pointer(offset, 1), 0, 0)
    if right:
        assert found.struct(0, 1) == (0, 2 + offset, 1, 0)
        return
    with breaks(Rule.POINTER_BOUNDS, f"words {2 + offset} to {3 + offset}"):
        found.struct(0, 1)


def test_a_structure_of_no_words_may_stand_at_the_end_and_not_behind_it() -> None:
    assert segment(struct_pointer(1), 0).struct(0, 0) == (0, 2, 0, 0)
    with breaks(Rule.POINTER_BOUNDS, "words 3 to 3") as caught:
        segment(struct_pointer(2), 0).struct(0, 0)
    assert caught.value.offset == START + 8, "that of the segment"


def test_the_sizes_of_a_structure_have_16_bits_each() -> None:
    found = segment(struct_pointer(0, 2**16 - 1), *[0] * (2**16 - 1))
    assert found.struct(0, 0) == (0, 1, 2**16 - 1, 0)
    found = segment(struct_pointer(0, 0, 2**16 - 1), *[0] * (2**16 - 1))
    assert found.struct(0, 0) == (0, 1, 0, 2**16 - 1)


def test_a_far_pointer_leads_into_a_segment_that_is_there() -> None:
    pad = struct_pointer(0, 1)
    assert segments([far(1, 0)], [pad, 0]).struct(0, 0) == (1, 1, 1, 0)
    with breaks(Rule.FAR_POINTER, "segment 2"):
        segments([far(2, 0)], [pad, 0]).struct(0, 0)


@pytest.mark.parametrize("double", [False, True])
def test_a_landing_pad_lies_inside_its_segment(double: bool) -> None:
    """The landing pad is one word, or two when double, at the end of three."""
    words = [0, far(1, 0), 0] if double else [0, 0, struct_pointer(-1)]
    last = 1 if double else 2
    content = 0 if double else 2
    assert segments([far(1, last, double=double)], words).follow(0, 0) == (1, content, words[2])
    with breaks(Rule.FAR_POINTER, f"words {last + 1} to 4"):
        segments([far(1, last + 1, double=double)], words).follow(0, 0)


def test_the_offset_of_a_landing_pad_has_29_bits() -> None:
    with breaks(Rule.FAR_POINTER, f"words {2**29 - 1} to {2**29}"):
        segment(far(0, 2**29 - 1)).follow(0, 0)


def test_the_content_of_a_double_far_pointer_may_end_with_its_segment() -> None:
    tag = struct_pointer(0)
    found = segments([far(1, 0, double=True)], [far(2, 1), tag], [0])
    assert found.struct(0, 0) == (2, 1, 0, 0)
    with breaks(Rule.FAR_POINTER, "words 2 to 2"):
        segments([far(1, 0, double=True)], [far(2, 2), tag], [0]).struct(0, 0)


@pytest.mark.parametrize("pad", [far(0, 0), far(0, 0, double=True), 3])
def test_a_landing_pad_is_a_struct_or_list_pointer(pad: int) -> None:
    with breaks(Rule.FAR_POINTER, f"{pad:#018x}"):
        segments([far(1, 0)], [pad]).follow(0, 0)


@pytest.mark.parametrize(
    "pad", [struct_pointer(0, 1), list_pointer(0, BYTE, 1), 3, far(0, 0, double=True), 7]
)
def test_the_first_word_of_a_double_landing_pad_is_a_single_far_pointer(pad: int) -> None:
    with breaks(Rule.FAR_POINTER, f"{pad:#018x}"):
        segments([far(1, 0, double=True)], [pad, 0]).follow(0, 0)


@pytest.mark.parametrize("tag", [far(0, 0), 3])
def test_the_tag_of_a_double_landing_pad_is_a_struct_or_list_pointer(tag: int) -> None:
    with breaks(Rule.FAR_POINTER, f"{tag:#018x}") as caught:
        segments([far(1, 0, double=True)], [far(0, 0), tag]).follow(0, 0)
    assert caught.value.offset == START + 16 + 16, "that of the tag, behind the table and two words"


@pytest.mark.parametrize("double", [False, True])
def test_a_far_pointer_may_lead_to_a_list(double: bool) -> None:
    words = [far(1, 2), list_pointer(0, BYTE, 1), 0] if double else [list_pointer(1, BYTE, 1), 0, 0]
    assert segments([far(1, 0, double=double)], words).text(0, 0) == ""


def test_null_in_a_landing_pad_is_a_structure_of_no_words() -> None:
    assert segments([far(1, 0)], [0]).struct(0, 0) == (1, 1, 0, 0)


@pytest.mark.parametrize("count", [1, 8, 9, 16])
def test_a_text_lies_inside_its_segment(count: int) -> None:
    """The reader rounds bytes up to words."""
    raw = b"a" * (count - 1) + b"\0"
    words = struct.unpack(f"<{(count + 7) // 8}Q", raw + bytes(-count % 8))
    assert segment(list_pointer(0, BYTE, count), *words).text(0, 0) == "a" * (count - 1)
    with breaks(Rule.POINTER_BOUNDS):
        segment(list_pointer(0, BYTE, count), *words[:-1]).text(0, 0)


@pytest.mark.parametrize(
    ("code", "count"), [(BYTE, 0), (BIT, 8), (SHORT, 1), (NOTHING, 1), (COMPOSITE, 0)]
)
def test_a_text_is_bytes_one_at_least(code: int, count: int) -> None:
    with breaks(Rule.TEXT, f"{count} elements of size code {code}"):
        segment(list_pointer(0, code, count), 0).text(0, 0)


def test_a_text_ends_in_nul_and_is_utf_8() -> None:
    assert segment(list_pointer(0, BYTE, 3), 0xA9C3).text(0, 0) == "é"
    with breaks(Rule.TEXT, "0xa9"):
        segment(list_pointer(0, BYTE, 2), 0xA9C3).text(0, 0)
    with breaks(Rule.TEXT, "unexpected end of data"):
        segment(list_pointer(0, BYTE, 2), 0x00C3).text(0, 0)


def test_a_structure_is_no_text_and_a_list_no_structure() -> None:
    with breaks(Rule.POINTER_KIND, "a struct pointer 0x0000000100000000"):
        segment(struct_pointer(0, 1), 0).text(0, 0)
    with breaks(Rule.POINTER_KIND, "a list"):
        segment(list_pointer(0, BYTE, 1), 0).struct(0, 0)


@pytest.mark.parametrize(("code", "width"), [(BYTE, 1), (SHORT, 2), (INT, 4)])
def test_integers_narrower_than_a_word_are_unsigned(code: int, width: int) -> None:
    """The newer API says uint32_t, and the listing prints 64 bits: a list pointer contains its own
    width."""
    found = segment(list_pointer(0, code, 8 // width), MASK)
    assert found.ints(0, 0) == (256**width - 1,) * (8 // width)


def test_integers_of_a_word_are_signed() -> None:
    assert segment(list_pointer(0, LONG, 2), 2**63 - 1, 2**63).ints(0, 0) == (2**63 - 1, -(2**63))


def test_structures_stand_for_the_integers_they_begin_with() -> None:
    tag = 2 << 2 | 1 << 32 | 1 << 48
    found = segment(list_pointer(0, COMPOSITE, 4), tag, 2**63 - 1, 0, 2**63, 0)
    assert found.ints(0, 0) == [2**63 - 1, -(2**63)]


def test_structures_without_data_are_integers_only_when_there_are_none() -> None:
    assert segment(list_pointer(0, COMPOSITE, 1), 0 << 2 | 1 << 48, 0).ints(0, 0) == []
    with breaks(Rule.INTEGERS, "structures without data"):
        segment(list_pointer(0, COMPOSITE, 1), 1 << 2 | 1 << 48, 0).ints(0, 0)


@pytest.mark.parametrize("code", [NOTHING, BIT, POINTER])
def test_lists_of_other_things_are_integers_only_when_there_are_none(code: int) -> None:
    assert segment(list_pointer(0, code, 0)).ints(0, 0) == ()
    with breaks(Rule.INTEGERS, f"element size code {code}"):
        segment(list_pointer(0, code, 1), 0).ints(0, 0)


@pytest.mark.parametrize(("code", "count"), [(BYTE, 8), (SHORT, 4), (INT, 2), (LONG, 1)])
def test_integers_lie_inside_their_segment(code: int, count: int) -> None:
    assert len(segment(list_pointer(0, code, count), 0).ints(0, 0)) == count
    with breaks(Rule.POINTER_BOUNDS):
        segment(list_pointer(0, code, count + 1), 0).ints(0, 0)


def test_the_elements_of_a_list_fit_into_the_words_that_it_announces() -> None:
    tag = struct_pointer(2, 1, 1)
    assert segment(list_pointer(0, COMPOSITE, 4), tag, *[0] * 4).structs(0, 0) == StructsAt(
        0, 2, 2, 1, 1
    )
    with breaks(Rule.STRUCT_LIST, "2 of 2 words"):
        segment(list_pointer(0, COMPOSITE, 3), tag, *[0] * 4).structs(0, 0)


def test_a_list_and_its_tag_lie_inside_their_segment() -> None:
    tag = struct_pointer(1, 1)
    assert segment(list_pointer(0, COMPOSITE, 1), tag, 0).structs(0, 0).length == 1
    with breaks(Rule.POINTER_BOUNDS, "words 1 to 3"):
        segment(list_pointer(0, COMPOSITE, 1), tag).structs(0, 0)


def test_the_count_of_a_tag_has_30_bits() -> None:
    found = segment(list_pointer(0, COMPOSITE, 0), struct_pointer(2**30 - 1))
    with pytest.raises(LimitError, match=f"got {2**30 - 1}"):
        found.structs(0, 0)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_tag_of_a_list_is_a_struct_pointer(kind: int) -> None:
    with breaks(Rule.STRUCT_LIST, "1 of 1 words"):
        segment(list_pointer(0, COMPOSITE, 1), kind | struct_pointer(1, 1), 0).structs(0, 0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (NOTHING, StructsAt(0, 1, 2, 0, 0)),
        (LONG, StructsAt(0, 1, 2, 1, 0)),
        (POINTER, StructsAt(0, 1, 2, 0, 1)),
    ],
)
def test_lists_of_words_pointers_and_nothing_stand_for_structures(
    code: int, expected: StructsAt
) -> None:
    assert segment(list_pointer(0, code, 2), 0, 0).structs(0, 0) == expected


@pytest.mark.parametrize("code", [BYTE, SHORT, INT])
def test_lists_of_less_than_words_are_structures_only_when_there_are_none(code: int) -> None:
    assert segment(list_pointer(0, code, 0)).structs(0, 0).length == 0
    with breaks(Rule.STRUCT_LIST, f"1 elements of {4 << (code - 1)} bits"):
        segment(list_pointer(0, code, 1), 0).structs(0, 0)


def test_a_list_of_bits_is_never_one_of_structures() -> None:
    with breaks(Rule.STRUCT_LIST, "0 elements of 1 bits"):
        segment(list_pointer(0, BIT, 0)).structs(0, 0)


@pytest.mark.parametrize(
    ("code", "count", "words"),
    [
        (NOTHING, 100, 0),
        (BIT, 64, 1),
        (BIT, 65, 2),
        (BYTE, 8, 1),
        (BYTE, 9, 2),
        (INT, 2, 1),
        (LONG, 64, 64),
        (POINTER, 64, 64),
        (COMPOSITE, 64, 64),
    ],
)
def test_lists_take_whole_words(code: int, count: int, words: int) -> None:
    assert list_words(code, count) == words


def lists_of(count: int) -> Iterator[tuple[Callable[[Message], object], list[int]]]:
    """Yield a list of each kind with `count` elements, and the function that reads it."""
    yield lambda found: found.ints(0, 0), [list_pointer(0, LONG, count), *[0] * count]
    yield lambda found: found.structs(0, 0), [list_pointer(0, LONG, count), *[0] * count]
    yield lambda found: found.structs(0, 0), [list_pointer(0, COMPOSITE, 0), struct_pointer(count)]


@pytest.mark.parametrize("place", range(3))
def test_a_list_is_as_long_as_its_limit_allows(place: int) -> None:
    limits = Limits(max_list_items=1)
    call, words = list(lists_of(1))[place]
    call(segment(*words, limits=limits))
    call, words = list(lists_of(2))[place]
    found = segment(*words, limits=limits)
    with pytest.raises(
        LimitError, match=r"at most 1 list elements, got 2; raise Limits\.max_list_items"
    ):
        call(found)


COSTS: dict[str, tuple[Callable[[Message], object], list[int], int]] = {
    "a structure its words": (
        lambda found: found.struct(0, 0),
        [struct_pointer(0, 1, 2), 0, 0, 0],
        3,
    ),
    "a text its words": (lambda found: found.text(0, 0), [list_pointer(0, BYTE, 9), 0, 0], 2),
    "integers their words and their number": (
        lambda found: found.ints(0, 0),
        [list_pointer(0, INT, 3), 0, 0],
        2 + 3,
    ),
    "structures their words, the tag and a fee each": (
        lambda found: found.structs(0, 0),
        [list_pointer(0, COMPOSITE, 2), struct_pointer(2, 1), 0, 0],
        3 + 2 * 8,
    ),
    "what stands for structures its words and a fee each": (
        lambda found: found.structs(0, 0),
        [list_pointer(0, LONG, 2), 0, 0],
        2 + 2 * 8,
    ),
    "a far pointer its landing pad": (
        lambda found: found.follow(0, 0),
        [far(0, 1), struct_pointer(0, 1), 0],
        1,
    ),
    "a double one both words of it": (
        lambda found: found.follow(0, 0),
        [far(0, 1, double=True), far(0, 0), struct_pointer(0, 1), 0],
        2,
    ),
}


@pytest.mark.parametrize("what", COSTS)
def test_visiting_costs(what: str) -> None:
    """The rest of the budget can be spent after a visit, and no more. Each word of a message adds
    eight visits."""
    visit, words, cost = COSTS[what]
    found = segment(*words)
    visit(found)
    found.charge(VISITS_PER_WORD * len(words) - cost)
    with pytest.raises(LimitError, match=r"^blob 7: expected at most 8 visits a word, got more"):
        found.charge(1)
