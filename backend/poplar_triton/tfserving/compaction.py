"""Conversion of requests with many strings and unpacked numbers into equal requests of few parts.

protobuf makes an object of each part without releasing the interpreter. In another process that
blocks no thread of the server. The result is read as quickly as a request whose client has packed
it: numbers as one packed list, strings as tensor_content.
"""

from __future__ import annotations

import math

import numpy as np
from google.protobuf.message import DecodeError

from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.dtypes import BY_NUMBER
from poplar_triton.tfserving.entries import EntryCounter
from poplar_triton.tfserving.varints import write_varints

KIND = messages.PredictRequest.DESCRIPTOR.name


def compact(message: bytes) -> bytes:
    """Return a PredictRequest with the meaning of `message`, or `message` itself if it is invalid.
    Raises ServingError for a request of too many parts."""
    EntryCounter(KIND).check(message)
    try:
        request = messages.PredictRequest.FromString(message)
        for tensor in request.inputs.values():
            _pack_numbers(tensor)
            _pack_strings(tensor)
    except DecodeError:
        return message  # the later parser rejects it
    compacted: bytes = request.SerializeToString()
    return compacted


def _pack_numbers(tensor: messages.Tensor) -> None:
    """Pack the numbers: the message Lists reads numbers packed and unpacked, writes them packed,
    and keeps unknown fields."""
    lists = messages.Lists.FromString(tensor.SerializeToString())
    tensor.CopyFrom(messages.Tensor.FromString(lists.SerializeToString()))


def _pack_strings(tensor: messages.Tensor) -> None:
    """Pack the strings into content, which has all strings of a tensor. A list with fewer or too
    many strings is kept."""
    found, shape = BY_NUMBER.get(tensor.dtype), tensor.tensor_shape
    if found is None or not found.dtype.hasobject or tensor.tensor_content or shape.unknown_rank:
        return
    strings = list(tensor.string_val)
    sizes = [dim.size for dim in shape.dim]
    if strings and min(sizes, default=1) > 0 and math.prod(sizes) == len(strings):
        lengths = write_varints(np.array([len(string) for string in strings], np.int64))
        tensor.tensor_content = b"".join([lengths, *strings])
        tensor.ClearField("string_val")
