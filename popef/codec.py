"""Conversion between structures and bytes, driven by the table of `types.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .errors import LimitError, Limits, PopefError, Rule
from .record import Field, Record, Storage
from .types import ProgramName
from .values import FLAGS, Names, Number, Numbers, Records, Sizes, Text
from .wire import Message, MessageBuilder, ReadBytes, StructAt, read_message

AnyRecord = TypeVar("AnyRecord", bound=Record)
Read = Callable[["Decoder", Sequence[int], StructAt], Any]
"""Function that reads one field of the structure at a place; the words are those of its segment."""

AnyField = Field[Any, Any]
Warn = Callable[[Rule, str], None]
"""Function that receives a broken rule of severity WARNING and a text that explains it."""

_log = logging.getLogger("popef")

_MAX_PROGRAM = (1 << 32) - 1
"""Maximum index of a program: programs are uint32_t in the C++ API."""
_NOWHERE: StructAt = (0, 0, 0, 0)
"""Position of a structure that is absent; every field of it has its default."""


class Decoder:
    """Decoder of one message. It collects the fields that it ignored, to report each inferred field
    once."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.ignored: dict[str, list[PopefError]] = {}
        """Errors that made an inferred field be ignored, by structure and field."""

    def decode(self, kind: type[AnyRecord], warn: Warn) -> AnyRecord:
        """Decode and return the root structure; warn about inferred fields that were ignored."""
        result = self.struct(kind, self.message.struct(0, 0) or _NOWHERE)
        for name, reasons in self.ignored.items():
            places = "1 place" if len(reasons) == 1 else f"{len(reasons)} places"
            text = f"{self.message.label}: ignored the optional field {name} in {places}, it does"
            warn(Rule.OPTIONAL_FIELD, f"{text} not decode: {reasons[0]}")
        return result

    def struct(self, kind: type[AnyRecord], at: StructAt) -> AnyRecord:
        """Decode the structure at the place `at`."""
        result = kind.__new__(kind)
        values, words = result.__dict__, self.message.words[at[0]]
        for name, read in _readers(kind):
            values[name] = read(self, words, at)
        return result

    def structs(self, kind: type[AnyRecord], segment: int, pointer: int) -> list[AnyRecord]:
        """Decode the structures of the list behind a pointer."""
        at = self.message.structs(segment, pointer)
        step = at.data_words + at.num_pointers
        return [
            self.struct(kind, (at.segment, at.first + i * step, at.data_words, at.num_pointers))
            for i in range(at.length)
        ]


_READERS: dict[type[Record], tuple[tuple[str, Read], ...]] = {}


def _readers(kind: type[Record]) -> tuple[tuple[str, Read], ...]:
    """Return a reader for each field of a structure; cached by structure."""
    readers = _READERS.get(kind)
    if readers is None:
        readers = _READERS[kind] = tuple(
            (field.name, _reader(field)) for field in kind.SCHEMA.fields
        )
    return readers


def _reader(field: AnyField) -> Read:
    read = _data_reader(field) if field.kind.bits else _pointer_reader(field)
    return _forgiving(field, read) if field.inferred else read


def _data_reader(field: AnyField) -> Read:
    # A data field is `bits` wide and never crosses a word. A structure that an older writer made
    # may be too short for it: then the value is 0, as Cap'n Proto defines it.
    word, shift = field.place
    mask = (1 << field.kind.bits) - 1
    convert: Callable[[int], Any] = field.enum or _CONVERTERS[field.kind]

    def read(_decoder: Decoder, words: Sequence[int], at: StructAt) -> Any:
        _, data, data_words, _ = at
        return convert(words[data + word] >> shift & mask if word < data_words else 0)

    return read


_CONVERTERS: dict[Storage, Callable[[int], Any]] = {
    Storage.BOOL: FLAGS.__getitem__,
    Storage.U64: Number,
    Storage.I64: lambda raw: Number(raw - (1 << 64) if raw >> 63 else raw),
}


def _pointer_reader(field: AnyField) -> Read:
    slot, decode = field.slot, _DECODERS[field.kind]
    kind: Any = field.record

    def read(decoder: Decoder, _words: Sequence[int], at: StructAt) -> Any:
        segment, data, data_words, num_pointers = at
        if slot < num_pointers:
            return decode(decoder, segment, data + data_words + slot, kind)
        # A structure that an older writer made may be too short for the pointer: then it is null.
        if field.kind is Storage.STRUCT:
            return decoder.struct(kind, _NOWHERE)
        return field.default()

    return read


def _decode_sizes(decoder: Decoder, segment: int, pointer: int, _: Any) -> Sizes:
    sizes = Sizes(decoder.message.ints(segment, pointer))
    limit = decoder.message.limits.max_rank
    if len(sizes) > limit:
        raise LimitError(
            f"{decoder.message.label}: expected a tensor of at most {limit} dimensions, got "
            f"{len(sizes)}; raise Limits.max_rank if numpy can hold it"
        )
    if sizes and min(sizes) < 0:
        expected = "a shape without negative sizes"
        raise decoder.message.fail(Rule.SHAPE, segment, pointer, expected, str(tuple(sizes)))
    return sizes


def _decode_struct(
    decoder: Decoder, segment: int, pointer: int, kind: type[AnyRecord]
) -> AnyRecord:
    return decoder.struct(kind, decoder.message.struct(segment, pointer) or _NOWHERE)


