"""Tensor blobs as this package and the known frameworks write them, recognised at a glance.

A weights file is hundreds of such blobs, alike but for name, type and sizes. A template is the head of one with those bytes
masked out: a blob that equals it elsewhere has the same pointers, so what the general decoder would find is known.
Everything else, and everything that is wrong, is left to the general decoder.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from .codec import encode
from .enums import ITEM_BYTES, BlobType, DataType
from .errors import Limits
from .types import BlobHeader, TensorDataInfo, TensorInfo
from .values import Sizes, Text
from .wire import WORD_BYTES

_HEADER = encode(BlobHeader(type=BlobType.DATA_TENSOR))
_SIZE = slice(24, 32)
"""Where the header says the blob's size."""
_KEY = slice(len(_HEADER), len(_HEADER) + 3 * WORD_BYTES)
"""Frame, root pointer and name pointer, from which follow the length of the name and the number of dimensions."""
_MAX_TEMPLATES = 1024
_DATA_TYPES = tuple((data_type, ITEM_BYTES[data_type]) for data_type in DataType)


class _Template(NamedTuple):
    bytes: int
    mask: int
    expected: int
    layout: struct.Struct


class TensorTemplates:
    """The templates met so far in one file."""

    STRUCTURE_START = len(_HEADER)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._templates: dict[bytes, _Template | None] = {}

    def match(self, head: bytes, available: int) -> tuple[int, int, TensorDataInfo] | None:
        """Where the payload of the blob that begins with `head` begins, its size, and what it holds.

        None when it is no tensor, is laid out otherwise, or does not fit into the `available` bytes.
        """
        key = head[_KEY]
        template = self._templates.get(key, ...)
        if template is ...:
            template = self._add(key)
        if template is None or len(head) < template.bytes:
            return None
        if int.from_bytes(head[: template.bytes], "little") & template.mask != template.expected:
            return None
        size, raw_name, ordinal, *shape = template.layout.unpack_from(head)
        if ordinal >= len(_DATA_TYPES) or (shape and min(shape) < 0):
            return None
        data_type, item_bytes = _DATA_TYPES[ordinal]
        if size > available or size != template.bytes + math.prod(shape) * item_bytes:
            return None
        try:
            name = Text(raw_name, "utf-8")
        except UnicodeDecodeError:
            return None
        return template.bytes, size, _info(name, data_type, shape)

    def _add(self, key: bytes) -> _Template | None:
        if len(key) != 3 * WORD_BYTES or len(self._templates) == _MAX_TEMPLATES:
            return None
        words, _, pointer = struct.unpack("<4x I Q Q", key)
        name_bytes = (pointer >> 35) - 1
        rank = words - len(encode(TensorDataInfo(name="x" * name_bytes if 0 <= name_bytes < 256 else ""))) // WORD_BYTES + 1
        usable = 0 <= name_bytes < 256 and 0 <= rank <= self._limits.max_rank
        self._templates[key] = _template(name_bytes, rank) if usable else None
        return self._templates[key]


def _template(name_bytes: int, rank: int) -> _Template:
    name_end = len(_HEADER) + 4 * WORD_BYTES + name_bytes
    data_type = name_end + 1 + -(name_end + 1) % WORD_BYTES
    head = _HEADER + encode(TensorDataInfo(name="x" * name_bytes, tensorInfo=TensorInfo(shape=[0] * rank)))
    mask = bytearray(b"\xff" * len(head))
    shape = len(head) - rank * WORD_BYTES
    for place in (_SIZE, slice(name_end - name_bytes, name_end), slice(data_type, data_type + 2), slice(shape, len(head))):
        mask[place] = bytes(place.stop - place.start)
    bits = int.from_bytes(mask, "little")
    layout = struct.Struct(
        f"<24xQ{name_end - name_bytes - 32}x{name_bytes}s{data_type - name_end}xH{shape - data_type - 2}x{rank}q"
    )
    return _Template(len(head), bits, int.from_bytes(head, "little") & bits, layout)


def _info(name: Text, data_type: DataType, shape: list[Any]) -> TensorDataInfo:
    tensor_info = TensorInfo.__new__(TensorInfo)
    values = tensor_info.__dict__
    values["shape"], values["dataType"] = Sizes(shape), data_type
    info = TensorDataInfo.__new__(TensorDataInfo)
    values = info.__dict__
    values["name"], values["tensorInfo"] = name, tensor_info
    return info
