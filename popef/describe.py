"""Structures as text in the layout of Cap'n Proto's JSON, as in Listing 1.1 of the backend guide.

64-bit integers are strings, narrower ones and booleans are bare, and enumerants are names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .enums import BlobType, enumerant
from .schema import Field, Kind

if TYPE_CHECKING:
    from .record import Record
    from .scan import Blob

# Listing 1.1 gives the words for the first three; tensor and feed data follow their pattern.
TITLES = {
    BlobType.OPAQUE: ("OpaqueBlob", "Structure size"),
    BlobType.POPLAR_EXECUTABLE: ("Executable", "header size"),
    BlobType.METADATA: ("Metadata", ""),
    BlobType.DATA_TENSOR: ("TensorData", "header size"),
    BlobType.DATA_FEED: ("FeedData", "header size"),
}

INDENT = "    "
LONG_ELEMENT = 50
"""Number of characters above which an element gets a separate line (capnp/compat/json.c++; Listing
1.1 agrees)."""

JsonTree = dict[str, Any]


def describe_blob(blob: Blob) -> list[str]:
    """Return the lines that the real library logs when it reads a blob."""
    lines = [f"Read header: {blob.header}", f"start end: {blob.start} {blob.end}"]
    if blob.structure is None:
        return [
            *lines,
            f"Skipped blob of unknown type {int(blob.type)}: {blob.payload_bytes} bytes",
        ]
    title, size_name = TITLES[blob.type]
    size = f" {size_name}: {blob.structure_bytes}" if size_name else ""
    return [*lines, f"Read {title}: {blob.structure}{size}"]


def tree(record: Record) -> JsonTree:
    """Return the JSON object of a structure; inferred fields appear only if set, as older readers
    print it."""
    values = ((field, getattr(record, field.name)) for field in record.SCHEMA.fields)
    return {
        field.name: _field_tree(field, value)
        for field, value in values
        if value or not field.inferred
    }


def _field_tree(field: Field[Any, Any], value: Any) -> Any:
    if field.kind is Kind.ENUM:
        return enumerant(value)
    if field.kind is Kind.BOOL:
        return bool(value)
    if field.kind in (Kind.U64, Kind.I64):
        return str(value)
    if field.kind in (Kind.INTS, Kind.SIZES):
        return [str(number) for number in value]
    if field.kind is Kind.STRUCT:
        return tree(value)
    if field.kind is Kind.STRUCTS:
        return [tree(item) for item in value]
    if field.kind is Kind.MAP:
        return [{"index": str(index), "name": name} for index, name in sorted(value.items())]
    return value


def json_text(value: Any, depth: int = 0) -> str:
    """Return `value` as JSON: on one line if its elements are short, otherwise one element a
    line."""
    return _layout(value, depth, after_name=False)[0]


def _layout(value: Any, depth: int, *, after_name: bool) -> tuple[str, bool]:
    if isinstance(value, dict):
        elements = []
        for name, item in value.items():
            text, split = _layout(item, depth + 1, after_name=True)
            elements.append((f"{json.dumps(name)}: {text}", split))
        text, split = _join(elements, depth, after_name=False)
        return f"{{{text}}}", split
    if isinstance(value, list):
        items = [_layout(item, depth + 1, after_name=False) for item in value]
        text, split = _join(items, depth, after_name=after_name)
        return f"[{text}]", split
    return json.dumps(value), False


def _join(elements: list[tuple[str, bool]], depth: int, *, after_name: bool) -> tuple[str, bool]:
    """Join the elements; the second value says if each has a separate line."""
    texts = [text for text, _ in elements]
    long = any(split or len(text) > LONG_ELEMENT for text, split in elements)
    if len(elements) <= 1 or not long:
        return ", ".join(texts), False
    newline = "\n" + INDENT * (depth + 1)
    return (newline if after_name else " ") + f",{newline}".join(texts) + " ", True
