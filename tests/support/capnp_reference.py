"""PopEF structures as the reference Cap'n Proto library sees them, and as plain data that both
libraries can be held to.

Plain data is a dict by field name: enumerants are ordinals, maps are lists in the order of their
indices.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import capnp
from hypothesis import strategies as st

from popef.record import Record
from popef.types import STRUCTURES
from popef.values import Names

capnp.remove_import_hook()
RECORDS = {kind.__name__: kind for kind in STRUCTURES}
SCHEMA = Path(__file__).parents[1] / "popef" / "popef.capnp"
ROOTS = ("BlobHeader", "Executable", "Metadata", "TensorDataInfo", "FeedDataInfo", "OpaqueBlob")
"""The structures that are messages of their own."""
STRUCTURE_OF_BLOB = ("Executable", "Metadata", "TensorDataInfo", "FeedDataInfo", "OpaqueBlob")
"""Names of the structures, by the blob type's ordinal."""

Plain = dict[str, Any]


@dataclass(frozen=True)
class FieldShape:
    """One field; `slot` counts bits for data and pointers for the rest, `kind` is the schema
    language's type."""

    name: str
    kind: str
    slot: int
    struct: StructShape | None = None

    @property
    def default(self) -> Any:
        """Value that an absent field reads as."""
        return {"text": "", "bool": False, "struct": self.struct and self.struct.default}.get(
            self.kind, [] if "list" in self.kind else 0
        )


@dataclass(frozen=True)
class StructShape:
    """The layout of one structure, as the reference library's compiler worked it out."""

    name: str
    data_words: int
    num_pointers: int
    fields: tuple[FieldShape, ...]

    @property
    def default(self) -> Plain:
        """Value that null reads as."""
        return {field.name: field.default for field in self.fields}


BITS = {"bool": 1, "enum": 16, "int64": 64, "uint64": 64}
INFERRED = ("programs", "programsMap", "deviceIterations")
"""Fields that readers must ignore if they do not decode, by FORMAT.md."""
PROGRAMS = st.integers(0, (1 << 32) - 1)


class Reference:
    """One version of the schema, loaded in the reference library."""

    def __init__(self, edit: Callable[[str], str] = str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, SCHEMA.name)
            Path(path).write_text(edit(re.sub("#.*", "", SCHEMA.read_text())))
            self._schema = capnp.SchemaParser().load(path)
        self.shapes = {name: _shape(getattr(self._schema, name).schema) for name in ROOTS}

    def write(self, name: str, values: Plain, first_segment_words: int = 1024) -> bytes:
        """Return the reference library's message of some values, in many segments if the first one
        is small."""
        message = getattr(self._schema, name).new_message(
            num_first_segment_words=first_segment_words, **values
        )
        return bytes(message.to_bytes())

    def read(self, name: str, message: bytes) -> Plain:
        """Return all that the reference library reads; raises KjException or ValueError."""
        with getattr(self._schema, name).from_bytes(message) as reader:
            return _walk(reader, self.shapes[name])


def _shape(schema: Any) -> StructShape:
    fields = []
    for name, field in schema.fields.items():
        kind, struct = field.proto.slot.type.which(), None
        if kind == "list" and field.proto.slot.type.list.elementType.which() == "struct":
            kind, struct = "list of structs", _shape(field.schema.elementType)
        elif kind == "struct":
            struct = _shape(field.schema)
        fields.append(FieldShape(name, kind, field.proto.slot.offset * BITS.get(kind, 1), struct))
    node = schema.node.struct
    return StructShape(
        schema.node.displayName.split(":")[1], node.dataWordCount, node.pointerCount, tuple(fields)
    )


def _walk(reader: Any, shape: StructShape | None) -> Plain:
    assert shape is not None
    return {
        field.name: _inferred(reader, field) if field.name in INFERRED else _value(reader, field)
        for field in shape.fields
    }


def _value(reader: Any, field: FieldShape) -> Any:
    value = getattr(reader, field.name)
    if field.kind == "enum":
        return value.raw
    if field.kind == "struct":
        return _walk(value, field.struct)
    if field.kind == "list of structs":
        return [_walk(item, field.struct) for item in value]
    return list(value) if field.kind == "list" else value


def _inferred(reader: Any, field: FieldShape) -> Any:
    """Return `_value`, but the default if FORMAT.md says to ignore the field."""
    try:
        value = _value(reader, field)
    except (capnp.KjException, ValueError):
        return field.default
    if field.name == "programsMap":
        value.sort(key=lambda item: item["index"])
        numbers = [item["index"] for item in value]
        in_order = len(set(numbers)) == len(numbers)
    else:
        numbers, in_order = (
            value if field.kind == "list" else [value & ((1 << 63) - 1) if value >= 0 else -1],
            True,
        )
    limit = 1 << (32 if "list" in field.kind else 63)
    return value if in_order and all(0 <= number < limit for number in numbers) else field.default


