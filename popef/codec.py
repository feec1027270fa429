"""Structures to bytes and back, driven by the table of `schema.py`.

Values travel as a dict per structure, keyed by field name: str, int, bool, IntEnum, list of int, nested dicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from .errors import LimitError, Limits, PopefError, UnsupportedError
from .layout import MessageBuilder
from .schema import DATA_BITS, TENSOR_INFO, Field, Kind, Struct
from .wire import Message, ReadBytes, StructView, read_message

Values = dict[str, Any]

_log = logging.getLogger("popef")

_MAX_PROGRAM = (1 << 32) - 1
"""Programs are uint32_t in the C++ API."""


class Decoder:
    """Decodes one message and collects what it ignored, so that each inferred field is reported once."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._ignored: dict[str, list[str]] = {}

    def decode(self, structure: Struct) -> Values:
        """The values of the root, checked; warns about inferred fields that do not decode."""
        values = self._decode_struct(self._message.root(), structure)
        for name, reasons in self._ignored.items():
            _log.warning(
                "%s: ignored the optional field %s in %d places, it does not decode: %s",
                self._message.label,
                name,
                len(reasons),
                reasons[0],
            )
        return values

    def _decode_struct(self, view: StructView, structure: Struct) -> Values:
        values = {field.name: self._decode_field(view, structure, field) for field in structure.fields}
        if structure is TENSOR_INFO:
            _check_shape(view, values["shape"])
        return values

    def _decode_field(self, view: StructView, structure: Struct, field: Field) -> Any:
        if not field.inferred:
            return self._decode_value(view, field)
        try:
            value = self._decode_value(view, field)
            _check_inferred(view, field, value)
        except PopefError as error:
            self._ignored.setdefault(f"{structure.name}.{field.name}", []).append(str(error))
            return default_value(field)
        return value

    def _decode_value(self, view: StructView, field: Field) -> Any:
        if field.kind in DATA_BITS:
            return _decode_data(view, field)
        if field.kind is Kind.TEXT:
            return view.text(field.slot)
        if field.kind is Kind.INTS:
            return view.ints(field.slot)
        assert field.struct is not None
        if field.kind is Kind.STRUCT:
            return self._decode_struct(view.struct(field.slot), field.struct)
        items = [self._decode_struct(item, field.struct) for item in view.structs(field.slot)]
        return _as_map(view, field, items) if field.kind is Kind.MAP else items


def default_value(field: Field) -> Any:
    """What an absent inferred field reads as."""
    return {Kind.MAP: dict, Kind.INTS: list, Kind.I64: int}[field.kind]()


def _decode_data(view: StructView, field: Field) -> Any:
    raw = view.bits(field.slot, DATA_BITS[field.kind])
    if field.kind is Kind.BOOL:
        return bool(raw)
    if field.kind is Kind.I64:
        return raw - (1 << 64) if raw >> 63 else raw
    if field.enum is None:
        return raw
    if raw >= len(field.enum):
        raise UnsupportedError(
            f"{view.message.label}: expected {field.name} to be one of {field.enum.__name__} 0 to "
            f"{len(field.enum) - 1}, got {raw}; the file is damaged or from a newer SDK than this package knows"
        )
    return field.enum(raw)


def _as_map(view: StructView, field: Field, items: list[Values]) -> dict[int, str]:
    result = {item["index"]: item["name"] for item in items}
    if len(result) != len(items):
        raise view.fail(f"distinct indices in {field.name}", "one index twice")
    return result


def _check_shape(view: StructView, shape: list[int]) -> None:
    limit = view.message.limits.max_rank
    if len(shape) > limit:
        raise LimitError(
            f"{view.message.label}: expected a tensor of at most {limit} dimensions, got {len(shape)}; "
            "raise Limits.max_rank if numpy can hold it"
        )
    if any(size < 0 for size in shape):
        raise view.fail("a shape without negative sizes", str(shape))


