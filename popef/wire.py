"""Cap'n Proto messages: framing and pointers, read with every step checked against the bytes
present, and written in one segment, in preorder, so that equal values give equal bytes.

Knows nothing of PopEF's structures; `codec.py` walks the table of `types.py` with these functions.
Laws of reading: no word outside its segment is read. Every visit costs from a budget proportional
to the message, so time and memory are bounded by the message's own size. The reader bounds the
depth: it follows only what its schema names.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .errors import FormatError, LimitError, Limits, PopefError, Rule

WORD_BYTES = 8
MAX_SEGMENTS = 512
"""Maximum number of segments; the reference library's own limit (capnp/serialize.c++)."""
VISITS_PER_WORD = 8
"""Visit budget per word of the message. The densest valid case is a list of bytes, with eight
elements a word."""
ELEMENT_FEE = 8
"""Words charged per struct list element on top of its size, so that zero-sized elements are not
free."""

STRUCT, LIST, FAR = 0, 1, 2
"""Kinds of pointers: the lowest two bits of a pointer word."""
BIT_LIST, BYTE_LIST, WORD_LIST, POINTER_LIST, COMPOSITE_LIST = 1, 2, 5, 6, 7
"""Codes of the size of a list's elements."""
ELEMENT_BITS = (0, 1, 8, 16, 32, 64, 64, 64)
"""Bits of an element by size code; a pointer is a word, and a composite list counts words."""
_NARROW_LISTS = (BYTE_LIST, 3, 4)
"""Codes of lists whose elements have 1, 2 or 4 bytes."""
INT_FORMATS = {2: "B", 3: "H", 4: "I", 5: "q"}
"""Struct format by element size code. Narrow elements are uint32_t and below in the newer API,
hence unsigned."""

ReadBytes = Callable[[int, int], bytes]


Target = tuple[int, int, int]
"""Target of a pointer: segment, first word of the content, and the word that describes the
content."""

StructAt = tuple[int, int, int, int]
"""Place of a structure: segment, first word, words of data, number of pointers behind them.

Fields past its end read as zero or null, as Cap'n Proto's evolution requires.
"""


class StructsAt(NamedTuple):
    """Place of a list of structures; element i begins `i * (data_words + num_pointers)` words after
    `first`."""

    segment: int
    first: int
    length: int
    data_words: int
    num_pointers: int


