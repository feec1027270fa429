"""Structures as text in the layout of Cap'n Proto's JSON, the one Listing 1.1 of the backend guide shows.

64-bit integers are strings, narrower ones and booleans bare, enumerants go by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .enums import enumerant
from .schema import Field, Kind, Struct

INDENT = "    "
LONG_ELEMENT = 50
"""Characters above which an element gets a line of its own (capnp/compat/json.c++; Listing 1.1 agrees)."""

JsonTree = dict[str, Any]


def tree(structure: Struct, values: Mapping[str, Any]) -> JsonTree:
    """The JSON object for a structure; inferred fields appear only when set, as older readers printed it."""
    return {
        field.name: _field_tree(field, values[field.name])
        for field in structure.fields
        if not field.inferred or values[field.name]
    }


def _field_tree(field: Field, value: Any) -> Any:
    if field.kind is Kind.ENUM:
        return enumerant(value)
    if field.kind in (Kind.U64, Kind.I64):
        return str(value)
    if field.kind is Kind.INTS:
        return [str(number) for number in value]
    if field.struct is None:
        return value
    if field.kind is Kind.STRUCT:
        return tree(field.struct, value)
    if field.kind is Kind.MAP:
        value = [{"index": index, "name": name} for index, name in sorted(value.items())]
    return [tree(field.struct, item) for item in value]


def json_text(value: Any, depth: int = 0) -> str:
    """`value` as JSON: on one line while elements are short, else one element a line."""
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
    """Join the elements; the second value tells whether they stand on lines of their own."""
    texts = [text for text, _ in elements]
    long = any(split or len(text) > LONG_ELEMENT for text, split in elements)
    if len(elements) < 2 or not long:
        return ", ".join(texts), False
    newline = "\n" + INDENT * (depth + 1)
    return (newline if after_name else " ") + f",{newline}".join(texts) + " ", True
