"""Tensors read from and written to messages, compared with protobuf's own reading of the bytes."""

import tracemalloc

import numpy as np
import pytest
from example_counts import examples
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving import wire
from poplar_triton.tfserving.models import BY_DTYPE, TYPES, Code, ServingError
from tensor_protos import FIELDS, NUMBERS, make_tensor_proto

PACKED, UNPACKED = make_tensor_proto(packed=True), make_tensor_proto(packed=False)
NUMERIC = [each for each in TYPES if each.name != "DT_STRING"]
by_type = pytest.mark.parametrize("kind", NUMERIC, ids=lambda kind: kind.name)


def read(tensor):
    """Read a message as the service does, out of its bytes."""
    received = messages.Tensor.FromString(tensor.SerializeToString())
    dtype = wire.read_dtype("x", received)
    return wire.read_values("x", received, dtype, wire.read_shape("x", received))


def refuse(tensor):
    """Return the error that rejects the tensor, and check that this takes little memory."""
    data = tensor.SerializeToString()
    tracemalloc.start()
    try:
        with pytest.raises(ServingError, match=r"^input 'x': expected") as refused:
            read(messages.Tensor.FromString(data))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 + 10 * len(data)
    finally:
        tracemalloc.stop()
    assert refused.value.code is Code.INVALID_ARGUMENT
    return str(refused.value)


