"""Another value for every option of a graph, so that tests change one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from simipu import OperatorLibrary, choose_accelerator

OPTION_CHANGES: Mapping[str, Any] = {
    "num_threads": 2,
    "prepack": False,
    "limit_seconds": 7.0,
    "exact": False,
    "ready_seconds": 7.0,
    "memory_bytes": 1 << 32,
    "in_order": True,
    "optimise": False,
    "index_check": "clamp",
    "libraries": (OperatorLibrary("own", "/lib.so"),),
    "caches": False,
    "accelerators": (choose_accelerator("openvino", {}),),
    "falls_back": True,
    "portable": True,
}


def change_fields(value: Any, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each field of a dataclass and a copy with another value of it. Fails for a
    field that has no other value here."""
    for each in fields(value):
        changed = changes[each.name]
        changed = not getattr(value, each.name) if isinstance(changed, bool) else changed
        yield each.name, replace(value, **{each.name: changed})
