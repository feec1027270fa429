"""PopEF messages as Cap'n Proto's rules of evolution allow them: longer and shorter structures,
lists that have grown."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from capnp_messages import (
    MASK,
    IntsNode,
    Node,
    PointersNode,
    StructNode,
    StructsNode,
    lay_out,
    text_node,
)
from capnp_reference import BITS, FieldShape, Plain, StructShape

CODES = {8: 2, 16: 3, 32: 4, 64: 5}
"""The size code of integers by their bits."""


def scatter(
    shape: StructShape, values: Plain, seed: int, bits: int = 64, seen: Counter[str] | None = None
) -> bytes:
    """Return a message of some values in a form that `seed` chooses, with integers of `bits` bits.

    `seen` counts what occurs in it.
    """
    seen = Counter() if seen is None else seen
    random = Random(seed)
    root = _Grower(random, bits, seen).struct(shape, values)
    return lay_out(root, random, random.randint(1, 5), seen)


class _Grower:
    """Turns values into nodes, each in one of the forms that mean the same."""

    def __init__(self, random: Random, bits: int, seen: Counter[str]) -> None:
        self._random = random
        self._code = CODES[bits]
        self._seen = seen

    def _choose(self, what: str, chance: float = 0.3) -> bool:
        chosen = self._random.random() < chance
        self._seen[what] += chosen
        return chosen

    def struct(self, shape: StructShape | None, values: Plain) -> StructNode:
        node = self._exact(shape, values)
        self._resize([node])
        return node

    def _exact(self, shape: StructShape | None, values: Plain) -> StructNode:
        assert shape is not None
        data = 0
        pointers: list[Node | None] = [None] * shape.num_pointers
        for field in shape.fields:
            value = values[field.name]
            if field.kind in BITS:
                data |= (value & ((1 << BITS[field.kind]) - 1)) << field.slot
            else:
                pointers[field.slot] = self._pointer(field, value)
        return StructNode([data >> 64 * i & MASK for i in range(shape.data_words)], pointers)

    def _pointer(self, field: FieldShape, value: Any) -> Node | None:
        if value == field.default and self._choose("null pointer"):
            return None
        if field.kind == "text":
            return text_node(value)
        if field.kind == "struct":
            return self.struct(field.struct, value)
        if field.kind == "list of structs":
            return self._structs([self._exact(field.struct, item) for item in value])
        if self._code == CODES[64] and value and self._choose("integers in structures"):
            return self._composite([StructNode([number]) for number in value], least_words=1)
        return IntsNode(self._code, value)

    def _structs(self, items: list[StructNode]) -> Node:
        only_word = all(not any(item.data[1:]) and not any(item.pointers) for item in items)
        if (
            only_word
            and all(item.data for item in items)
            and self._choose("structures in integers", 0.7)
        ):
            return IntsNode(CODES[64], [item.data[0] for item in items])
        if not any(any(item.data) or any(item.pointers[1:]) for item in items) and self._choose(
            "structures in pointers", 0.7
        ):
            return PointersNode([item.pointers[0] for item in items])
        return self._composite(items)

    def _composite(self, items: list[StructNode], least_words: int = 0) -> StructsNode:
        self._resize(items, least_words)
        if not items:
            return StructsNode([], self._random.randint(0, 3), self._random.randint(0, 3))
        return StructsNode(items, len(items[0].data), len(items[0].pointers))

    def _resize(self, items: list[StructNode], least_words: int = 0) -> None:
        """Make structures that stand in one list longer, or shorter where nothing but defaults
        goes."""
        if self._choose("longer structure"):
            words, pointers = self._random.randint(0, 2), self._random.randint(0, 2)
            for item in items:
                item.data += [self._random.getrandbits(64) for _ in range(words)]
                item.pointers += [text_node("from a newer schema") for _ in range(pointers)]
        elif self._choose("shorter structure", 0.5):
            data = max((_used(item.data) for item in items), default=0) or least_words
            pointers = max((_used(item.pointers) for item in items), default=0)
            for item in items:
                del item.data[data:], item.pointers[pointers:]


def _used(slots: list[Any]) -> int:
    """Return the number of slots up to the last one that holds something."""
    return max((i + 1 for i, slot in enumerate(slots) if slot), default=0)
