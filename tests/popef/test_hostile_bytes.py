"""Tests that any bytes parse or raise PopefError, at a cost in proportion to their number."""

from __future__ import annotations

import contextlib
import struct

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from popef_blobs import message, metadata_blob, parse, whole

import popef


def test_every_truncation_is_refused():
    data = whole()
    ends = {blob.end for blob in parse(data).blobs()}
    for size in range(1, len(data)):
        if size in ends:
            parse(data[:size])
        else:
            with pytest.raises(popef.PopefError):
                parse(data[:size])


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_changed_bytes_parse_or_raise_popef_error(changes):
    data = bytearray(whole())
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(popef.PopefError):
        parse(bytes(data))


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_parse_or_raise_popef_error(data):
    with contextlib.suppress(popef.PopefError):
        parse(data)


STRUCT_2_1 = 0 | 2 << 32 | 1 << 48


HOSTILE = {
    "a segment count beyond the file": struct.pack("<II", 0xFFFFFFFE, 1),
    "too many segments": struct.pack("<I", 600) + bytes(4 * 601 + 4),
    "a segment longer than the file": struct.pack("<II", 0, 0xFFFFFFFF) + bytes(64),
    "an empty first segment": struct.pack("<II", 0, 0) + bytes(8),
    "a root outside its segment": message(100 << 2 | STRUCT_2_1, 0, 0, 0),
    "a root that points backwards": message((2**30 - 5) << 2 | STRUCT_2_1, 0, 0, 0),
    "a root that is a list": message(1 | 2 << 32 | 8 << 35, 0, 0, 0),
    "a far root into no segment": message(2 | 7 << 32, 0, 0, 0),
    "a far root onto itself": message(2, 0, 0, 0),
    "a blob that ends before its structure": message(STRUCT_2_1, 1, 8, 0),
    "a blob of no size": message(STRUCT_2_1, 1, 0, 0),
    "a blob of 2^64 - 1 bytes": message(STRUCT_2_1, 1, 2**64 - 1, 0),
    "a text of another element size": message(STRUCT_2_1, 1, 64, 1 | 5 << 32 | 1 << 35, 0),
    "a text of no bytes": message(STRUCT_2_1, 1, 64, 1 | 2 << 32, 0),
    "a text without its end": message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 8 << 35, 0x4141414141414141),
    "a text that is not UTF-8": message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 2 << 35, 0xFF),
    "a text past its segment": message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 999 << 35, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_broken_rule_is_refused_with_its_place(name):
    with pytest.raises(popef.PopefError, match="blob 0"):
        parse(HOSTILE[name] + bytes(200 if "text" in name else 0))


def test_a_list_of_a_billion_empty_anchors_costs_nothing():
    """The file attempts amplification: a composite list whose elements have no words."""
    root = [0 | 5 << 32 | 6 << 48, *([0] * 5), *([0] * 6)]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32
    tag = ((1 << 29) - 1) << 2
    with pytest.raises(popef.PopefError):
        parse(metadata_blob([*root, tag]))


def test_a_quarter_of_a_million_empty_anchors_are_refused_for_what_they_cost():
    root = [0 | 5 << 32 | 6 << 48, *([0] * 5), *([0] * 6)]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32
    with pytest.raises(popef.LimitError, match="visits a word"):
        parse(metadata_blob([*root, (popef.Limits().max_list_items - 1) << 2]))


def test_structures_that_overlap_cannot_multiply_the_work():
    """The names of a thousand anchors are all the same megabyte of text."""
    count, text_words = 1000, 1 << 17
    root = [5 << 32 | 6 << 48, *([0] * 11), count << 2 | 1 << 48]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32 | count << 35
    names = [1 | (count - i - 1) << 2 | 2 << 32 | (text_words * 8) << 35 for i in range(count)]
    words = root + names + [0x4141414141414141] * (text_words - 1) + [0x41]
    with pytest.raises(popef.LimitError, match="do not trust this file"):
        parse(metadata_blob(words))