def _check_inferred(view: StructView, field: Field, value: Any) -> None:
    numbers = [value] if field.kind is Kind.I64 else list(value)
    limit = _MAX_PROGRAM if field.kind is not Kind.I64 else (1 << 63) - 1
    if not all(0 <= number <= limit for number in numbers):
        raise view.fail(f"{field.name} between 0 and {limit}", f"{min(numbers)} to {max(numbers)}")


def decode_message(read: ReadBytes, start: int, end: int, label: str, limits: Limits, structure: Struct) -> tuple[Values, int]:
    """Read and decode the message at `start`; gives its values and the offset after it."""
    message = read_message(read, start, end, label, limits)
    return Decoder(message).decode(structure), message.end


def encode(structure: Struct, values: Mapping[str, Any]) -> bytes:
    """The framed message for `values`; the long form only where an inferred field is set."""
    builder = MessageBuilder()
    size = structure.size(long=_needs_long(structure, values))
    _encode_struct(builder, builder.add_struct(0, *size), size, structure, values)
    return builder.framed()


def _needs_long(structure: Struct, values: Mapping[str, Any]) -> bool:
    return any(field.inferred and values[field.name] for field in structure.fields)


def _encode_struct(
    builder: MessageBuilder, start: int, size: tuple[int, int], structure: Struct, values: Mapping[str, Any]
) -> None:
    long = size != structure.size(long=False)
    for field in structure.fields:
        value = values[field.name]
        if field.inferred and (not long or not value):
            continue
        if field.kind in DATA_BITS:
            builder.put(start + field.slot // 64, _data_bits(structure, field, value) << field.slot % 64)
        else:
            _ENCODERS[field.kind](builder, start + size[0] + field.slot, field, value)


def _data_bits(structure: Struct, field: Field, value: int) -> int:
    width = DATA_BITS[field.kind]
    low, high = (-(1 << 63), (1 << 63) - 1) if field.kind is Kind.I64 else (0, (1 << width) - 1)
    if not low <= value <= high:
        raise PopefError(f"{structure.name}.{field.name}: expected {low} to {high}, got {value}; correct the value")
    return value & ((1 << width) - 1)


def _encode_text(builder: MessageBuilder, pointer: int, field: Field, value: str) -> None:
    builder.add_text(pointer, value)


def _encode_ints(builder: MessageBuilder, pointer: int, field: Field, value: list[int]) -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    wrong = next((number for number in value if not low <= number <= high), None)
    if wrong is not None:
        raise PopefError(f"{field.name}: expected {low} to {high}, got {wrong}; correct the value")
    builder.add_ints(pointer, list(value))


def _encode_one(builder: MessageBuilder, pointer: int, field: Field, value: Mapping[str, Any]) -> None:
    assert field.struct is not None
    size = field.struct.size(long=_needs_long(field.struct, value))
    _encode_struct(builder, builder.add_struct(pointer, *size), size, field.struct, value)


def _encode_list(builder: MessageBuilder, pointer: int, field: Field, value: list[Mapping[str, Any]]) -> None:
    assert field.struct is not None
    size = field.struct.size(long=any(_needs_long(field.struct, item) for item in value))
    first = builder.add_structs(pointer, len(value), *size)
    for i, item in enumerate(value):
        _encode_struct(builder, first + i * sum(size), size, field.struct, item)


def _encode_map(builder: MessageBuilder, pointer: int, field: Field, value: dict[int, str]) -> None:
    _encode_list(builder, pointer, field, [{"index": index, "name": name} for index, name in sorted(value.items())])


_ENCODERS: dict[Kind, Callable[[MessageBuilder, int, Field, Any], None]] = {
    Kind.TEXT: _encode_text,
    Kind.INTS: _encode_ints,
    Kind.STRUCT: _encode_one,
    Kind.STRUCTS: _encode_list,
    Kind.MAP: _encode_map,
}
