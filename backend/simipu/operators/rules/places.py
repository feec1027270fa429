"""Places of rows in a tensor, and the view of a node that a row rule reads and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnxgraph import Tape, attribute

from popef._tools.arrays import Array

Shape = tuple[int, ...]


class NotIndependent(Exception):
    """Rows cannot be shown to be independent. The message names the node and the reason; it is not
    a failure."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Place of the rows of a tensor: along `axis`, whose elements are numbered by (before, row,
    block).

    The axis has `before` * batch * `block` elements; element (i * batch + row) * block + j belongs
    to that row. An axis that is the batch has before = block = 1. An axis (time, batch) flattened
    into one has before = time, and (batch, time) has block = time.
    """

    axis: int
    block: int = 1
    before: int = 1

    def moved(self, axis: int) -> Rows:
        """Return the same place along another axis."""
        return replace(self, axis=axis)

    def size(self, batch: int) -> int:
        """Return the number of elements of the axis for a batch of `batch` rows."""
        return self.before * batch * self.block


@dataclass(slots=True)
class Node:
    """One node with everything that its rule may read. `rewrites` replaces inputs, by index, with
    constants. `computed` replaces them with results of `chain`, whose nodes are inserted before the
    node; an empty name drops the input."""

    proto: onnx.NodeProto
    batch: int
    rows: list[Rows | None]
    shapes: list[Shape | None]
    results: list[Shape]
    constants: Mapping[str, Array]
    opset: int
    rewrites: dict[int, Array] = field(default_factory=dict)
    computed: dict[int, str] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    """Inputs without rows that the rule has shown to be the same for every row."""
    op: Tape = field(init=False)
    after: Tape = field(init=False)
    """Nodes to insert after the node; `rename_result` returns the name of their input."""

    def __post_init__(self) -> None:
        self.op = Tape(f"{self.proto.output[0]}/rows")
        self.after = Tape(f"{self.proto.output[0]}/after")

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute."""
        return attribute(self.proto, name, default)

    def has(self, index: int) -> bool:
        """Return whether the node has the input `index`."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def shape(self, index: int) -> Shape:
        """Return the compiled shape of an input. Raises NotIndependent if it is unknown."""
        shape = self.shapes[index]
        if shape is None:
            raise NotIndependent(f"input {index} has no known shape")
        return shape

    def constant(self, index: int) -> Array | None:
        """Return the constant at an input, or None if there is no such input. Raises NotIndependent
        if it is computed."""
        if not self.has(index):
            return None
        if self.proto.input[index] not in self.constants:
            raise NotIndependent(f"input {self.proto.input[index]!r} is computed at run time")
        return self.constants[self.proto.input[index]]

    def only_rows(self) -> Rows:
        """Return the rows of input 0. Raises NotIndependent if another input carries rows."""
        if any(self.rows[1:]) or self.rows[0] is None:
            raise NotIndependent("rows come in through another input than the first")
        return self.rows[0]

    def align(self) -> Rows:
        """Return the place of the rows in the first result, to which the inputs are broadcast.

        Raises NotIndependent if inputs carry their rows along different axes of the result.
        """
        places = {self.place_of(index) for index in range(len(self.rows)) if self.carries(index)}
        if len(places) != 1:
            raise NotIndependent("its inputs carry their rows along different axes")
        return places.pop()

    def settle(self, place: Rows, *indices: int) -> None:
        """Make inputs without rows, which are broadcast to the first result, valid for any number
        of rows (default: all inputs). Raises NotIndependent for one that differs from row to
        row."""
        for index in indices or range(len(self.rows)):
            if not self.has(index) or self.carries(index):
                continue
            axis = place.axis - self._missing_axes(index)
            if axis >= 0 and self.shape(index)[axis] != 1:
                self.forget_rows(index, axis, place)
            self.settled.add(index)

    def _missing_axes(self, index: int) -> int:
        """Return the number of axes that broadcasting puts before those of an input."""
        return len(self.results[0]) - len(self.shape(index))

    def rename_result(self) -> str:
        """Give the first result a new name and return it; `after` makes the tensor of the old name
        from it."""
        name = f"{self.proto.output[0]}/rows/result"
        self.proto.output[0] = name
        return name

    def carries(self, index: int) -> bool:
        """Return whether an input carries rows."""
        return index < len(self.rows) and self.rows[index] is not None

    def place_of(self, index: int) -> Rows:
        """Return the place in the first result to which broadcasting moves an input's rows."""
        rows = self.rows[index]
        assert rows is not None
        return rows.moved(rows.axis + self._missing_axes(index))

    def take_own(self, index: int, place: Rows) -> None:
        """Replace a constant that has a part for every row with the part of one row; the parts must
        be the same."""
        self.rewrites[index] = self._find_shared(index, place.axis, place)

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return the axis that an attribute names, counted from the front."""
        return int(self.attribute(name, default)) % max(1, rank)

    def forget_rows(self, index: int, axis: int, place: Rows, *, broadcasts: bool = True) -> None:
        """Make a constant input valid for any number of rows; its axis `axis` is aligned with the
        rows of `place`.

        Raises NotIndependent unless it is the same for all rows. A constant that `broadcasts` keeps
        only its first row; another is repeated as often as there are rows.
        """
        # One element along the axis is broadcast to any number of rows; a block of several is not.
        first = self._find_shared(index, axis, place)
        if broadcasts and place.block == 1:
            self.rewrites[index] = first
        else:
            self.computed[index] = self._repeat(first, axis)

    def repeat_others(self, place: Rows, *indices: int) -> None:
        """Repeat constants without rows as often as there are rows, along the axis of `place`
        (default: all inputs). Raises the errors of `forget_rows`."""
        for index in indices or range(len(self.rows)):
            if self.has(index) and self.rows[index] is None:
                self.forget_rows(index, place.axis, place, broadcasts=False)

    def _find_shared(self, index: int, axis: int, place: Rows) -> Array:
        """Return the part of a constant that belongs to each row. Raises NotIndependent if the
        parts differ."""
        value = self.constant(index)
        assert value is not None
        self.settled.add(index)
        name = self.proto.input[index]
        if place.before != 1:
            raise NotIndependent(f"constant {name!r} is combined with rows in several parts")
        # With block 2 and a batch of 3, "a b a b a b" is the same for each row, and "a b" its part.
        if value.shape[axis] != place.size(self.batch):
            raise NotIndependent(f"constant {name!r} differs from row to row")
        first = value.take(range(place.block), axis)
        repeats = [1] * value.ndim
        repeats[axis] = value.shape[axis] // place.block
        repeated = np.tile(first, repeats)
        if not np.array_equal(value, repeated, equal_nan=value.dtype.kind == "f"):
            raise NotIndependent(f"constant {name!r} differs from row to row")
        return first

    def count_rows(self) -> str:
        """Add nodes that compute the number of rows from the first input that carries rows, and
        return the name of that tensor of one element."""
        index, rows = next((i, rows) for i, rows in enumerate(self.rows) if rows is not None)
        shape = self.op.add("Shape", self.proto.input[index])
        size = self.op.add("Gather", shape, self.op.ints([rows.axis]))
        if rows.size(1) == 1:
            return size
        return self.op.add("Div", size, self.op.ints([rows.size(1)]))

    def _repeat(self, first: Array, axis: int) -> str:
        # Tile's repeats are 1 for every axis but `axis`, which repeats as often as there are rows.
        ones = [1] * first.ndim
        parts = [self.op.ints(ones[:axis])] * bool(axis) + [self.count_rows()]
        parts += [self.op.ints(ones[axis + 1 :])] * (axis + 1 < first.ndim)
        repeats = self.op.add("Concat", *parts, axis=0)
        return self.op.add("Tile", self.op.constant(first, first.dtype), repeats)


Rule = Callable[[Node], Sequence[Rows]]
"""Function that returns the places of the rows in a node's results. It raises NotIndependent, with
the reason, if there are none."""
