"""Where rows lie in a tensor, and what a rule may see of a node and change in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
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
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(f"{self.proto.output[0]}/rows")

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

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute that names an axis, counted from the front."""
        return int(self.attribute(name, default)) % max(1, rank)

    def forget_rows(self, index: int, axis: int, place: Rows, *, broadcasts: bool = True) -> None:
        """Have the constant at that input, whose axis `axis` meets the rows of `place`, stand for any number
        of rows.

        NotIndependent unless it is the same for all of them. One that `broadcasts` needs its first row only;
        another is repeated as often as there are rows.
        """
        value = self.constant(index)
        assert value is not None
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
        if broadcasts and place.block == 1:
            self.rewrites[index] = first
        else:
            self.computed[index] = self._repeat(first, axis)

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
