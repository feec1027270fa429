"""Output of `popef_dump --words`: every word of headers and structures with its meaning.

Intended for damaged files and for files from other sources. The dump follows pointers that belong
to no known field and shows faults in place. It goes on as long as it can find the next blob.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from ..enums import BlobType, enumerant
from ..errors import FormatError, LimitError, Limits, PopefError, Rule
from ..record import WORD_BITS, Field, Storage, Struct
from ..scan import read_header
from ..source import MemorySource, Source, open_source
from ..types import STRUCTURE_OF_BLOB, BlobHeader
from ..wire import (
    BYTE_LIST,
    COMPOSITE_LIST,
    ELEMENT_BITS,
    FAR,
    POINTER_LIST,
    STRUCT,
    WORD_BYTES,
    Message,
    StructAt,
    list_words,
    read_message,
)

_PRINTABLE = range(0x20, 0x7F)
"""Range of ASCII codes that are shown as themselves."""
_RAW_WORDS = 64
"""Number of words shown of bytes that are no message."""
_MAX_ANNOTATED_BYTES = 4 << 20
"""Maximum bytes of a message that is annotated: a note on a word takes far more memory than the
word."""
_SHOWN_TEXT = 200
"""Number of characters shown of one text."""


def describe_words(
    path: str | os.PathLike[str], is_shown: Callable[[BlobType], bool] = lambda _: True
) -> Iterator[str]:
    """Yield the lines of the dump of a file; for blobs of an unwanted type only their place.

    Raises OSError, or a PopefError for the first fault, after the last line that can be given.
    """
    limits = Limits(max_structure_bytes=_MAX_ANNOTATED_BYTES)
    source = open_source(path, mapped=False, max_stream_bytes=limits.max_stream_bytes)
    try:
        yield from _describe(source, limits, is_shown)
    finally:
        source.close()


def describe_words_of(data: bytes) -> Iterator[str]:
    """Yield the lines of the dump of bytes in memory; raises as `describe_words` does."""
    return _describe(MemorySource("bytes", data), Limits(), lambda _: True)


def _describe(
    source: Source, limits: Limits, is_shown: Callable[[BlobType], bool]
) -> Iterator[str]:
    if not source.size:
        raise FormatError(Rule.BLOB_COUNT, 0, source.name, "at least one blob", "an empty file")
    start, index = 0, 0
    while start < source.size:
        label = f"{source.name}: blob {index}"
        try:
            header, structure = read_header(source, index, start, limits)
        except PopefError:
            # Without a header the next blob cannot be found, so this blob is the last one shown.
            yield f"blob {index}: bytes {start} to ?"
            schema = BlobHeader.SCHEMA
            yield from _message_or_raw(source, start, source.size, label, limits, schema)[0]
            raise
        end = start + header.size
        yield f"blob {index}: bytes {start} to {end}, {enumerant(header.type)}"
        if is_shown(header.type):
            yield from _blob(source, start, structure, end, label, limits, header.type)
        start, index = end, index + 1


def _blob(
    source: Source,
    start: int,
    structure_start: int,
    end: int,
    label: str,
    limits: Limits,
    kind: BlobType,
) -> Iterator[str]:
    yield from _message_or_raw(source, start, structure_start, label, limits, BlobHeader.SCHEMA)[0]
    payload = structure_start
    if kind in STRUCTURE_OF_BLOB:
        schema = STRUCTURE_OF_BLOB[kind].SCHEMA
        lines, payload = _message_or_raw(source, structure_start, end, label, limits, schema)
        yield from lines
    if payload < end:
        yield f"{payload:010x}  {end - payload} bytes of payload"


def _message_or_raw(
    source: Source, start: int, end: int, label: str, limits: Limits, schema: Struct
) -> tuple[Iterator[str], int]:
    """Return the lines for the message at `start` and the offset of its end.

    Without a valid frame, the lines show some raw words instead.
    """
    try:
        message = read_message(source.read, start, end, label, limits)
    except (FormatError, LimitError) as error:
        words = min(end - start, _RAW_WORDS * WORD_BYTES)
        raw = source.read(start, words)
        lines = (
            _line(start + i, raw[i : i + WORD_BYTES], "") for i in range(0, len(raw), WORD_BYTES)
        )
        return chain([f"!! {error}"], lines), end
    return chain(_frame(source, start, message), _Walk(message).lines(schema)), message.end


def _frame(source: Source, start: int, message: Message) -> Iterator[str]:
    body = message.offset(0, 0)
    raw = source.read(start, body - start)
    count = f"{len(message.segments)} segment{'s' if len(message.segments) > 1 else ''}"
    sizes = ", ".join(str(len(segment) // WORD_BYTES) for segment in message.segments)
    for i in range(0, len(raw), WORD_BYTES):
        yield _line(
            start + i,
            raw[i : i + WORD_BYTES],
            f"frame: {count} of {sizes} words" if i == 0 else "frame, continued",
        )


def _line(offset: int, raw: bytes, note: str) -> str:
    text = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in raw)
    return f"{offset:010x}  {raw.hex(' '):<23}  |{text:<8}|  {note}".rstrip()


class _Walk:
    """Walk over the pointers of one message that notes the meaning of every word."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._notes: dict[tuple[int, int], str] = {}
        self._seen: set[tuple[int, int, str]] = set()

    def lines(self, schema: Struct) -> Iterator[str]:
        """Yield a line for every word, in the order of the file."""
        segments = len(self._message.segments)
        self._pointer(schema.name, Storage.STRUCT, schema, 0, 0, 0)
        for number in range(segments):
            segment = self._message.segments[number]
            for position in range(len(segment) // WORD_BYTES):
                raw = segment[position * WORD_BYTES : (position + 1) * WORD_BYTES]
                note = self._notes.get((number, position), "no pointer leads here")
                place = f"{number}:{position}" if segments > 1 else str(position)
                yield _line(self._message.offset(number, position), raw, f"{place:>5}  {note}")

    def _note(self, segment: int, position: int, text: str) -> None:
        before = self._notes.get((segment, position))
        self._notes[segment, position] = (
            f"{before}; {text}" if before and text not in before else text
        )

    def _pointer(
        self,
        name: str,
        kind: Storage | None,
        schema: Struct | None,
        segment: int,
        position: int,
        depth: int,
    ) -> None:
        """Note the target of the pointer and follow it; `kind` is None if no known field names the
        pointer."""
        message = self._message
        try:
            if depth > message.limits.max_depth:
                self._note(segment, position, f"{name}: nested too deeply to follow")
                return
            if message.words[segment][position] == 0:
                self._note(segment, position, f"{name}: null")
                return
            self._note_far(name, segment, position)
            target = message.follow(segment, position)
            if target is None:
                return
            if target[2] & 3 == STRUCT:
                self._expect(kind in (None, Storage.STRUCT), name, segment, position, "a structure")
                at = message.struct(segment, position)
                assert at is not None
                where, size = _place(at[0], at[1]), f"{at[2]} data words, {at[3]} pointers"
                self._note(segment, position, f"{name}: structure at {where}, {size}")
                self._struct(name, schema, at, depth + 1)
            else:
                self._expect(kind is not Storage.STRUCT, name, segment, position, "a list")
                self._list(name, kind, schema, (segment, position), target, depth + 1)
        except PopefError as error:
            self._note(segment, position, f"!! {name}: {error}")

    def _expect(self, right: bool, name: str, segment: int, position: int, got: str) -> None:
        if not right:
            self._note(segment, position, f"!! {name}: did not expect {got} here")

    def _note_far(self, name: str, segment: int, position: int) -> None:
        word = self._message.words[segment][position]
        if word & 3 != FAR:
            return
        double = bool(word & 4)
        pad_segment, pad = word >> 32, word >> 3 & 0x1FFFFFFF
        kind = "double far pointer" if double else "far pointer"
        self._note(segment, position, f"{name}: {kind} to {_place(pad_segment, pad)}")
        if pad_segment < len(self._message.words) and pad + double < len(
            self._message.words[pad_segment]
        ):
            self._note(pad_segment, pad, f"{name}: landing pad")
            if double:
                self._note(pad_segment, pad + 1, f"{name}: tag of the content")

    def _struct(self, name: str, schema: Struct | None, at: StructAt, depth: int) -> None:
        segment, data, data_words, num_pointers = at
        # Pointers may share a target or form a cycle: a target is noted once under each name.
        if (segment, data, name) in self._seen:
            return
        self._seen.add((segment, data, name))
        fields = schema.fields if schema else ()
        for word in range(data_words):
            raw = self._message.words[segment][data + word]
            in_word = [
                field for field in fields if field.kind.bits and field.slot // WORD_BITS == word
            ]
            self._note(segment, data + word, f"{name}: {_data_note(raw, in_word)}")
        pointers = {field.slot: field for field in fields if not field.kind.bits}
        for slot in range(num_pointers):
            place = data + data_words + slot
            field = pointers.get(slot)
            if field is None:
                self._pointer(f"{name}.unknown pointer {slot}", None, None, segment, place, depth)
            else:
                inner = field.record.SCHEMA if field.record else None
                self._pointer(f"{name}.{field.name}", field.kind, inner, segment, place, depth)

    def _list(
        self,
        name: str,
        kind: Storage | None,
        schema: Struct | None,
        pointer: tuple[int, int],
        target: tuple[int, int, int],
        depth: int,
    ) -> None:
        segment, start, word = target
        code, count = word >> 32 & 7, word >> 35
        where = _place(segment, start)
        if code == COMPOSITE_LIST:
            at = self._message.structs(*pointer)
            step = at.data_words + at.num_pointers
            self._note(*pointer, f"{name}: list of {at.length} structures at {where}")
            size = f"{at.data_words} data words, {at.num_pointers} pointers"
            self._note(segment, start, f"{name}: tag, {at.length} of {size}")
            for i in range(at.length if step else 0):
                element = (segment, at.first + i * step, at.data_words, at.num_pointers)
                self._struct(f"{name}[{i}]", schema, element, depth)
            return
        # A list without a known field is shown by the form of its elements.
        words = list_words(code, count)
        self._message.check(segment, start, words, name)
        if kind is Storage.TEXT or (kind is None and code == BYTE_LIST):
            text = self._message.text(*pointer)
            shown = repr(text[:_SHOWN_TEXT]) + (" ..." if len(text) > _SHOWN_TEXT else "")
            self._note(*pointer, f"{name}: text of {count} bytes at {where}")
            for i in range(words):
                self._note(
                    segment, start + i, f"{name}: {shown}" if i == 0 else f"{name}, continued"
                )
            return
        self._note(
            *pointer, f"{name}: list of {count} elements of {ELEMENT_BITS[code]} bits at {where}"
        )
        for i in range(words):
            if code == POINTER_LIST:
                self._pointer(f"{name}[{i}]", None, schema, segment, start + i, depth)
            else:
                self._note(
                    segment,
                    start + i,
                    f"{name}{_elements(self._message.words[segment][start + i], code, i, count)}",
                )


def _elements(word: int, code: int, index: int, count: int) -> str:
    # Elements lie in a word from its lowest bits on; the last word of a list may not be full.
    bits = ELEMENT_BITS[code]
    per_word = WORD_BITS // bits
    first = index * per_word
    values = [word >> i * bits & ((1 << bits) - 1) for i in range(min(per_word, count - first))]
    if bits == WORD_BITS:
        values = [value - (1 << 64) if value >> 63 else value for value in values]
    last = first + len(values) - 1
    if len(values) == 1:
        return f"[{first}] = {values[0]}"
    return f"[{first} to {last}] = {', '.join(map(str, values))}"


def _data_note(raw: int, fields: list[Field[Any, Any]]) -> str:
    notes, rest = [], raw
    for field in sorted(fields, key=lambda field: field.slot):
        width, shift = field.kind.bits, field.slot % WORD_BITS
        mask = (1 << width) - 1
        value = raw >> shift & mask
        rest &= ~(mask << shift)
        notes.append(f"{field.name} = {_value(field, value)}")
    if rest or not fields:
        notes.append(f"unknown data {rest:#x}")
    return ", ".join(notes)


def _value(field: Field[Any, Any], value: int) -> str:
    if field.enum is not None:
        return f"{enumerant(field.enum(value))} ({value})"
    if field.kind is Storage.BOOL:
        return str(bool(value)).lower()
    return str(value - (1 << 64) if field.kind is Storage.I64 and value >> 63 else value)


def _place(segment: int, position: int) -> str:
    return f"word {position}" if segment == 0 else f"word {position} of segment {segment}"
