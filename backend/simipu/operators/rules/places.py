"""Where rows lie in a tensor, and what a rule may see of a node and change in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnxgraph import Chain, attribute

Shape = tuple[int, ...]
Array = npt.NDArray[Any]


class NotIndependent(Exception):
    """Rows cannot be shown to be independent: says at which node and why. A reason, not a failure."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a tensor lie: along `axis`, whose elements are counted (before, row, block).

    An axis of `before` * batch * `block` elements: element (i * batch + row) * block + j belongs to that row.
    An axis that is the batch has 1 and 1; (time, batch) flattened into one has before = time; (batch, time)
    has block = time.
    """

    axis: int
    block: int = 1
    before: int = 1

    def moved(self, axis: int) -> Rows:
        """The same along another axis."""
        return replace(self, axis=axis)

    def size(self, batch: int) -> int:
        """Elements of the axis for a batch of that many rows."""
        return self.before * batch * self.block


@dataclass(slots=True)
class Node:
    """One node with everything its rule may look at. `rewrites` replaces inputs by position with constants,
    `computed` with what the nodes of `chain` make, which go before it; an empty name drops the input."""

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
    """Inputs without rows of which the rule knows that they are the same for every row."""
    chain: Chain = field(init=False)
    after: Chain = field(init=False)
    """Nodes that go behind it; `rename_result` says what they take."""

    def __post_init__(self) -> None:
        self.chain = Chain(f"{self.proto.output[0]}/rows")
        self.after = Chain(f"{self.proto.output[0]}/after")

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        return attribute(self.proto, name, default)

    def has(self, index: int) -> bool:
        """Whether the node has that input."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def shape(self, index: int) -> Shape:
        """The compiled shape of an input."""
        shape = self.shapes[index]
        if shape is None:
            raise NotIndependent(f"input {index} has no known shape")
        return shape

    def constant(self, index: int) -> Array | None:
        """The constant at that input, None if there is no such input; NotIndependent if it is computed."""
        if not self.has(index):
            return None
        if self.proto.input[index] not in self.constants:
            raise NotIndependent(f"input {self.proto.input[index]!r} is computed at run time")
        return self.constants[self.proto.input[index]]

    def only_rows(self) -> Rows:
        """The rows of input 0, provided that no other input carries any."""
        if any(self.rows[1:]) or self.rows[0] is None:
            raise NotIndependent("rows come in through another input than the first")
        return self.rows[0]

    def align(self) -> Rows:
        """Return the place of the rows in the first result, to which the inputs are broadcast.

        Raises NotIndependent where inputs carry their rows along different axes of it.
        """
        places = {self.place_of(index) for index in range(len(self.rows)) if self.carries(index)}
        if len(places) != 1:
            raise NotIndependent("its inputs carry their rows along different axes")
        return places.pop()

    def settle(self, place: Rows, *indices: int) -> None:
        """Have inputs without rows, which are broadcast to the first result, stand for any number of rows
        there (default: all inputs). NotIndependent for one that differs from row to row."""
        for index in indices or range(len(self.rows)):
            if not self.has(index) or self.carries(index):
                continue
            axis = place.axis - self._missing_axes(index)
            if axis >= 0 and self.shape(index)[axis] != 1:
                self.forget_rows(index, axis, place)
            self.settled.add(index)

    def _missing_axes(self, index: int) -> int:
        """Return how many axes broadcasting puts before those of an input."""
        return len(self.results[0]) - len(self.shape(index))

    def rename_result(self) -> str:
        """Return a new name for the first result, of which `after` makes the tensor of the old name."""
        name = f"{self.proto.output[0]}/rows/result"
        self.proto.output[0] = name
        return name

    def carries(self, index: int) -> bool:
        """Return whether that input carries rows."""
        return index < len(self.rows) and self.rows[index] is not None

    def place_of(self, index: int) -> Rows:
        """Return where broadcasting puts the rows of that input in the first result."""
        rows = self.rows[index]
        assert rows is not None
        return rows.moved(rows.axis + self._missing_axes(index))

    def take_own(self, index: int, place: Rows) -> None:
        """Have a constant with parts for every row keep those of one, which must be the same for all."""
        self.rewrites[index] = self._find_shared(index, place.axis, place)

    def set_attribute(self, name: str, value: Any) -> None:
        """Give the node that goes into the graph another value of an attribute."""
        kept = [each for each in self.proto.attribute if each.name != name]
        del self.proto.attribute[:]
        self.proto.attribute.extend([*kept, helper.make_attribute(name, value)])

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute that names an axis, counted from the front."""
        return int(self.attribute(name, default)) % max(1, rank)

    def forget_rows(self, index: int, axis: int, place: Rows, *, broadcasts: bool = True) -> None:
        """Have the constant at that input, whose axis `axis` meets the rows of `place`, stand for any number
        of rows.

        NotIndependent unless it is the same for all of them. One that `broadcasts` needs its first row only;
        another is repeated as often as there are rows.
        """
        first = self._find_shared(index, axis, place)
        if broadcasts and place.block == 1:
            self.rewrites[index] = first
        else:
            self.computed[index] = self._repeat(first, axis)

    def _find_shared(self, index: int, axis: int, place: Rows) -> Array:
        """Return the part of a constant that each row has; NotIndependent where they differ."""
        value = self.constant(index)
        assert value is not None
        self.settled.add(index)
        name = self.proto.input[index]
        if place.before != 1:
            raise NotIndependent(f"constant {name!r} meets rows that lie within others")
        first = value.take(range(place.block), axis)
        repeats = [1] * value.ndim
        repeats[axis] = value.shape[axis] // place.block
        same = value.shape[axis] == place.size(self.batch) and np.array_equal(
            value, np.tile(first, repeats), equal_nan=value.dtype.kind == "f"
        )
        if not same:
            raise NotIndependent(f"constant {name!r} differs from row to row")
        return first

    def count_rows(self) -> str:
        """A tensor of one element that holds the number of rows, made of the first input that carries
        some."""
        index, rows = next((i, rows) for i, rows in enumerate(self.rows) if rows is not None)
        size = self.chain.add(
            "Gather", self.chain.add("Shape", self.proto.input[index]), self.chain.shape([rows.axis])
        )
        return size if rows.size(1) == 1 else self.chain.add("Div", size, self.chain.shape([rows.size(1)]))

    def _repeat(self, first: Array, axis: int) -> str:
        ones = [1] * first.ndim
        parts = [self.chain.shape(ones[:axis])] * bool(axis) + [self.count_rows()]
        parts += [self.chain.shape(ones[axis + 1 :])] * (axis + 1 < first.ndim)
        repeats = self.chain.add("Concat", *parts, axis=0)
        return self.chain.add("Tile", self.chain.constant(first, first.dtype), repeats)


Rule = Callable[[Node], Sequence[Rows]]
"""The places of the rows in a node's results; NotIndependent, with the reason, where there are none."""
