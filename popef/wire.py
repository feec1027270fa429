"""Cap'n Proto messages, reading side: framing and pointers, every step checked against the bytes that are there.

Knows nothing of PopEF's structures; `codec.py` walks the table of `schema.py` over the views given out here.
Laws: no word outside its segment is read, every pointer followed costs from a budget proportional to the
message, and depth is limited, so time and memory are bounded by the message's own size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .errors import FormatError, LimitError, Limits

WORD_BYTES = 8
MAX_SEGMENTS = 512
"""The reference library's own limit (capnp/serialize.c++)."""
VISITS_PER_WORD = 8
"""Budget per word of the message. A list of bytes has eight elements a word, and that is the densest honest case."""
ELEMENT_FEE = 8
"""Words charged per struct list element on top of its size, so that zero-sized elements are not free."""

STRUCT, LIST, FAR = 0, 1, 2
BYTE_LIST, COMPOSITE_LIST = 2, 7
INT_FORMATS = {2: "B", 3: "H", 4: "I", 5: "q"}
"""Element size code to struct format. Narrow elements are uint32_t and below in the newer API, hence unsigned."""

ReadBytes = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a pointer leads: segment, first word of the content, and the word that describes the content."""

    segment: int
    start: int
    word: int


class Message:
    """One framed message, copied out of its source: later changes to the file cannot invalidate checks."""

    def __init__(self, segments: list[bytes], offsets: list[int], label: str, limits: Limits, end: int) -> None:
        self._segments = segments
        self._offsets = offsets
        self._budget = VISITS_PER_WORD * sum(len(segment) // WORD_BYTES for segment in segments)
        self.label = label
        self.limits = limits
        self.end = end
        """Offset in the source of the first byte after the message."""

    def root(self) -> StructView:
        """The root structure; all defaults when the root pointer is null."""
        return StructView(self, 0, 0, 0, 1, 0).struct(0)

    def fail(self, segment: int, position: int, expected: str, got: str) -> FormatError:
        """The error for something wrong at word `position` of `segment`."""
        return FormatError(self._offsets[segment] + position * WORD_BYTES, self.label, expected, got)

    def charge(self, words: int) -> None:
        """Pay for visiting `words`; raises LimitError when the message is visited too often."""
        self._budget -= words
        if self._budget < 0:
            raise LimitError(
                f"{self.label}: expected at most {VISITS_PER_WORD} visits a word, got more: "
                "its pointers overlap or its lists claim more than the file holds; do not trust this file"
            )

    def word(self, segment: int, position: int) -> int:
        """The word at a position already checked."""
        value: int = struct.unpack_from("<Q", self._segments[segment], position * WORD_BYTES)[0]
        return value

    def bytes(self, segment: int, position: int, size: int) -> bytes:
        """`size` bytes from a position already checked."""
        return self._segments[segment][position * WORD_BYTES : position * WORD_BYTES + size]

    def check(self, segment: int, position: int, words: int, thing: str) -> None:
        """Raise FormatError unless `words` words from `position` lie inside the segment."""
        available = len(self._segments[segment]) // WORD_BYTES
        if not 0 <= position <= available - words:
            got = f"words {position} to {position + words}"
            raise self.fail(segment, 0, f"{thing} inside its segment of {available} words", got)

    def follow(self, segment: int, position: int) -> Target | None:
        """Where the pointer at a position already checked leads; None for null."""
        word = self.word(segment, position)
        if word == 0:
            return None
        if word & 3 in (STRUCT, LIST):
            return Target(segment, position + 1 + _signed_offset(word), word)
        if word & 3 == FAR:
            return self._follow_far(segment, position, word)
        raise self.fail(segment, position, "a struct, list or far pointer", f"a capability pointer {word:#018x}")

    # Far pointer:
    #
    #  63                            32 31                          3  2  1 0
    # +--------------------------------+-----------------------------+--+----+
    # |        landing segment         |   landing pad, in words     |D | 2  |
    # +--------------------------------+-----------------------------+--+----+
    #
    # D = 0: the pad is one ordinary pointer. D = 1: the pad is two words, a far pointer (D = 0) to the content
    # itself and a tag that describes the content.
    def _follow_far(self, segment: int, position: int, word: int) -> Target | None:
        double = bool(word & 4)
        pad_segment, pad = self._landing(segment, position, word, 2 if double else 1)
        self.charge(2 if double else 1)
        pad_word = self.word(pad_segment, pad)
        if not double:
            if pad_word & 3 not in (STRUCT, LIST):
                raise self.fail(pad_segment, pad, "a struct or list pointer as landing pad", f"{pad_word:#018x}")
            return self.follow(pad_segment, pad)
        if pad_word & 7 != FAR:
            raise self.fail(pad_segment, pad, "a single far pointer in the double landing pad", f"{pad_word:#018x}")
        tag = self.word(pad_segment, pad + 1)
        if tag & 3 not in (STRUCT, LIST):
            raise self.fail(pad_segment, pad + 1, "a struct or list tag in the double landing pad", f"{tag:#018x}")
        content_segment, content = self._landing(pad_segment, pad, pad_word, 0)
        return Target(content_segment, content, tag)

    def _landing(self, segment: int, position: int, word: int, words: int) -> tuple[int, int]:
        target, offset = word >> 32, (word >> 3) & 0x1FFFFFFF
        if target >= len(self._segments):
            raise self.fail(segment, position, f"a segment below {len(self._segments)}", f"segment {target}")
        self.check(target, offset, words, "a landing pad")
        return target, offset


class StructView:
    """One structure inside a message; fields past its end read as zero or null, as Cap'n Proto's evolution asks."""

    __slots__ = ("_data", "_data_words", "_depth", "_message", "_num_pointers", "_segment")

    def __init__(self, message: Message, segment: int, data: int, data_words: int, num_pointers: int, depth: int) -> None:
        self._message = message
        self._segment = segment
        self._data = data
        self._data_words = data_words
        self._num_pointers = num_pointers
        self._depth = depth

    def bits(self, offset: int, width: int) -> int:
        """The unsigned number of `width` bits at bit `offset` of the data section."""
        word = offset // 64
        if word >= self._data_words:
            return 0
        return self._message.word(self._segment, self._data + word) >> (offset % 64) & ((1 << width) - 1)

    def fail(self, expected: str, got: str) -> FormatError:
        """The error for a value of this structure that makes no sense."""
        return self._message.fail(self._segment, self._data, expected, got)

    @property
    def message(self) -> Message:
        """The message this structure stands in."""
        return self._message

    def text(self, index: int) -> str:
        """The text behind pointer `index`, "" for null."""
        target = self._list(index, "text")
        if target is None:
            return ""
        size_code, count = _list_shape(target.word)
        position = self._data + self._data_words + index
        if size_code != BYTE_LIST or count == 0:
            got = f"{count} elements of size code {size_code}"
            raise self._message.fail(self._segment, position, "a text: bytes that end in NUL", got)
        words = _words(count)
        self._message.check(target.segment, target.start, words, "a text")
        self._message.charge(words)
        raw = self._message.bytes(target.segment, target.start, count)
        if raw[-1] != 0:
            raise self._message.fail(target.segment, target.start, "a text that ends in NUL", f"{raw[-1]:#04x}")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self._message.fail(target.segment, target.start, "UTF-8 text", str(error)) from error

    def ints(self, index: int) -> list[int]:
        """The integers behind pointer `index`, whatever their width; [] for null."""
        target = self._list(index, "a list of integers")
        if target is None:
            return []
        size_code, count = _list_shape(target.word)
        if count == 0 and size_code != COMPOSITE_LIST:
            return []
        if size_code not in INT_FORMATS:
            position = self._data + self._data_words + index
            got = f"element size code {size_code}"
            raise self._message.fail(self._segment, position, "integers of 1, 2, 4 or 8 bytes", got)
        self._limit_items(count)
        layout = struct.Struct(f"<{count}{INT_FORMATS[size_code]}")
        self._message.check(target.segment, target.start, _words(layout.size), "a list of integers")
        self._message.charge(count)
        return list(layout.unpack(self._message.bytes(target.segment, target.start, layout.size)))

    # Struct pointer, and (with offset = element count) the tag word of a composite list:
    #
    #  63            48 47            32 31                            2 1 0
    # +----------------+----------------+-------------------------------+---+
    # |    pointers    |   data words   |   signed offset, in words     | 0 |
    # +----------------+----------------+-------------------------------+---+
    def struct(self, index: int) -> StructView:
        """The structure behind pointer `index`; one with all defaults for null."""
        target = self._target(index)
        if target is None:
            return StructView(self._message, 0, 0, 0, 0, self._depth + 1)
        data_words, num_pointers = _struct_shape(target.word)
        if target.word & 3 != STRUCT:
            position = self._data + self._data_words + index
            raise self._message.fail(self._segment, position, "a struct pointer", f"a list {target.word:#018x}")
        self._message.check(target.segment, target.start, data_words + num_pointers, "a structure")
        self._message.charge(data_words + num_pointers)
        return StructView(self._message, target.segment, target.start, data_words, num_pointers, self._depth + 1)

    def structs(self, index: int) -> Iterator[StructView]:
        """The structures of the list behind pointer `index`, checked as a whole before the first is given out."""
        target = self._list(index, "a list of structures")
        if target is None:
            return iter(())
        size_code, words = _list_shape(target.word)
        if size_code != COMPOSITE_LIST:
            if words == 0:
                return iter(())
            position = self._data + self._data_words + index
            got = f"element size code {size_code}"
            raise self._message.fail(self._segment, position, "a composite list", got)
        self._message.check(target.segment, target.start, words + 1, "a list of structures")
        tag = self._message.word(target.segment, target.start)
        count = tag >> 2 & 0x3FFFFFFF
        data_words, num_pointers = _struct_shape(tag)
        step = data_words + num_pointers
        if tag & 3 != STRUCT or count * step > words:
            expected = f"a tag for structures in {words} words"
            raise self._message.fail(target.segment, target.start, expected, f"{count} of {step} words ({tag:#018x})")
        self._limit_items(count)
        self._message.charge(count * (step + ELEMENT_FEE))
        return (
            StructView(self._message, target.segment, first, data_words, num_pointers, self._depth + 1)
            for first in (target.start + 1 + i * step for i in range(count))
        )

    def _target(self, index: int) -> Target | None:
        if index >= self._num_pointers:
            return None
        limits = self._message.limits
        if self._depth >= limits.max_depth:
            raise LimitError(
                f"{self._message.label}: expected at most {limits.max_depth} nested pointers, got more; "
                "raise Limits.max_depth if you trust the file"
            )
        return self._message.follow(self._segment, self._data + self._data_words + index)

    # List pointer:
    #
    #  63                            35 34 32 31                       2 1 0
    # +--------------------------------+-----+--------------------------+---+
    # | elements, or words (composite) |size | signed offset, in words  | 1 |
    # +--------------------------------+-----+--------------------------+---+
    def _list(self, index: int, thing: str) -> Target | None:
        target = self._target(index)
        if target is not None and target.word & 3 != LIST:
            position = self._data + self._data_words + index
            raise self._message.fail(self._segment, position, thing, f"a struct pointer {target.word:#018x}")
        return target

    def _limit_items(self, count: int) -> None:
        limit = self._message.limits.max_list_items
        if count > limit:
            raise LimitError(
                f"{self._message.label}: expected at most {limit} list elements, got {count}; "
                "raise Limits.max_list_items if you trust the file"
            )


def _signed_offset(word: int) -> int:
    offset = word >> 2 & 0x3FFFFFFF
    return offset - (1 << 30) if offset >> 29 else offset


def _struct_shape(word: int) -> tuple[int, int]:
    return word >> 32 & 0xFFFF, word >> 48


def _list_shape(word: int) -> tuple[int, int]:
    return word >> 32 & 7, word >> 35


def _words(size: int) -> int:
    return (size + WORD_BYTES - 1) // WORD_BYTES


# Frame of a message, all u32 little-endian:
#
# +--------------+---------+---------+-----+------------------+-----------+-----+
# | segments - 1 | words 0 | words 1 | ... | pad to a word    | segment 0 | ... |
# +--------------+---------+---------+-----+------------------+-----------+-----+
def read_message(read: ReadBytes, start: int, end: int, label: str, limits: Limits) -> Message:
    """Read the message at `start`, which must end at or before `end`.

    `read(offset, size)` gives the bytes of the source and may give fewer than asked for.
    Raises FormatError when the frame does not fit, LimitError above `limits.max_structure_bytes`.
    """
    sizes = _read_frame(read, start, end, label)
    body = start + _frame_bytes(len(sizes))
    total = sum(sizes)
    if total > end - body:
        raise FormatError(start, label, f"a message of at most {end - body} bytes", f"{total} bytes of segments")
    if total > limits.max_structure_bytes:
        raise LimitError(
            f"{label}: expected a structure of at most {limits.max_structure_bytes} bytes, got {total}; "
            "raise Limits.max_structure_bytes if you trust the file"
        )
    data = _read_exactly(read, body, total, label)
    segments, offsets, position = [], [], 0
    for size in sizes:
        segments.append(data[position : position + size])
        offsets.append(body + position)
        position += size
    return Message(segments, offsets, label, limits, body + total)


def _frame_bytes(num_segments: int) -> int:
    return _words(4 + 4 * num_segments) * WORD_BYTES


def _read_frame(read: ReadBytes, start: int, end: int, label: str) -> list[int]:
    if end - start < 2 * WORD_BYTES:
        raise FormatError(start, label, "a message of at least 16 bytes", f"{end - start} bytes")
    num_segments = int.from_bytes(_read_exactly(read, start, 4, label), "little") + 1
    if num_segments > MAX_SEGMENTS:
        raise FormatError(start, label, f"a message of at most {MAX_SEGMENTS} segments", f"{num_segments} segments")
    if _frame_bytes(num_segments) > end - start:
        raise FormatError(start, label, f"a table of {num_segments} segments", f"{end - start} bytes")
    table = _read_exactly(read, start + 4, 4 * num_segments, label)
    sizes = [words * WORD_BYTES for words in struct.unpack(f"<{num_segments}I", table)]
    if sizes[0] == 0:
        raise FormatError(start, label, "a first segment with a root pointer", "an empty one")
    return sizes


def _read_exactly(read: ReadBytes, offset: int, size: int, label: str) -> bytes:
    data = read(offset, size)
    if len(data) != size:
        raise FormatError(offset, label, f"{size} bytes", f"{len(data)} bytes: the file shrank while being read")
    return data
