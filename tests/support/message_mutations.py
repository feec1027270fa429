"""Damage to protobuf messages by structure: fields lost, doubled, moved and set to unexpected
values."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    16,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**64 - 1,
    -1,
    -2,
    -(2**63),
)
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "\0",
    "\x1b[31m",
    "a\nb",
    "../../etc/passwd",
    "/dev/zero",
    "Loop",
    "If",
    "Scan",
    "Concat",
    "Tile",
)
_RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def mutate_message(message: Message, random: Random) -> None:
    """Damage one field of `message`, or of a message inside it, in place."""
    owner = random.choice(list(_iter_messages(message)))
    field = random.choice([field for field in owner.DESCRIPTOR.fields if not _is_map(field)])
    if _is_repeated(field):
        _mutate_list(getattr(owner, field.name), field, random)
    elif random.random() < 0.2:
        owner.ClearField(field.name)
    elif field.cpp_type != Field.CPPTYPE_MESSAGE:
        setattr(owner, field.name, _invent(field, random, getattr(owner, field.name)))


def _iter_messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == Field.CPPTYPE_MESSAGE and not _is_map(field):
            for inner in value if _is_repeated(field) else [value]:
                yield from _iter_messages(inner)


def _is_repeated(field: Any) -> bool:
    """Return whether a field is repeated; protobuf 6 has a property for it, earlier versions a
    label."""
    return bool(
        field.is_repeated if hasattr(field, "is_repeated") else field.label == Field.LABEL_REPEATED
    )


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _mutate_list(values: Any, field: Any, random: Random) -> None:
    place = random.randrange(len(values)) if values else 0
    what = random.choice(("lose", "double", "move", "invent"))
    if what == "lose" and values:
        del values[place]
    elif field.cpp_type == Field.CPPTYPE_MESSAGE:
        if values and what in ("double", "move"):
            values.add().CopyFrom(values[place])
            if what == "move":
                del values[place]
        else:
            values.add()
    elif what == "invent" and values:
        values[place] = _invent(field, random, values[place])
    else:
        values.append(_invent(field, random, values[place] if values else None))


def _invent(field: Any, random: Random, before: Any) -> Any:
    if field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]
        near = [before + step for step in (-1, 1)] if before is not None else []
        return random.choice([number for number in (*NUMBERS, *near) if least <= number <= most])
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return not before
    if field.cpp_type in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return random.choice((0.0, -1.0, 1e38, float("inf"), float("nan")))
    if field.type == Field.TYPE_BYTES:
        return _damage(before or b"", random)
    return random.choice((*TEXTS, before or "", (before or "") + "x", "n" * 5000))


def _damage(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    return random.choice(
        (
            data[:place],
            data + b"\0" * 4,
            data[:place] + bytes([random.randrange(256)]) + data[place + 1 :],
            b"",
        )
    )