def _decode_map(decoder: Decoder, segment: int, pointer: int, kind: type[ProgramName]) -> Names:
    items = decoder.structs(kind, segment, pointer)
    names = Names((int(item.index), item.name) for item in items)
    if len(names) != len(items):
        raise decoder.message.fail(
            Rule.OPTIONAL_FIELD, segment, pointer, "distinct indices", "one index twice"
        )
    return names


_DECODERS: dict[Storage, Callable[[Decoder, int, int, Any], Any]] = {
    Storage.TEXT: lambda decoder, segment, at, _: Text(decoder.message.text(segment, at)),
    Storage.INTS: lambda decoder, segment, at, _: Numbers(decoder.message.ints(segment, at)),
    Storage.SIZES: _decode_sizes,
    Storage.STRUCT: _decode_struct,
    Storage.STRUCTS: lambda decoder, segment, at, kind: Records(decoder.structs(kind, segment, at)),
    Storage.MAP: _decode_map,
}


def _forgiving(field: AnyField, read: Read) -> Read:
    """Wrap `read` to ignore an inferred field that does not decode.

    The layout of an inferred field was guessed, so the file may be right.
    """

    def read_or_ignore(decoder: Decoder, words: Sequence[int], at: StructAt) -> Any:
        try:
            value = read(decoder, words, at)
            _check_inferred(decoder.message, at, field, value)
        except PopefError as error:
            decoder.ignored.setdefault(field.path, []).append(error)
            return read(decoder, words, _NOWHERE)
        return value

    return read_or_ignore


def _check_inferred(message: Message, at: StructAt, field: AnyField, value: Any) -> None:
    numbers = [value] if field.kind is Storage.I64 else value
    limit = _MAX_PROGRAM if field.kind is not Storage.I64 else (1 << 63) - 1
    wrong = next((number for number in numbers if not 0 <= number <= limit), None)
    if wrong is not None:
        expected = f"{field.name} between 0 and {limit}"
        raise message.fail(Rule.OPTIONAL_FIELD, at[0], at[1], expected, str(wrong))


def log_warning(rule: Rule, text: str) -> None:
    """Log a broken rule as a warning; the default of readers."""
    _log.warning("%s (%s)", text, rule)


def decode_message(
    read: ReadBytes,
    start: int,
    end: int,
    label: str,
    limits: Limits,
    kind: type[AnyRecord],
    warn: Warn = log_warning,
) -> tuple[AnyRecord, int]:
    """Read and decode the message at `start`; return the structure and the offset after it."""
    message = read_message(read, start, end, label, limits)
    return Decoder(message).decode(kind, warn), message.end


def encode(record: Record) -> bytes:
    """Return the framed message of a structure, in the long form only if an inferred field is
    set."""
    builder = MessageBuilder()
    size = _size(record)
    _encode_struct(builder, builder.add_struct(0, *size), size, record)
    return builder.framed()


def _size(record: Record) -> tuple[int, int]:
    return record.SCHEMA.long if _needs_long(record) else record.SCHEMA.short


def _needs_long(record: Record) -> bool:
    schema = record.SCHEMA
    return schema.long != schema.short and any(
        field.inferred and getattr(record, field.name) for field in schema.fields
    )


def _encode_struct(
    builder: MessageBuilder, start: int, size: tuple[int, int], record: Record
) -> None:
    long = size != record.SCHEMA.short
    for field in record.SCHEMA.fields:
        value = getattr(record, field.name)
        if field.inferred and (not long or not value):
            continue
        if field.kind.bits:
            word, shift = field.place
            builder.put(start + word, _data_bits(field, value) << shift)
        else:
            _encode_pointer(builder, start + size[0] + field.slot, field, value)


def _data_bits(field: AnyField, value: int) -> int:
    mask = (1 << field.kind.bits) - 1
    _check_range(field, *(_INT64 if field.kind is Storage.I64 else (0, mask)), (value,))
    return value & mask


_INT64 = -(1 << 63), (1 << 63) - 1


def _check_range(field: AnyField, low: int, high: int, values: Sequence[int]) -> None:
    wrong = next((value for value in values if not low <= value <= high), None)
    if wrong is not None:
        raise PopefError(
            f"{field.path}: expected {low} to {high}, got {int(wrong)}; correct the value"
        )


def _encode_pointer(builder: MessageBuilder, pointer: int, field: AnyField, value: Any) -> None:
    if field.kind is Storage.TEXT:
        builder.add_text(pointer, value)
    elif field.kind is Storage.STRUCT:
        size = _size(value)
        _encode_struct(builder, builder.add_struct(pointer, *size), size, value)
    elif field.kind is Storage.STRUCTS:
        _encode_list(builder, pointer, field.record, value)
    elif field.kind is Storage.MAP:
        names = [ProgramName(index=index, name=name) for index, name in sorted(value.items())]
        _encode_list(builder, pointer, field.record, names)
    else:
        _check_range(field, *_INT64, value)
        builder.add_ints(pointer, value)


def _encode_list(
    builder: MessageBuilder, pointer: int, kind: type[Record] | None, value: Sequence[Record]
) -> None:
    """Encode a list of structures.

    All elements of a list have one size: that of the long form if one of them needs it.
    """
    assert kind is not None
    size = kind.SCHEMA.long if any(map(_needs_long, value)) else kind.SCHEMA.short
    first = builder.add_structs(pointer, len(value), *size)
    for i, item in enumerate(value):
        _encode_struct(builder, first + i * sum(size), size, item)
