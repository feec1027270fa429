"""A random graph in progress: tensors with known values, and nodes that were computed when they
were added.

Every node is computed alone in ONNX Runtime without optimisers when it is drawn. So shapes, types
and values are ONNX Runtime's own, and nodes that it rejects are not part of the graph. Each is
computed a second time with every float rounded to half, which shows how far half may move each
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import defs, helper, numpy_helper
from oracles import unoptimised_session

Array = npt.NDArray[Any]

MAX_ELEMENTS, MAX_RANK, MAX_VALUE, MAX_WHOLE = 1500, 6, 2000.0, 1 << 30
IR_VERSION = 8
FLOATS = ("float32",)
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIGNED = ("int32", "int64")
NUMBERS = (*FLOATS, "int32", "int64")
ANY = (*NUMBERS, "int8", "uint8", "bool")

UNSTEADY = frozenset(
    (
        "ArgMax ArgMin Cast CastLike Ceil DynamicQuantizeLinear Equal Floor Greater GreaterOrEqual "
        "Hardmax IsInf IsNaN Less LessOrEqual MaxPool Mod QuantizeLinear Round Shrink Sign "
        "ThresholdedRelu TopK Compress NonZero OneHot GridSample RoiAlign Loop If Scan Range"
    ).split()
)
"""Operators of which a small difference of the inputs may make a large one of the results."""


class UnfitError(Exception):
    """The step that was drawn does not fit the graph; another one is drawn."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: its value in float, its value when floats are rounded to half after
    each node, and whether half may change it by any amount."""

    value: Array
    half: Array
    unsteady: bool = False

    @property
    def kind(self) -> str:
        """The name of its type."""
        return str(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.value.shape)


def round_to_half(value: Array) -> Array:
    """Round floats to half, without infinities; other types stay unchanged."""
    if value.dtype != np.float32:
        return value
    limited = np.clip(value, -65504.0, 65504.0)  # a number, if the array has no axis
    return np.asarray(limited, np.float16).astype(np.float32)


def make_value_info(name: str, value: Array) -> onnx.ValueInfoProto:
    """Describe an array."""
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    )


class Drawing:
    """A graph that grows node by node."""

    def __init__(self, rng: np.random.Generator, opset: int, size: int, prefix: str = "") -> None:
        self.rng, self.opset, self.size, self.prefix = rng, opset, size, prefix
        self.tensors: dict[str, Tensor] = {}
        self.own: list[str] = []
        """Results of its nodes, in order."""
        self.inputs: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.depth = 0
        self.allows_empty = False
        self.max_inputs = 4
        self.output_chance = 0.1
        """Chance of each result that is read to be an output, too."""

    # What is drawn.

    def chance(self, probability: float) -> bool:
        """Draw a truth."""
        return bool(self.rng.random() < probability)

    def choice(self, values: Sequence[Any]) -> Any:
        """Draw one of `values`."""
        return values[int(self.rng.integers(len(values)))]

    def integer(self, low: int, high: int) -> int:
        """Draw a number from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def dimension(self) -> int:
        """Draw a size, most often that of the batch."""
        return int(self.choice((self.size, self.size, self.size, 1, 2, 3, 4)))

    def shape(self, rank: int) -> tuple[int, ...]:
        """Draw a shape."""
        return tuple(self.dimension() for _ in range(rank))

    def numbers(self, shape: Sequence[int], kind: str = "float32") -> Array:
        """Draw values, all of which half has."""
        if kind == "bool":
            return self.rng.integers(0, 2, shape).astype(np.bool_)
        if kind == "float32":
            return (self.rng.integers(-24, 25, shape) / 8).astype(np.float32)
        low = 0 if kind.startswith("u") else -9
        return np.asarray(self.rng.integers(low, 10, shape)).astype(kind)

    # What the graph has.

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def pick(
        self,
        kinds: Iterable[str] = FLOATS,
        ranks: Iterable[int] = range(MAX_RANK),
        fits: Callable[[Tensor], bool] = lambda _: True,
    ) -> str:
        """Draw a tensor of these types and ranks, most often one of the last; a new input where
        none fits."""
        kinds, ranks = tuple(kinds), tuple(ranks)
        found = [
            name
            for name, each in self.tensors.items()
            if each.kind in kinds and each.value.ndim in ranks and fits(each)
        ]
        if not found or self.chance(0.05):
            found.append(self.add_input(self.choice(kinds), self.shape(max(1, self.choice(ranks)))))
            if not fits(self[found[-1]]):
                raise UnfitError("no tensor fits")
        return str(found[-1] if self.chance(0.3) else self.choice(found[-6:]))

    def pick_like(self, name: str) -> str:
        """Draw a tensor, or a constant, of the type of another and a shape that broadcasts with
        it."""
        one = self[name]

        def fits(other: Tensor) -> bool:
            try:
                return np.broadcast_shapes(one.shape, other.shape) is not None
            except ValueError:
                return False

        if self.chance(0.5):
            return self.pick([one.kind], fits=fits)
        shape = tuple(size if self.chance(0.7) else 1 for size in one.shape)
        return self.constant(self.numbers(shape[self.integer(0, len(shape)) :], one.kind))

    def add_input(self, kind: str, shape: Sequence[int]) -> str:
        """Add an input of the graph, whose first axis is the batch."""
        if len(self.inputs) >= self.max_inputs:
            raise UnfitError("the graph has its inputs")
        name = f"{self.prefix}x{len(self.inputs)}"
        batch = self.size if self.chance(0.97) else self.dimension()
        value = self.numbers((batch, *shape[1:]), kind)
        if value.size > MAX_ELEMENTS:
            raise UnfitError("too large")
        self.inputs.append(name)
        self.tensors[name] = Tensor(value, value)
        return name

    def constant(self, values: npt.ArrayLike, kind: str | None = None) -> str:
        """Add an initializer."""
        value = np.asarray(values, kind)
        name = f"{self.prefix}w{len(self.constants)}"
        self.constants[name] = value
        self.tensors[name] = Tensor(value, round_to_half(value))
        return name

    def longs(self, values: npt.ArrayLike) -> str:
        """Add an initializer of shapes, axes or indices."""
        return self.constant(values, "int64")

    def axis(self, rank: int) -> int:
        """Draw an axis, from behind at times."""
        if not rank:
            raise UnfitError("a scalar has no axis")
        return self.integer(-rank, rank - 1)

    def has(self, op_type: str) -> bool:
        """Return whether the opset has an operator."""
        return find_schema(op_type, self.opset) is not None

    def name(self) -> str:
        """Return the name of the next result."""
        return f"{self.prefix}t{len(self.nodes)}"

    # What is added.

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node and return its first result. Attributes that the opset lacks, or that are
        None, are left out."""
        return self.add_all(op_type, inputs, [True] * outputs, **attributes)[0]

    def add_all(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[bool], **attributes: Any
    ) -> list[str]:
        """Add a node and return its results, of which the wanted ones have names. Raises UnfitError
        where ONNX Runtime refuses it."""
        schema = find_schema(op_type, self.opset)
        if schema is None:
            raise UnfitError(f"opset {self.opset} has no {op_type}")
        known = {k: v for k, v in attributes.items() if k in schema.attributes and v is not None}
        base = self.name()
        names = [f"{base}_{place}" if wanted else "" for place, wanted in enumerate(outputs)]
        node = helper.make_node(op_type, list(inputs), names, name=f"{base}_{op_type}", **known)
        made = [name for name in names if name]
        results = self._compute(node, made)
        self.nodes.append(node)
        for name, result in zip(made, results, strict=True):
            self.tensors[name] = result
            self.own.append(name)
        return names

    def _compute(self, node: onnx.NodeProto, made: Sequence[str]) -> list[Tensor]:
        read = list(dict.fromkeys(name for name in iter_read(node) if name in self.tensors))
        steady = {name for name in read if np.array_equal(self[name].value, self[name].half)}
        constants = steady & self.constants.keys()
        graph = helper.make_graph(
            [node],
            "node",
            [make_value_info(name, self[name].value) for name in read if name not in constants],
            [onnx.ValueInfoProto(name=name) for name in made],
            [numpy_helper.from_array(self[name].value, name) for name in sorted(constants)],
        )
        try:
            session = unoptimised_session(make_model(graph, self.opset))
            fed = [name for name in read if name not in constants]
            values = session.run(made, {name: self[name].value for name in fed})
            halves = session.run(made, {name: self[name].half for name in fed})
        except Exception as error:
            raise UnfitError(str(error)) from error
        for value in values:
            self._check(value)
        moved = len(steady) < len(read) and node.op_type in UNSTEADY
        unsteady = moved or any(self[name].unsteady for name in read)
        shapes = [
            np.shape(value) == np.shape(half) for value, half in zip(values, halves, strict=True)
        ]
        if not all(shapes):
            halves, unsteady = values, True
        return [
            Tensor(value, round_to_half(half), unsteady)
            for value, half in zip(values, halves, strict=True)
        ]

    def _check(self, value: Any) -> None:
        if not isinstance(value, np.ndarray):
            raise UnfitError("no tensor")
        if (
            value.size > MAX_ELEMENTS
            or value.ndim > MAX_RANK
            or (not value.size and not self.allows_empty)
        ):
            raise UnfitError("too large, or empty")
        if (
            value.dtype.kind in "iu"
            and value.size
            and np.abs(value.astype(np.float64)).max() >= MAX_WHOLE
        ):
            raise UnfitError("more than the 32 bits that leave the chip")
        if value.dtype.kind == "f":
            finite = np.isfinite(value).all() and np.abs(value).max(initial=0) <= MAX_VALUE
            if not finite:
                raise UnfitError("too large a value")


def find_schema(op_type: str, opset: int) -> defs.OpSchema | None:
    """Return the schema of an operator in an opset; None if the opset lacks it."""
    try:
        schema = defs.get_schema(op_type, opset)
    except defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def iter_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including those that its bodies capture."""
    yield from node.input
    for each in node.attribute:
        if each.type == onnx.AttributeProto.GRAPH:
            for inner in each.g.node:
                yield from iter_read(inner)
            yield from (value.name for value in each.g.output)


def make_model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Return a model of one graph."""
    version = IR_VERSION if opset <= 18 else 10
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version
    )
