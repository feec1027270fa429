"""Cap'n Proto messages, writing side: one segment, laid out in preorder, so equal values give equal
bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .errors import PopefError
from .wire import BYTE_LIST, COMPOSITE_LIST, LIST, STRUCT, WORD_BYTES, WORD_LIST

MAX_COUNT = (1 << 29) - 1
"""Maximum element count of a list; a list pointer has 29 bits for it."""


class MessageBuilder:
    """A growing segment; positions are word indices. The bit diagrams of the pointers are in
    `wire.py`."""

    def __init__(self) -> None:
        self._segment = bytearray(WORD_BYTES)

    def add_struct(self, pointer: int, data_words: int, num_pointers: int) -> int:
        """Append a zeroed structure, point `pointer` at it and return its first word."""
        start = self._append(data_words + num_pointers)
        self._point(pointer, start, STRUCT, data_words | num_pointers << 16)
        return start

    def add_structs(self, pointer: int, count: int, data_words: int, num_pointers: int) -> int:
        """Append a composite list of zeroed structures and return the first word of the first."""
        words = count * (data_words + num_pointers)
        start = self._append(1 + words)
        self._point(pointer, start, LIST, COMPOSITE_LIST | _checked_count(words) << 3)
        # The tag: a struct pointer with the number of elements in place of the offset.
        self.put(start, STRUCT | count << 2 | data_words << 32 | num_pointers << 48)
        return start + 1

    def add_text(self, pointer: int, text: str) -> None:
        """Append a NUL-terminated text; "" takes a word too, so that it differs from null."""
        try:
            raw = text.encode() + b"\0"
        except UnicodeEncodeError as error:
            raise PopefError(
                f"text {text!r}: expected Unicode that UTF-8 can hold, got {error}; rename it"
            ) from error
        start = self._append((len(raw) + WORD_BYTES - 1) // WORD_BYTES)
        self._point(pointer, start, LIST, BYTE_LIST | _checked_count(len(raw)) << 3)
        self._segment[start * WORD_BYTES : start * WORD_BYTES + len(raw)] = raw

    def add_ints(self, pointer: int, values: Sequence[int]) -> None:
        """Append a list of 8-byte integers; a reader of 4-byte integers takes the low half of
        each."""
        start = self._append(len(values))
        self._point(pointer, start, LIST, WORD_LIST | _checked_count(len(values)) << 3)
        struct.pack_into(f"<{len(values)}q", self._segment, start * WORD_BYTES, *values)

    def put(self, position: int, bits: int) -> None:
        """Or `bits` into the word at `position`."""
        offset = position * WORD_BYTES
        struct.pack_into(
            "<Q", self._segment, offset, struct.unpack_from("<Q", self._segment, offset)[0] | bits
        )

    def framed(self) -> bytes:
        """Return the whole message: segment count minus one (0), length in words, segment."""
        return struct.pack("<II", 0, len(self._segment) // WORD_BYTES) + bytes(self._segment)

    def _append(self, words: int) -> int:
        start = len(self._segment) // WORD_BYTES
        self._segment += bytes(words * WORD_BYTES)
        return start

    #  63              32 31                     2 1    0
    # +------------------+------------------------+------+
    # |       high       |  start - pointer - 1   | kind |
    # +------------------+------------------------+------+
    #
    # high is data words | pointers << 16 of a structure, size code | elements << 3 of a list.
    # Targets are appended behind their pointers, so that offsets are never negative.
    def _point(self, pointer: int, start: int, kind: int, high: int) -> None:
        self.put(pointer, kind | (start - pointer - 1) << 2 | high << 32)


def _checked_count(count: int) -> int:
    if count > MAX_COUNT:
        raise PopefError(
            f"list or text: expected at most {MAX_COUNT} elements, got {count}; split it"
        )
    return count
