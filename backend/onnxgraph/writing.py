"""Writer of models with gigabytes of weights: it writes one after the other, and reads those in
files only then.

The format is protobuf's: a nested message is a key, a length and its bytes, and members of a list
may be at any place.

    ModelProto     all but the graph | key | length | GraphProto
    GraphProto     all but the weights | key | length | TensorProto | key | length | TensorProto ...
    TensorProto    all but the data | key | length | data
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import onnx
from onnx import TensorProto

from onnxgraph.edit import copy_without, copy_without_weights
from onnxgraph.nodes import GraphTooLargeError, count_bytes
from onnxgraph.weights import LARGE_BYTES, is_outlined, read_array

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Field numbers in onnx.proto."""
_HAS_LENGTH = 2
"""Protobuf's wire type of fields with a length."""
_KIND_BITS = 3
_DIGIT_BITS = 7
_MORE = 1 << _DIGIT_BITS


@dataclass(frozen=True, slots=True)
class _Member:
    """An initializer in the form in which it is written."""

    tensor: TensorProto
    head: bytes
    """Serialized TensorProto, or all of it but the data."""
    data_bytes: int
    """Number of bytes of the data that follow; -1 if none follow."""

    @property
    def size(self) -> int:
        """Number of bytes of the TensorProto."""
        return len(self.head) + (self.data_bytes if self.data_bytes >= 0 else 0)

    def read_data(self) -> bytes:
        """Return the data that follow; raises ValueError if they do not fit the tensor's type and
        shape."""
        tensor = self.tensor
        data = read_array(tensor).tobytes() if is_outlined(tensor) else tensor.raw_data
        if len(data) != self.data_bytes:
            raise ValueError(
                f"weight {tensor.name!r}: expected {self.data_bytes} bytes of data, found "
                f"{len(data)}"
            )
        return data


class ModelWriter:
    """Writer of one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = copy_without(model, "graph").SerializeToString()
        self._graph = copy_without(model.graph, "initializer").SerializeToString()
        self._members = [_make_member(tensor) for tensor in model.graph.initializer]
        self._graph_bytes = len(self._graph) + sum(
            len(_key(_INITIALIZER, member.size)) + member.size for member in self._members
        )

    @property
    def size(self) -> int:
        """Number of bytes of the whole model."""
        return len(self._model) + len(_key(_GRAPH, self._graph_bytes)) + self._graph_bytes

    def write(self, file: BinaryIO) -> None:
        """Write the model in a form that any reader of ONNX reads.

        The model itself stays unchanged, outlined weights too. Raises GraphTooLargeError, and
        writes nothing, if the model exceeds what protobuf can hold.
        """
        if self.size > onnx.checker.MAXIMUM_PROTOBUF:
            raise GraphTooLargeError(
                f"the model has {self.size} bytes, expected at most "
                f"{onnx.checker.MAXIMUM_PROTOBUF} in one file; save its weights as external data"
            )
        for piece in self._iter_pieces():
            file.write(piece)

    def _iter_pieces(self) -> Iterator[bytes]:
        yield self._model
        yield _key(_GRAPH, self._graph_bytes)
        yield self._graph
        for member in self._members:
            yield _key(_INITIALIZER, member.size)
            yield member.head
            if member.data_bytes >= 0:
                yield member.read_data()


def write_with_data(model: onnx.ModelProto, file: BinaryIO, data: BinaryIO, location: str) -> None:
    """Write a model whose large weights go to another file, `data`.

    Readers find that file by the name `location` beside the model's.
    """
    light = copy_without_weights(model)
    offset = 0
    for tensor in model.graph.initializer:
        member = _make_member(tensor)
        if member.data_bytes < 0:
            light.graph.initializer.append(tensor)
            continue
        data.write(member.read_data())
        stub = light.graph.initializer.add(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
        )
        stub.data_location = TensorProto.EXTERNAL
        entries = {"location": location, "offset": offset, "length": member.data_bytes}
        stub.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in entries.items()
        )
        offset += member.data_bytes
    ModelWriter(light).write(file)


def _make_member(tensor: TensorProto) -> _Member:
    size = count_bytes(tensor)
    if not (is_outlined(tensor) or (size >= LARGE_BYTES and tensor.HasField("raw_data"))):
        return _Member(tensor, tensor.SerializeToString(), -1)
    head = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return _Member(tensor, head.SerializeToString() + _key(_RAW_DATA, size), size)


def _key(number: int, size: int) -> bytes:
    """Return the prefix of a message, or bytes, of that size: key and length.

    Lengths are in digits of 7 bits, least significant first.
    """
    digits = [number << _KIND_BITS | _HAS_LENGTH]
    while size >= _MORE:
        digits.append(size % _MORE | _MORE)
        size >>= _DIGIT_BITS
    return bytes([*digits, size])