class Message:
    """One framed message, copied out of its source, so later changes to the file cannot invalidate
    checks.

    A place in it is a segment and the index of a word in that segment.
    """

    def __init__(
        self, segments: list[bytes], offsets: list[int], label: str, limits: Limits, end: int
    ) -> None:
        self.segments = segments
        self.words: list[Sequence[int]] = [_words(segment) for segment in segments]
        """Segments as unsigned 64-bit integers."""
        self._offsets = offsets
        self._budget = VISITS_PER_WORD * sum(len(segment) // WORD_BYTES for segment in segments)
        self.label = label
        self.limits = limits
        self.end = end
        """Offset in the source of the first byte after the message."""

    def offset(self, segment: int, position: int) -> int:
        """Return the offset of a word in the source."""
        return self._offsets[segment] + position * WORD_BYTES

    def fail(self, rule: Rule, segment: int, position: int, expected: str, got: str) -> FormatError:
        """Return the error for a word that breaks `rule`."""
        return FormatError(rule, self.offset(segment, position), self.label, expected, got)

    def charge(self, words: int) -> None:
        """Charge the budget for visiting `words`; raises LimitError if the message is visited too
        often."""
        self._budget -= words
        if self._budget < 0:
            raise LimitError(
                f"{self.label}: expected at most {VISITS_PER_WORD} visits a word, got more: "
                "its pointers overlap or its lists claim more than the file holds; do not trust "
                "this file"
            )

    def check(self, segment: int, position: int, words: int, thing: str) -> None:
        """Raise FormatError unless `words` words from `position` lie inside the segment; charge for
        them."""
        available = len(self.words[segment])
        # A target without words may be at the very end. Offsets are signed, so 0 is a limit too.
        if not 0 <= position <= available - words:
            expected = f"{thing} inside its segment of {available} words"
            got = f"words {position} to {position + words}"
            raise self.fail(Rule.POINTER_BOUNDS, segment, 0, expected, got)
        self.charge(words)

    # Struct pointer, and (with offset = element count) the tag word of a composite list:
    #
    #  63            48 47            32 31                            2 1 0
    # +----------------+----------------+-------------------------------+---+
    # |    pointers    |   data words   |   signed offset, in words     | 0 |
    # +----------------+----------------+-------------------------------+---+
    #
    # List pointer:
    #
    #  63                            35 34 32 31                       2 1 0
    # +--------------------------------+-----+--------------------------+---+
    # | elements, or words (composite) |size | signed offset, in words  | 1 |
    # +--------------------------------+-----+--------------------------+---+
    def follow(self, segment: int, position: int) -> Target | None:
        """Return the target of the pointer at a position that has been checked; None for null."""
        word = self.words[segment][position]
        if word == 0:
            return None
        # The target is not checked here. Its size depends on the kind that the caller expects, and
        # a target without words may lie just behind the segment.
        if word & 2 == 0:
            offset = word >> 2 & 0x3FFFFFFF
            return segment, position + 1 + (offset - (1 << 30) if offset >> 29 else offset), word
        if word & 3 == FAR:
            return self._follow_far(segment, position, word)
        expected = "a struct, list or far pointer"
        raise self.fail(
            Rule.POINTER_KIND, segment, position, expected, f"a capability pointer {word:#018x}"
        )

    # Far pointer:
    #
    #  63                            32 31                          3  2  1 0
    # +--------------------------------+-----------------------------+--+----+
    # |        landing segment         |   landing pad, in words     |D | 2  |
    # +--------------------------------+-----------------------------+--+----+
    #
    # D = 0: the pad is one ordinary pointer. D = 1: the pad is two words, a far pointer (D = 0) to
    # the content itself and a tag that describes the content.
    def _follow_far(self, segment: int, position: int, word: int) -> Target:
        double = bool(word & 4)
        pad_segment, pad = self._landing(segment, position, word, 2 if double else 1)
        pad_word = self.words[pad_segment][pad]
        if not double:
            if pad_word & 2:
                expected = "a struct or list pointer as landing pad"
                raise self.fail(Rule.FAR_POINTER, pad_segment, pad, expected, f"{pad_word:#018x}")
            # Null in a landing pad is, as in the reference library, a structure of no words, and no
            # list.
            return self.follow(pad_segment, pad) or (pad_segment, pad + 1, 0)
        if pad_word & 7 != FAR:
            expected = "a single far pointer in the double landing pad"
            raise self.fail(Rule.FAR_POINTER, pad_segment, pad, expected, f"{pad_word:#018x}")
        tag = self.words[pad_segment][pad + 1]
        if tag & 2:
            expected = "a struct or list tag in the double landing pad"
            raise self.fail(Rule.FAR_POINTER, pad_segment, pad + 1, expected, f"{tag:#018x}")
        # 0 words: the tag has their number, and the caller that reads the content checks them.
        content_segment, content = self._landing(pad_segment, pad, pad_word, 0)
        return content_segment, content, tag

    def _landing(self, segment: int, position: int, word: int, words: int) -> tuple[int, int]:
        target, offset = word >> 32, (word >> 3) & 0x1FFFFFFF
        if target >= len(self.segments):
            expected = f"a segment below {len(self.segments)}"
            raise self.fail(Rule.FAR_POINTER, segment, position, expected, f"segment {target}")
        available = len(self.words[target])
        if offset > available - words:
            expected = f"a landing pad inside its segment of {available} words"
            raise self.fail(
                Rule.FAR_POINTER, segment, position, expected, f"words {offset} to {offset + words}"
            )
        self.charge(words)
        return target, offset

    def text(self, segment: int, position: int) -> str:
        """Return the text behind the pointer, "" for null."""
        target = self._list(segment, position, "a text")
        if target is None:
            return ""
        segment, start, word = target
        count = word >> 35
        if word >> 32 & 7 != BYTE_LIST or count == 0:
            got = f"{count} elements of size code {word >> 32 & 7}"
            raise self.fail(Rule.TEXT, segment, start, "a text: bytes that end in NUL", got)
        self.check(segment, start, count + 7 >> 3, "a text")
        first = start * WORD_BYTES
        raw = self.segments[segment][first : first + count]
        if raw[-1] != 0:
            raise self.fail(Rule.TEXT, segment, start, "a text that ends in NUL", f"{raw[-1]:#04x}")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self.fail(Rule.TEXT, segment, start, "UTF-8 text", str(error)) from error

    def ints(self, segment: int, position: int) -> Sequence[int]:
        """Return the integers of any width behind the pointer; an empty sequence for null."""
        target = self._list(segment, position, "a list of integers")
        if target is None:
            return ()
        target_segment, start, word = target
        code, count = word >> 32 & 7, word >> 35
        if code == COMPOSITE_LIST:
            return self._first_words(segment, position)
        if code not in INT_FORMATS and count:
            got = f"element size code {code}"
            raise self.fail(Rule.INTEGERS, segment, position, "integers of 1, 2, 4 or 8 bytes", got)
        self._limit_items(count)
        self.check(target_segment, start, list_words(code, count), "a list of integers")
        # On top of their words: a list of bytes becomes eight Python integers a word.
        self.charge(count)
        return self._elements(target_segment, start, code, count)

    def _elements(self, segment: int, start: int, code: int, count: int) -> tuple[int, ...]:
        """Return the elements of a list of integers whose place has been checked; () for a list of
        size code 0."""
        layout = f"<{count}{INT_FORMATS[code]}" if code in INT_FORMATS else ""
        return struct.unpack_from(layout, self.segments[segment], start * WORD_BYTES)

    def _first_words(self, segment: int, position: int) -> Sequence[int]:
        """Read a list of integers that has evolved into one of structures: the first field keeps
        its place."""
        at = self.structs(segment, position)
        if at.length and not at.data_words:
            got = "structures without data"
            raise self.fail(
                Rule.INTEGERS, segment, position, "structures that begin with an integer", got
            )
        words, step = self.words[at.segment], at.data_words + at.num_pointers
        first_words = (words[at.first + i * step] for i in range(at.length))
        return [word - (1 << 64) if word >> 63 else word for word in first_words]

    def struct(self, segment: int, position: int) -> StructAt | None:
        """Return the place of the structure behind the pointer, None for null."""
        target = self.follow(segment, position)
        if target is None:
            return None
        target_segment, start, word = target
        if word & 3 != STRUCT:
            raise self.fail(
                Rule.POINTER_KIND, segment, position, "a struct pointer", f"a list {word:#018x}"
            )
        data_words, num_pointers = word >> 32 & 0xFFFF, word >> 48
        self.check(target_segment, start, data_words + num_pointers, "a structure")
        return target_segment, start, data_words, num_pointers

    def structs(self, segment: int, position: int) -> StructsAt:
        """Return the place of the list of structures behind the pointer, checked as a whole."""
        target = self._list(segment, position, "a list of structures")
        if target is None:
            return StructsAt(0, 0, 0, 0, 0)
        segment, start, word = target
        code, count = word >> 32 & 7, word >> 35
        if code != COMPOSITE_LIST:
            return self._grown_structs(segment, start, code, count)
        # The pointer of a composite list counts words, and not its tag, which counts the elements.
        self.check(segment, start, count + 1, "a list of structures")
        words, tag = count, self.words[segment][start]
        count, data_words, num_pointers = tag >> 2 & 0x3FFFFFFF, tag >> 32 & 0xFFFF, tag >> 48
        step = data_words + num_pointers
        # Fewer words than announced are read without complaint, as the reference library does.
        if tag & 3 != STRUCT or count * step > words:
            expected = f"a tag for structures in {words} words"
            got = f"{count} of {step} words ({tag:#018x})"
            raise self.fail(Rule.STRUCT_LIST, segment, start, expected, got)
        self._limit_items(count)
        self.charge(count * ELEMENT_FEE)
        return StructsAt(segment, start + 1, count, data_words, num_pointers)

    def _grown_structs(self, segment: int, start: int, code: int, count: int) -> StructsAt:
        """Return the place of a simpler list that a newer schema reads as structures with it as
        first field."""
        # No list of PopEF can have grown from narrow elements: a field would be wider than the
        # element it is read from.
        if code == BIT_LIST or (code in _NARROW_LISTS and count):
            got = f"{count} elements of {ELEMENT_BITS[code]} bits"
            raise self.fail(Rule.STRUCT_LIST, segment, start, "a list of structures", got)
        # The fee before the words: a list of nothing has none, and half a billion elements.
        self._limit_items(count)
        self.charge(count * ELEMENT_FEE)
        self.check(segment, start, list_words(code, count), "a list")
        return StructsAt(segment, start, count, int(code == WORD_LIST), int(code == POINTER_LIST))

    def _list(self, segment: int, position: int, thing: str) -> Target | None:
        target = self.follow(segment, position)
        if target is not None and target[2] & 3 != LIST:
            got = f"a struct pointer {target[2]:#018x}"
            raise self.fail(Rule.POINTER_KIND, segment, position, thing, got)
        return target

    def _limit_items(self, count: int) -> None:
        limit = self.limits.max_list_items
        if count > limit:
            raise LimitError(
                f"{self.label}: expected at most {limit} list elements, got {count}; "
                "raise Limits.max_list_items if you trust the file"
            )


def list_words(code: int, count: int) -> int:
    """Return the words that `count` elements of a size code take; a composite list's `count` is in
    words already."""
    bits = ELEMENT_BITS[code] * count
    return (bits + 63) // 64


def _words(segment: bytes) -> Sequence[int]:
    if sys.byteorder == "little":
        return memoryview(segment).cast("Q")
    return struct.unpack(f"<{len(segment) // WORD_BYTES}Q", segment)


# Frame of a message, all u32 little-endian:
#
# +--------------+---------+---------+-----+------------------+-----------+-----+
# | segments - 1 | words 0 | words 1 | ... | pad to a word    | segment 0 | ... |
# +--------------+---------+---------+-----+------------------+-----------+-----+
def read_message(read: ReadBytes, start: int, end: int, label: str, limits: Limits) -> Message:
    """Read the message at `start`, which must end at or before `end`.

    `read(offset, size)` returns the bytes of the source and may return fewer than requested. Raises
    FormatError if the frame does not fit, and LimitError above `limits.max_structure_bytes`.
    """
    sizes = _read_frame(read, start, end, label)
    body = start + _frame_bytes(len(sizes))
    total = sum(sizes)
    # Report damage before limits: a larger limit should help a user who raises it.
    if total > end - body:
        expected, got = f"a message of at most {end - body} bytes", f"{total} bytes of segments"
        raise FormatError(Rule.SEGMENT_BOUNDS, start, label, expected, got)
    if total > limits.max_structure_bytes:
        raise LimitError(
            f"{label}: expected a structure of at most {limits.max_structure_bytes} bytes, got "
            f"{total}; raise Limits.max_structure_bytes if you trust the file"
        )
    data = _read_exactly(read, body, total, label)
    segments, offsets, position = [], [], 0
    for size in sizes:
        segments.append(data[position : position + size])
        offsets.append(body + position)
        position += size
    return Message(segments, offsets, label, limits, body + total)


def _frame_bytes(num_segments: int) -> int:
    return (4 + 4 * num_segments + 7) // WORD_BYTES * WORD_BYTES


def _read_frame(read: ReadBytes, start: int, end: int, label: str) -> list[int]:
    if end - start < 2 * WORD_BYTES:
        expected, got = "a message of at least 16 bytes", f"{end - start} bytes"
        raise FormatError(Rule.SEGMENT_TABLE, start, label, expected, got)
    # Read the count alone first: it is checked before the table, up to 16 GiB of it, is read.
    num_segments = int.from_bytes(_read_exactly(read, start, 4, label), "little") + 1
    if num_segments > MAX_SEGMENTS:
        expected, got = f"a message of at most {MAX_SEGMENTS} segments", f"{num_segments} segments"
        raise FormatError(Rule.SEGMENT_TABLE, start, label, expected, got)
    if _frame_bytes(num_segments) > end - start:
        expected, got = f"a table of {num_segments} segments", f"{end - start} bytes"
        raise FormatError(Rule.SEGMENT_TABLE, start, label, expected, got)
    table = _read_exactly(read, start + 4, 4 * num_segments, label)
    sizes = [words * WORD_BYTES for words in struct.unpack(f"<{num_segments}I", table)]
    if sizes[0] == 0:
        raise FormatError(
            Rule.SEGMENT_TABLE, start, label, "a first segment with a root pointer", "an empty one"
        )
    return sizes


def _read_exactly(read: ReadBytes, offset: int, size: int, label: str) -> bytes:
    data = read(offset, size)
    if len(data) != size:
        expected, got = f"{size} bytes", f"{len(data)} bytes: the file shrank while being read"
        raise FormatError(Rule.BLOB_SIZE, offset, label, expected, got)
    return data


MAX_COUNT = (1 << 29) - 1
"""Maximum element count of a list; a list pointer has 29 bits for it."""


class MessageBuilder:
    """A growing segment; positions are word indices."""

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
