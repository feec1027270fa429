"""Requests of many parts are rejected before protobuf makes objects of them; valid ones are not."""

import random
import struct

import numpy as np
import pytest
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.entries import MAX_PARTS, MAX_VALUES, EntryCounter
from poplar_triton.tfserving.models import Code, ServingError
from tfserving_clients import make_request


def varint(number):
    octets = b""
    while number >= 128:
        octets += bytes([number & 127 | 128])
        number >>= 7
    return octets + bytes([number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def with_tensor(tensor):
    return field(1, field(1, b"m")) + field(2, field(1, b"x") + field(2, tensor))


MANY = {
    "inputs": b"".join(field(2, field(1, b"%d" % number)) for number in range(MAX_PARTS + 1)),
    "output names": field(3, b"") * (MAX_PARTS + 1),
    "fields that nobody knows": field(90, b"") * (MAX_PARTS + 1),
    "numbers that nobody knows": varint(90 << 3) + b"\0" + (varint(90 << 3) + b"\0") * MAX_PARTS,
    "groups that nobody knows": (varint(90 << 3 | 3) + varint(90 << 3 | 4)) * MAX_PARTS,
    "parts of the model's name": field(1, field(1, b"m") * (MAX_PARTS + 1)),
    "dimensions": with_tensor(field(2, field(2, b"") * (MAX_PARTS + 1))),
    "pieces of values": with_tensor(field(5, b"") * (MAX_PARTS + 1)),
    "shapes": with_tensor(field(2, b"") * (MAX_PARTS + 1)),
    "parts of an input": field(2, field(1, b"x") * (MAX_PARTS + 1)),
}


@pytest.mark.parametrize("what", MANY)
def test_many_parts_are_refused_wherever_they_are(what):
    messages.PredictRequest.FromString(MANY[what])  # protobuf takes it
    with pytest.raises(
        ServingError, match=f"PredictRequest: expected at most {MAX_PARTS} inputs"
    ) as refusal:
        EntryCounter("PredictRequest").check(MANY[what])
    assert refusal.value.code is Code.INVALID_ARGUMENT


def test_the_end_of_what_is_broken_does_not_hide_its_beginning():
    with pytest.raises(ServingError):
        EntryCounter("PredictRequest").check(MANY["inputs"] + b"\x12\xff")


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [field(8, b""), varint(7 << 3) + b"\1", varint(5 << 3 | 5) + b"\0\0\0\0"]
)
def test_strings_and_unpacked_numbers_have_a_limit_of_their_own(value):
    EntryCounter("PredictRequest").check(with_tensor(value * MAX_VALUES))
    with pytest.raises(ServingError, match=f"expected at most {MAX_VALUES} strings"):
        EntryCounter("PredictRequest").check(with_tensor(value * (MAX_VALUES + 1)))


def test_as_many_parts_as_may_be_are_taken():
    few = (
        MAX_PARTS - 4
    )  # the name of the model, that in it, the input, its name and tensor: of 4096 these are 5
    EntryCounter("PredictRequest").check(with_tensor(field(5, b"") * (few - 1)))


def test_sound_requests_are_taken_whatever_their_values_hold():
    for rows in (np.arange(100_000, dtype=np.float32), np.array([b"a" * 300] * 5000, object)):
        request = make_request("m", {"x": rows, "y": rows}, ["z"], version=2**62)
        request.inputs["z"].float_val.append(struct.pack("<3f", 1, 2, 3) * 10_000)
        EntryCounter("PredictRequest").check(request.SerializeToString())


def test_nothing_that_is_broken_raises_or_hangs():
    sound = make_request("m", {"x": np.ones((2, 3), np.float32)}, ["z"]).SerializeToString()
    for seed in range(300):
        dice = random.Random(seed)
        damaged = bytearray(sound)
        for _ in range(3):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        EntryCounter("PredictRequest").check(bytes(damaged))
        EntryCounter("PredictRequest").check(dice.randbytes(dice.randrange(200)))
