"""Requests of many parts and their compact forms mean the same, as TensorFlow's messages show."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving import wire
from poplar_triton.tfserving.entries import (
    MANY_VALUES,
    MAX_PARTS,
    MAX_VALUES,
    EntryCounter,
    compact,
)
from poplar_triton.tfserving.models import ServingError
from tensor_protos import FIELDS, NUMBERS, make_tensor_proto

TensorProto = make_tensor_proto(packed=False)
VALUES = {
    "DT_STRING": st.binary(max_size=200),
    "DT_BOOL": st.booleans(),
    "DT_FLOAT": st.floats(width=32, allow_nan=False),
    "DT_DOUBLE": st.floats(allow_nan=False),
    "DT_HALF": st.integers(0, 0x7BFF),
    "DT_UINT32": st.integers(0, 2**32 - 1),
    "DT_UINT64": st.integers(0, 2**64 - 1),
    "DT_INT64": st.integers(-(2**63), 2**63 - 1),
}
SMALL = st.integers(-(2**31), 2**31 - 1)


def write(tensor):
    """Return a serialized request with this input."""
    data = tensor.SerializeToString()
    request = messages.PredictRequest(output_filter=["y"])
    request.model_spec.name = "m"
    request.inputs["x"].MergeFromString(data)
    return request.SerializeToString()


def make_tensor(name, values, sizes):
    tensor = TensorProto(dtype=NUMBERS[name])
    getattr(tensor, FIELDS[name][0]).extend(values)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    return tensor


def read(message):
    """Return everything that a request says, or the error that rejects it."""
    request = messages.PredictRequest.FromString(message)
    tensor = request.inputs["x"]
    dtype, shape = wire.read_dtype("x", tensor), wire.read_shape("x", tensor)
    try:
        values = wire.read_values("x", tensor, dtype, shape).tolist()
    except ServingError as error:
        values = str(error)
    return request.model_spec.name, list(request.output_filter), dtype, shape, values


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from(sorted(FIELDS)), st.integers(-2, 2))
def test_a_compact_request_means_the_same(data, name, more):
    values = data.draw(st.lists(VALUES.get(name, SMALL), min_size=1, max_size=6))
    message = write(make_tensor(name, values, [max(1, len(values) + more)]))
    compacted = compact(message)
    assert read(compacted) == read(message)
    if name != "DT_STRING":
        tensor = messages.PredictRequest.FromString(compacted).inputs["x"].SerializeToString()
        assert list(getattr(TensorProto.FromString(tensor), FIELDS[name][0])) == values


@pytest.mark.parametrize(
    ("name", "value"), [("DT_STRING", b"ab"), ("DT_INT32", -7), ("DT_FLOAT", 0.5)]
)
def test_many_values_become_one_part(name, value):
    values = [value] * (MANY_VALUES + 2)
    message = write(make_tensor(name, values, [2, len(values) // 2]))
    assert not EntryCounter("PredictRequest", MANY_VALUES).check(message)
    compacted = compact(message)
    assert EntryCounter("PredictRequest", 2).check(compacted)
    assert np.array_equal(read(compacted)[-1], np.reshape(values, (2, -1)).tolist())


def test_a_broken_message_is_kept_and_one_of_too_many_parts_rejected():
    message = write(make_tensor("DT_INT32", [1] * 5, [5]))
    assert compact(message[:-1]) == message[:-1]
    many = messages.PredictRequest(output_filter=["y"] * (MAX_PARTS + 1)).SerializeToString()
    with pytest.raises(ServingError, match="expected at most 4096 inputs"):
        compact(many)
    assert MANY_VALUES < MAX_VALUES
