"""Fast recognition of tensor blobs in the layout of this package and the known frameworks.

A weights file has hundreds of such blobs, which differ only in name, type and sizes. A template is
the constant part of the head of such a blob. A blob whose constant part is equal has the same
pointers, so the result of the general decoder is known. All other blobs, and all invalid ones, are
left to the general decoder.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from .codec import encode
from .enums import ITEM_BYTES, BlobType, DataType
from .errors import Limits
from .types import BlobHeader, TensorDataInfo, TensorInfo
from .values import Sizes, Text
from .wire import BYTE_LIST, WORD_BYTES, WORD_LIST

_HEADER = encode(BlobHeader(type=BlobType.DATA_TENSOR))
_SIZE = 24
"""Offset of the blob's size in the header."""
_NAME = len(_HEADER) + 4 * WORD_BYTES
"""Offset of the name: after frame, root pointer, and the pointers of TensorDataInfo."""
_KEY = slice(_SIZE + WORD_BYTES, _NAME)
"""Slice of the rest of the header and those pointers, which give the length of the name and the
number of dimensions."""
_FIXED_WORDS = 6
"""Words of the structure without sizes and name: the root pointer, two pointers, one of the name, a
word and a pointer."""
_MAX_NAME = 256
_MAX_TEMPLATES = 1024
_DATA_TYPES = tuple((data_type, ITEM_BYTES[data_type]) for data_type in DataType)


class _Template(NamedTuple):
    """Head of a blob: constant bytes, its size, the name, constant bytes, the type, constant bytes,
    the sizes."""

    layout: struct.Struct
    before_size: bytes
    after_name: bytes
    after_type: bytes


Seen = tuple[Text, DataType, list[int]]
"""Name, type and sizes of a tensor; its structure is made from them on demand."""


def tensor_data_info(seen: Seen) -> TensorDataInfo:
    """Return the structure of a blob that a template has recognised."""
    name, data_type, shape = seen
    tensor_info = TensorInfo.__new__(TensorInfo)
    values = tensor_info.__dict__
    values["shape"], values["dataType"] = Sizes(shape), data_type
    info = TensorDataInfo.__new__(TensorDataInfo)
    values = info.__dict__
    values["name"], values["tensorInfo"] = name, tensor_info
    return info


class TensorTemplates:
    """Templates found so far in one file."""

    STRUCTURE_START = len(_HEADER)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._templates: dict[bytes, _Template | None] = {}

    def match(self, head: bytes, available: int) -> tuple[int, int, Seen] | None:
        """Return the start of the payload of the blob that begins with `head`, its size and its
        content.

        Returns None if the blob is no tensor, has another layout, is empty, or does not fit into
        the `available` bytes.
        """
        key = head[_KEY]
        template = self._templates.get(key) or self._add(key)
        if template is None:
            return None
        layout, before_size, after_name, after_type = template
        if len(head) < layout.size:
            return None
        first, size, raw_name, second, ordinal, third, *shape = layout.unpack_from(head)
        if (
            first != before_size
            or second != after_name
            or third != after_type
            or ordinal >= len(_DATA_TYPES)
        ):
            return None
        data_type, item_bytes = _DATA_TYPES[ordinal]
        # Sizes are read as unsigned: a negative one makes the product too large, unless one is 0.
        payload_bytes = math.prod(shape) * item_bytes
        if size > available or size != layout.size + payload_bytes or payload_bytes == 0:
            return None
        try:
            return layout.size, size, (Text(raw_name, "utf-8"), data_type, shape)
        except UnicodeDecodeError:
            return None

    def _add(self, key: bytes) -> _Template | None:
        if (
            key in self._templates
            or len(key) != _KEY.stop - _KEY.start
            or len(self._templates) == _MAX_TEMPLATES
        ):
            return None
        # Rest of the header and segment count (20 bytes), words of the segment, root, name pointer,
        # tensorInfo pointer. The upper 29 bits of a text's pointer are its bytes with the NUL.
        words, pointer = struct.unpack("<20x I 8x Q 8x", key)
        name_bytes = (pointer >> 35) - 1
        rank = words - _FIXED_WORDS - (name_bytes >> 3)
        template = None
        if 0 <= name_bytes < _MAX_NAME and 0 <= rank <= self._limits.max_rank:
            head = tensor_head(name_bytes, rank)
            template = _template(head, name_bytes, rank) if head[_KEY] == key else None
        self._templates[key] = template
        return template


def tensor_head(name_bytes: int, rank: int) -> bytes:
    """Return the head of a tensor blob as `encode` makes it, with zeros for its size, name, type
    and sizes."""
    # Words after the header's message and the frame, as `encode` lays them out in preorder. Offsets
    # count from the word after the pointer (the pointers' bits are drawn in `wire.py`):
    #
    #     0  root         -> 1: TensorDataInfo of 0 data words and 2 pointers
    #     1  name         -> 3: text of name_bytes + 1 bytes, its NUL included
    #     2  tensorInfo   -> behind the text: TensorInfo of 1 data word and 1 pointer
    #     3  the text, name_words words
    #        the data word: the type in its low 16 bits
    #        shape        -> the next word: rank sizes of a word each
    name_words = (name_bytes >> 3) + 1
    pointers = (
        2 << 48,
        1 | 1 << 2 | BYTE_LIST << 32 | name_bytes + 1 << 35,
        name_words << 2 | 1 << 32 | 1 << 48,
        *[0] * (name_words + 1),
        1 | WORD_LIST << 32 | rank << 35,
        *[0] * rank,
    )
    return _HEADER + struct.pack(f"<II{len(pointers)}Q", 0, len(pointers), *pointers)


def _template(head: bytes, name_bytes: int, rank: int) -> _Template:
    # 0           _SIZE                    _NAME  name_end    data_type             shape
    # +-----------+------+-----------------+------+-----------+------+--------------+-------+
    # | constant  | size | key (not read)  | name | NUL, pad  | type | pad, pointer | sizes |
    # +-----------+------+-----------------+------+-----------+------+--------------+-------+
    name_end = _NAME + name_bytes
    data_type = name_end + 1 + -(name_end + 1) % WORD_BYTES
    shape = len(head) - rank * WORD_BYTES
    between = _NAME - _SIZE - WORD_BYTES
    layout = (
        f"<{_SIZE}sQ{between}x{name_bytes}s{data_type - name_end}sH{shape - data_type - 2}s{rank}Q"
    )
    return _Template(
        struct.Struct(layout), head[:_SIZE], head[name_end:data_type], head[data_type + 2 : shape]
    )
