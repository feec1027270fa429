"""Cap'n Proto messages laid out at will: the tests' own builder, which shares nothing with popef or
the reference library.

A message is a tree of nodes; `lay_out` scatters it over segments with every kind of pointer there
is, as no real writer would but every reader must bear. The layout is that of
https://capnproto.org/encoding.html.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

MASK = (1 << 64) - 1
FAR, DOUBLE = 2, 4
BITS = {0: 0, 1: 1, 2: 8, 3: 16, 4: 32, 5: 64}
"""Bits of a list's element by size code."""


@dataclass(eq=False)
class StructNode:
    """A structure: words of data, then pointers, None for null."""

    data: list[int] = field(default_factory=list)
    pointers: list[Node | None] = field(default_factory=list)

    def tag(self) -> int:
        return len(self.data) << 32 | len(self.pointers) << 48

    def words(self) -> list[int]:
        return [word & MASK for word in self.data] + [0] * len(self.pointers)

    def children(self) -> Iterator[tuple[int, Node]]:
        """Return the nodes pointed at, each with the word of its pointer."""
        return (
            (len(self.data) + i, node) for i, node in enumerate(self.pointers) if node is not None
        )


@dataclass(eq=False)
class IntsNode:
    """A list of integers, or of nothing, or of bits, by size code."""

    code: int
    values: list[int]

    def tag(self) -> int:
        return 1 | self.code << 32 | len(self.values) << 35

    def words(self) -> list[int]:
        bits = BITS[self.code]
        number = sum((value & ((1 << bits) - 1)) << i * bits for i, value in enumerate(self.values))
        return [number >> i & MASK for i in range(0, bits * len(self.values), 64)]

    def children(self) -> Iterator[tuple[int, Node]]:
        return iter(())


@dataclass(eq=False)
class PointersNode:
    """A list of pointers."""

    items: list[Node | None]

    def tag(self) -> int:
        return 1 | 6 << 32 | len(self.items) << 35

    def words(self) -> list[int]:
        return [0] * len(self.items)

    def children(self) -> Iterator[tuple[int, Node]]:
        return ((i, node) for i, node in enumerate(self.items) if node is not None)


@dataclass(eq=False)
class StructsNode:
    """A composite list: structures of one size behind a tag word."""

    items: list[StructNode]
    data_words: int
    num_pointers: int

    def tag(self) -> int:
        return 1 | 7 << 32 | len(self.items) * self._step() << 35

    def words(self) -> list[int]:
        tag = len(self.items) << 2 | self.data_words << 32 | self.num_pointers << 48
        return [tag, *(word for item in self.items for word in item.words())]

    def children(self) -> Iterator[tuple[int, Node]]:
        for i, item in enumerate(self.items):
            for place, node in item.children():
                yield 1 + i * self._step() + place, node

    def _step(self) -> int:
        return self.data_words + self.num_pointers


Node = StructNode | IntsNode | PointersNode | StructsNode


def text_node(text: str) -> IntsNode:
    """Return a text: bytes and a NUL."""
    return IntsNode(2, [*text.encode(), 0])


def frame(segments: list[list[int]]) -> bytes:
    """Return the message that consists of these segments."""
    table = struct.pack(f"<{1 + len(segments)}I", len(segments) - 1, *map(len, segments))
    words = [word for segment in segments for word in segment]
    return table + bytes(-len(table) % 8) + struct.pack(f"<{len(words)}Q", *words)


def lay_out(root: Node, random: Random, num_segments: int, seen: Counter[str]) -> bytes:
    """Return the message of `root`, with its nodes in random order in random segments.

    `seen` counts the kinds of pointers.
    """
    layout = _Layout(random, num_segments, seen)
    nodes = _reachable(root)
    random.shuffle(nodes)
    places = {id(node): layout.place(node) for node in nodes}
    layout.point(0, 0, root, places[id(root)])
    for node in nodes:
        segment, start = places[id(node)]
        for word, child in node.children():
            layout.point(segment, start + word, child, places[id(child)])
    # The reference library ignores a segment without words, even for a target without words.
    return frame([segment or [0] for segment in layout.segments])


def _reachable(root: Node) -> list[Node]:
    return [root, *(node for _, child in root.children() for node in _reachable(child))]


class _Layout:
    """Segments that grow."""

    def __init__(self, random: Random, num_segments: int, seen: Counter[str]) -> None:
        self.segments: list[list[int]] = [[0], *([] for _ in range(num_segments - 1))]
        self._random = random
        self._seen = seen

    def place(self, node: Node) -> tuple[int, int]:
        """Append the words of a node somewhere, its pointers still null."""
        return self._append(self._random.randrange(len(self.segments)), node.words())

    def _append(self, segment: int, words: list[int]) -> tuple[int, int]:
        start = len(self.segments[segment])
        self.segments[segment] += words
        return segment, start

    def point(self, segment: int, position: int, node: Node, place: tuple[int, int]) -> None:
        """Make the word at a position a pointer to the node that stands at `place`."""
        near = segment == place[0] and self._random.random() < 0.8
        if near:
            self._near(segment, position, node, place[1])
        elif self._random.random() < 0.5:
            pad_segment, pad = self._append(place[0], [0])
            self._near(pad_segment, pad, node, place[1])
            self.segments[segment][position] = FAR | pad << 3 | pad_segment << 32
        else:
            pads = [FAR | place[1] << 3 | place[0] << 32, node.tag()]
            pad_segment, pad = self._append(self._random.randrange(len(self.segments)), pads)
            self.segments[segment][position] = FAR | DOUBLE | pad << 3 | pad_segment << 32
        word = self.segments[segment][position]
        self._seen[
            "near pointer"
            if near
            else "double-far pointer"
            if word & DOUBLE
            else "single-far pointer"
        ] += 1

    def _near(self, segment: int, position: int, node: Node, start: int) -> None:
        offset = start - position - 1
        if node.tag() == 0:
            offset = -1  # a structure of no words must not look like null
        self._seen["pointer backwards"] += offset < -1
        self.segments[segment][position] = (offset & 0x3FFFFFFF) << 2 | node.tag()
