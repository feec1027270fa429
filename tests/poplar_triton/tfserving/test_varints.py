"""Packed numbers of variable length, compared with protobuf's own writing of them."""

import numpy as np
import pytest
from example_counts import examples
from google.protobuf.internal import encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from poplar_triton.tfserving.wire import read_varints, write_varints


def encode(number):
    parts = []
    encoder._VarintEncoder()(parts.append, number & (2**64 - 1))
    return b"".join(parts)


EDGES = [sign * 2**bits + step for bits in range(63) for sign in (1, -1) for step in (-1, 0, 1)]
SIGNED = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
MANY = 300
"""Number of repetitions at which numbers are no longer read and written one by one."""
PREFIXES = pytest.mark.parametrize("prefix", [b"", b"\x80\x01" * MANY], ids=["few", "many"])
TYPES = [
    np.dtype(name) for name in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64".split()
]


@settings(max_examples=examples(80))
@given(st.lists(SIGNED), st.sampled_from([1, MANY]))
def test_signed_numbers_are_those_of_protobuf(numbers, times):
    numbers = numbers * times
    packed = b"".join(map(encode, numbers))
    assert write_varints(np.array(numbers, np.int64)) == packed
    assert read_varints(packed).view(np.int64).tolist() == numbers


@settings(max_examples=examples(80))
@given(st.lists(st.integers(0, 2**64 - 1)), st.sampled_from([1, MANY]))
def test_unsigned_numbers_are_those_of_protobuf(numbers, times):
    numbers = numbers * times
    packed = b"".join(map(encode, numbers))
    assert write_varints(np.array(numbers, np.uint64)) == packed
    assert read_varints(packed).tolist() == numbers


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_extremes_of_every_type_are_written(dtype, times):
    values = (
        [False, True] if dtype.kind == "b" else [0, 1, np.iinfo(dtype).min, np.iinfo(dtype).max]
    )
    array = np.array(values * times, dtype).reshape(2, -1)
    assert write_varints(array) == b"".join(encode(int(value)) for value in values) * times
    assert write_varints(array[:0]) == b""


def test_more_numbers_than_are_read_at_once_stay_in_order():
    numbers = np.arange(200_001, dtype=np.uint64) * 37
    np.testing.assert_array_equal(read_varints(write_varints(numbers)), numbers)


@PREFIXES
@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"\x80", "incomplete"),
        (b"\x01\x80", "incomplete"),
        (b"\xff" * 9, "incomplete"),
        (b"\x80" * 10 + b"\x00", "longer than ten bytes"),
        (b"\x01" + b"\x80" * 10 + b"\x01\x02", "longer than ten bytes"),
        (b"\x80" * 1_000_000 + b"\x01", "longer than ten bytes"),
    ],
)
def test_invalid_varints_are_rejected(packed, reason, prefix):
    with pytest.raises(ValueError, match=reason):
        read_varints(prefix + packed)


@PREFIXES
@given(st.binary(max_size=40))
def test_any_bytes_are_numbers_or_refused(prefix, packed):
    packed = prefix + packed
    try:
        numbers = read_varints(packed)
    except ValueError:
        return
    assert len(numbers) == sum(byte < 0x80 for byte in packed)


@pytest.mark.parametrize("times", [1, MANY])
def test_longer_ways_to_write_a_number_and_bits_beyond_64_are_read_as_protobuf_reads_them(times):
    assert read_varints(b"\x80\x00\x81\x00" * times).tolist() == [0, 1] * times
    assert read_varints((b"\x80" * 9 + b"\x7f") * times).tolist() == [2**63] * times