def _edit_structs(edit: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    def edit_struct(match: re.Match[str]) -> str:
        fields = [line.strip() for line in match[2].split(";") if line.strip()]
        return f"struct {match[1]} {{ {' '.join(f'{line};' for line in edit(fields))} }}"

    return lambda text: re.sub(r"struct (\w+) \{(.*?)\}", edit_struct, text, flags=re.DOTALL)


def _with_more(fields: list[str]) -> list[str]:
    more = ("Bool", "UInt64", "Text", "List(Text)", "TensorType")
    return fields + [f"more{i} @{len(fields) + i} :{kind}" for i, kind in enumerate(more)]


PLAIN = Reference()
LONGER = Reference(_edit_structs(_with_more))
"""A schema of the future: every structure has five more fields, one of them in a hole of the old
layout."""
SHORTER = Reference(_edit_structs(lambda fields: fields[: (len(fields) + 1) // 2]))
"""A schema of the past: every structure lacks the second half of its fields."""
NARROW = {
    bits: Reference(partial(re.sub, r"List\(Int64\)", f"List(UInt{bits})")) for bits in (8, 16, 32)
}
"""Schemas whose integer lists have narrow elements, as the newer C++ API suggests."""
MORE = {"more0": True, "more1": (1 << 64) - 1, "more2": "future", "more3": ["a", ""], "more4": 2}


def with_more(values: Plain) -> Plain:
    """Return the values with the new fields of LONGER set in every structure."""
    return {name: _in_structs(value, with_more) for name, value in values.items()} | MORE


def only(values: Plain, shape: StructShape | None) -> Plain:
    """Return the values without the fields that `shape` lacks."""
    assert shape is not None
    return {
        field.name: _in_structs(values[field.name], partial(only, shape=field.struct))
        for field in shape.fields
    }


def _in_structs(value: Any, change: Callable[[Plain], Plain]) -> Any:
    if isinstance(value, dict):
        return change(value)
    return [_in_structs(item, change) for item in value] if isinstance(value, list) else value


def to_plain(value: Any) -> Any:
    """Convert what popef read to plain data."""
    if isinstance(value, Record):
        return {field.name: to_plain(getattr(value, field.name)) for field in value.SCHEMA.fields}
    if isinstance(value, Names):
        return [{"index": int(index), "name": str(name)} for index, name in sorted(value.items())]
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, str) else int(value)


def to_record(name: str, values: Plain) -> Record:
    """Return plain data as popef's structure of that name."""
    record = RECORDS[name]()
    for field in record.SCHEMA.fields:
        value = values[field.name]
        if field.name == "programsMap":
            value = {item["index"]: item["name"] for item in value}
        elif isinstance(value, dict) and field.record is not None:
            value = to_record(field.record.__name__, value)
        elif field.record is not None:
            value = [to_record(field.record.__name__, item) for item in value]
        setattr(record, field.name, value)
    return record


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def plain_values(shape: StructShape, bits: int = 64) -> st.SearchStrategy[Plain]:
    """Return a strategy for values of a structure, whose lists hold integers of at most `bits`
    bits."""
    return st.fixed_dictionaries({field.name: _field_values(field, bits) for field in shape.fields})


def _field_values(field: FieldShape, bits: int) -> st.SearchStrategy[Any]:
    if field.name == "programsMap":
        pairs = st.dictionaries(PROGRAMS, TEXT, max_size=3)
        return pairs.map(
            lambda names: [{"index": index, "name": name} for index, name in sorted(names.items())]
        )
    if field.struct is not None:
        values = plain_values(field.struct, bits)
        return values if field.kind == "struct" else st.lists(values, max_size=3)
    if field.kind == "list":
        return st.lists(_integers(field.name, bits), max_size=5)
    if field.name == "deviceIterations":
        return st.integers(0, (1 << 63) - 1)
    return {
        "text": TEXT,
        "bool": st.booleans(),
        "enum": st.integers(0, 14) | st.integers(0, (1 << 16) - 1),
        "int64": st.integers(-(1 << 63), (1 << 63) - 1),
        "uint64": st.integers(0, (1 << 64) - 1),
    }[field.kind]


def _integers(name: str, bits: int) -> st.SearchStrategy[int]:
    if name == "programs":
        return st.integers(0, (1 << min(bits, 32)) - 1)
    if bits < 64:
        return st.integers(0, (1 << bits) - 1)
    return st.integers(0 if name == "shape" else -(1 << 63), (1 << 63) - 1)