def parse(kind, data):
    """Return the parsed message, or None if the data is no message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def make(name, shape, values=(), kind=PACKED, **fields):
    """Return a message of type `kind` with these values in its list."""
    tensor = kind(dtype=NUMBERS[name], **fields)
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    getattr(tensor, FIELDS[name][0]).extend(values)
    return tensor


def listed(array):
    """Return the values that TensorFlow puts into a list for an array."""
    return (array.view(np.uint16) if array.dtype == np.float16 else array).ravel().tolist()


def equal_bits(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def test_the_numbers_of_types_are_tensorflows():
    assert {each.name: each.number for each in TYPES} == NUMBERS


def draw_array(data, dtype):
    bits = {"f": f"u{dtype.itemsize}", "b": "bool"}.get(dtype.kind, dtype.str)
    shape = arrays.array_shapes(min_dims=0, min_side=0, max_side=5)
    return data.draw(arrays.arrays(bits, shape)).view(dtype)


@by_type
@settings(max_examples=examples(20))
@given(data=st.data())
def test_arrays_are_read_as_they_are(kind, data):
    """Arrays are read packed, unpacked and as content.

    Every bit of a NaN is kept, except that Python's own float has no signalling NaN of 32 bits.
    """
    array = draw_array(data, kind.dtype)
    equal_bits(read(make(kind.name, array.shape, tensor_content=array.tobytes())), array)
    if kind.name == "DT_FLOAT":
        array = np.nan_to_num(array, nan=1.5)
    for variant in (PACKED, UNPACKED):
        equal_bits(read(make(kind.name, array.shape, listed(array), variant)), array)


@by_type
@settings(max_examples=examples(20))
@given(data=st.data())
def test_arrays_are_written_as_tensorflow_reads_them(kind, data):
    array = draw_array(data, kind.dtype)
    written = messages.Tensor()
    wire.write_tensor(written, array, as_content=False)
    equal_bits(read(written), array)
    found = PACKED.FromString(written.SerializeToString())
    assert (found.dtype, found.tensor_content) == (kind.number, b"")
    assert [dim.size for dim in found.tensor_shape.dim] == list(array.shape)
    assert str(list(getattr(found, FIELDS[kind.name][0]))) == str(listed(array))

    content = messages.Tensor()
    wire.write_tensor(content, array, as_content=True)
    equal_bits(read(content), array)
    assert PACKED.FromString(content.SerializeToString()).tensor_content == array.tobytes()


def test_arrays_whose_rows_are_apart_are_written_in_order():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    for as_content in (True, False):
        written = messages.Tensor()
        wire.write_tensor(written, array, as_content=as_content)
        np.testing.assert_array_equal(read(written), array)


@by_type
@pytest.mark.parametrize("variant", [PACKED, UNPACKED], ids=["packed", "unpacked"])
def test_the_last_value_counts_for_the_places_that_the_list_does_not_reach(kind, variant):
    two, one = np.array([1, 0], kind.dtype), np.array([1], kind.dtype)
    found = read(make(kind.name, (2, 3), listed(two), variant))
    equal_bits(np.array(found), np.array([[1, 0, 0], [0, 0, 0]], kind.dtype))
    found = read(make(kind.name, (2, 3), listed(one), variant))
    equal_bits(np.array(found), np.ones((2, 3), kind.dtype))


@by_type
def test_no_values_are_zeros(kind):
    equal_bits(np.array(read(make(kind.name, (2, 3)))), np.zeros((2, 3), kind.dtype))
    equal_bits(np.array(read(make(kind.name, ()))), np.zeros((), kind.dtype))
    equal_bits(np.array(read(make(kind.name, (3, 0)))), np.zeros((3, 0), kind.dtype))


@by_type
def test_chunks_of_a_list_and_single_values_after_them_are_one_list(kind):
    array = np.array([1, 0, 1, 1, 0, 1], kind.dtype)
    parts = [
        make(kind.name, (6,), listed(array[:2])),
        make(kind.name, (), listed(array[2:4])),
        make(kind.name, (), listed(array[4:]), UNPACKED),
    ]
    data = b"".join(part.SerializeToString() for part in parts)
    equal_bits(read(messages.Tensor.FromString(data)), array)


def test_of_numbers_of_more_bits_those_that_count_are_taken_as_tensorflow_does():
    for name, values, expected in (
        ("DT_UINT8", [-1, 256, 257], [255, 0, 1]),
        ("DT_INT8", [255, 128], [-1, -128]),
        ("DT_UINT16", [-1], [65535]),
        ("DT_BOOL", [1], [True]),
    ):
        assert read(make(name, (len(values),), values)).tolist() == expected
    assert read(make("DT_BOOL", (3,), tensor_content=b"\x00\x02\xff")).tolist() == [
        False,
        True,
        True,
    ]
    assert read(messages.Tensor(dtype=10, bool_val=[b"\x80\x02"])).item() is True


STRINGS = [b"", b"a", b"\x00\xff", b"x" * 300]


def encode_lengths(strings):
    lengths = PACKED(uint32_val=map(len, strings)).SerializeToString()
    # Field 16's key takes two bytes, the length of the chunk one.
    return lengths[3:]


def test_strings_are_read_both_ways():
    expected = np.array(STRINGS, object)
    np.testing.assert_array_equal(read(make("DT_STRING", (4,), STRINGS)), expected)
    content = encode_lengths(STRINGS) + b"".join(STRINGS)
    found = read(make("DT_STRING", (2, 2), tensor_content=content))
    np.testing.assert_array_equal(found, expected.reshape(2, 2))


def test_strings_are_repeated_and_empty_for_none():
    assert read(make("DT_STRING", (3,), [b"a", b"b"])).tolist() == [b"a", b"b", b"b"]
    assert read(make("DT_STRING", (2,))).tolist() == [b"", b""]


@pytest.mark.parametrize("as_content", [True, False])
def test_strings_are_always_written_as_strings(as_content):
    written = messages.Tensor()
    wire.write_tensor(written, np.array(STRINGS, object).reshape(2, 2), as_content=as_content)
    found = PACKED.FromString(written.SerializeToString())
    assert (list(found.string_val), found.tensor_content, found.dtype) == (STRINGS, b"", 7)
    assert read(written).tolist() == [STRINGS[:2], STRINGS[2:]]


@pytest.mark.parametrize("number", [0, 8, 11, 14, 20, 21, 24, 101, -1, 2**31 - 1])
def test_types_that_no_model_takes_are_refused_with_those_that_are_there(number):
    """DT_BFLOAT16 (14) and the references of old graphs (from 101 on) are among them."""
    text = refuse(messages.Tensor(dtype=number))
    assert "DT_FLOAT = 1" in text
    assert text.endswith(f"found number {number}")


@by_type
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ([-1], r"sizes of 0 or more in its shape, found [-1]"),
        ([2, -(2**63)], "sizes of 0 or more"),
        ([1] * 33, "at most 32 axes, found 33"),
        ([0] * 255, "at most 32 axes, found 255"),
        ([2**62], "2**48 elements,"),
        ([2**63 - 1, 2**63 - 1], "2**48 elements,"),
        ([2**32, 2**32], "2**48 elements,"),
        ([2**63 - 1, 0], "2**48 elements,"),
        ([2**40, 0, 2**40], "2**48 elements,"),
        ([2**47], "all 140737488355328 values of a tensor of more than 64 MiB, found 1"),
    ],
)
def test_shapes_that_no_memory_holds_are_refused(kind, shape, reason):
    assert reason in refuse(make(kind.name, shape, [1]))


@by_type
def test_a_list_is_repeated_up_to_a_limit(kind):
    most = wire.MAX_REPEATED_BYTES // kind.dtype.itemsize
    assert read(make(kind.name, (most,), [1])).shape == (most,)
    assert "found 1" in refuse(make(kind.name, (most + 1,), [1]))
    assert "found 2" in refuse(make(kind.name, (most + 1,), [1, 0]))
    assert "found 0" in refuse(make(kind.name, (most + 1,)))


def test_a_shape_of_unknown_rank_is_refused():
    tensor = make("DT_FLOAT", ())
    tensor.tensor_shape.unknown_rank = True
    assert "unknown_rank" in refuse(tensor)


@by_type
def test_content_of_another_size_is_refused(kind):
    size = kind.dtype.itemsize
    text = refuse(make(kind.name, (2,), tensor_content=b"\1" * (2 * size + 1)))
    assert (
        f"{2 * size} bytes of tensor_content (2 of {kind.dtype.name}), found {2 * size + 1}" in text
    )
    refuse(make(kind.name, (0,), tensor_content=b"\1"))
    refuse(make(kind.name, (2**40,), tensor_content=b"\1"))


@by_type
@pytest.mark.parametrize("variant", [PACKED, UNPACKED], ids=["packed", "unpacked"])
def test_more_values_than_the_shape_has_are_refused(kind, variant):
    text = refuse(make(kind.name, (1, 1), [1, 0], variant))
    assert "at most 1 values for shape [1, 1], found 2" in text


@pytest.mark.parametrize(
    "content",
    [
        b"\x01",
        b"\x01\x01a",
        b"\x01\x01abc",
        b"\x80\x80",
        b"\xff" * 10 + b"\x01a",
        b"\xff" * 9 + b"\x01\x00",
    ],
)
def test_strings_that_are_not_as_long_as_they_say_are_refused(content):
    assert "the lengths of 2 strings, then the strings," in refuse(
        make("DT_STRING", (2,), tensor_content=content)
    )
    assert "strings" in refuse(make("DT_STRING", (2**40,), tensor_content=content))
    assert "strings" in refuse(make("DT_STRING", (0,), tensor_content=content))


@pytest.mark.parametrize("packed", [b"\x80", b"\x80" * 10 + b"\x01", b"\x01\xff"])
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("DT_STRING",)])
def test_bytes_that_are_no_values_are_refused(name, packed):
    field = FIELDS[name][0]
    tensor = messages.Tensor(dtype=NUMBERS[name])
    getattr(tensor, field).append(packed)
    assert f"packed values in {field}, found {len(packed)} other bytes" in refuse(tensor)


def test_values_of_another_type_than_the_tensors_are_not_its_own():
    """TensorFlow reads only the list of the tensor's own type."""
    tensor = make("DT_FLOAT", (2,), [7.0])
    tensor.int_val.extend([1, 2, 3])
    assert read(tensor).tolist() == [7.0, 7.0]


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_fields_of_every_wire_type_are_read_as_protobuf_does_or_refused(name, kind):
    """A field has a value of 2**64 - 1, a chunk or a group, and the schema may differ."""
    number = FIELDS[name][1]
    value = {0: b"\xff" * 9 + b"\x01", 1: b"\xff" * 8, 2: b"\x01\x01", 5: b"\xff" * 4, 4: b""}.get(
        kind, b""
    )
    key = number << 3 | kind
    start = bytes([key]) if key < 0x80 else bytes([key & 0x7F | 0x80, key >> 7])
    end = start[:-1] + bytes([start[-1] + 1]) if kind == 3 and key < 0x80 else b""
    data = make(name, (1,)).SerializeToString() + start + value + end
    theirs, ours = parse(PACKED, data), parse(messages.Tensor, data)
    if theirs is None:
        if ours is not None:
            refuse(ours)
        return
    assert (
        read(ours).tobytes() == read(make(name, (1,), getattr(theirs, FIELDS[name][0]))).tobytes()
    )


@given(
    st.sampled_from(TYPES), st.binary(max_size=60), st.lists(st.integers(-1, 2**63 - 1), max_size=3)
)
def test_any_bytes_make_a_tensor_or_are_refused(kind, data, shape):
    tensor = parse(messages.Tensor, data)
    if tensor is None:
        return
    tensor.dtype = kind.number
    for size in shape:
        tensor.tensor_shape.dim.add(size=size % 5)
    try:
        found = read(tensor)
    except ServingError:
        refuse(tensor)
    else:
        assert BY_DTYPE[found.dtype] is kind


def test_a_million_values_that_are_not_packed_take_little_memory():
    count = 1_000_000
    tensor = make("DT_INT32", (count,), [1] * count, UNPACKED)
    data = tensor.SerializeToString()
    received = messages.Tensor.FromString(data)
    tracemalloc.start()
    try:
        found = wire.read_values("x", received, np.dtype(np.int32), (count,))
        assert tracemalloc.get_traced_memory()[1] < 12 * len(data)
    finally:
        tracemalloc.stop()
    assert found.sum() == count
