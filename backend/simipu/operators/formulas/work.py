"""Input and result of a cost formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnxgraph import TensorSize, attribute

from simipu.chip.target import HALF_BYTES, Target
from simipu.errors import CompileError
from simipu.operators.formulas.calibration import Calibration
from simipu.operators.formulas.code import NO_CODE, Code, code_of
from simipu.operators.formulas.layout import Layout
from simipu.operators.formulas.plan import PlanOptions
from simipu.operators.formulas.spread import Spread
from simipu.operators.formulas.vertices import SPREAD_START, UNARY_START, InnerLoop

VIEW = "view"
"""Kind of an operator that moves and computes nothing."""


class Layer:
    """Kinds of layers whose times are published apart, and so may be validated apart. Other
    operators' layers are the kinds of their work."""

    PRODUCT = "matmul"
    ATTENTION = "attention"
    """Product of two activations."""
    ATTENTION_STEP = "attention of one row"
    """Product of two activations with a single row for each group, as in a decoder that has the
    keys of earlier tokens."""
    CONVOLUTION = "convolution"
    GROUPED_CONVOLUTION = "grouped convolution"
    TEXT_CONVOLUTION = "text convolution"
    """Kernel of many positions that is as wide as its input: the vectors of a few words."""
    CONVOLUTION_OVER_TIME = "convolution over time"
    """Kernel of several positions in a single dimension."""
    RECURRENT = "recurrent"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of an operator: cycles of the busiest tile, supersteps, tiles at work, memory of a
    tile."""

    kind: str
    compute: int = 0
    exchange: int = 0
    steps: int = 0
    """Number of supersteps, each an exchange and the compute that uses it."""
    local_steps: int = 0
    """Number of further compute sets, whose operands are already in place: tiles need not wait for
    each other."""
    tiles: int = 0
    temporary_bytes: int = 0
    code: Code = NO_CODE
    replaced_bytes: int = 0
    """Bytes of a tile of operands that are copied first, as casts and rearrangements do. They may
    be freed while the copies exist."""
    macs: int = 0
    plan: str = ""
    fallback: bool = False
    layout: Layout | None = field(default=None, compare=False)
    """Layout of the results, if it is not row after row."""
    layer: str = ""
    """Kind of layer, of `Layer`; "" if it is that of the work."""
    broadcasts: int = 1
    """Number of tiles that receive the same part of a product's activations."""
    receivers: tuple[int, int] | None = field(default=None, compare=False)
    """Tiles that receive the same rows, and the same columns, of a product; None if unknown."""
    weights: Spread | None = field(default=None, compare=False)
    """Elements of a product's columns on each tile, where weights are stored; None if unknown."""
    fits: bool = field(default=True, compare=False)
    """False if the plan of a product takes more memory than availableMemoryProportion allows."""
    busy_workers: float | None = field(default=None, compare=False)
    """Share of the busiest tile's workers that have work, 0 to 1; None if unknown."""

    def plus(
        self,
        compute: float = 0,
        exchange: float = 0,
        steps: int = 0,
        temporary_bytes: int = 0,
        code: Code = NO_CODE,
    ) -> Work:
        """Return this work with more of it on the same tiles; cycles are rounded up."""
        return replace(
            self,
            compute=self.compute + math.ceil(compute),
            exchange=self.exchange + math.ceil(exchange),
            steps=self.steps + steps,
            temporary_bytes=self.temporary_bytes + temporary_bytes,
            code=self.code + code,
        )


@dataclass(frozen=True, slots=True)
class Context:
    """One node with the known facts about its tensors, and the target and options of the
    compilation."""

    node: onnx.NodeProto
    inputs: Sequence[TensorSize | None]
    outputs: Sequence[TensorSize]
    target: Target
    plan_options: PlanOptions
    calibration: Calibration
    half_partials: bool
    constants: frozenset[str]
    """Names of the tensors that are known at compile time, mainly weights."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Constants of one element by name, if formulas depend on their values: exponents."""
    layouts: Sequence[Layout | None] = ()
    """Layouts of the inputs. None for inputs without data, and for weights, which lie as their
    first reader needs them."""

    @property
    def result(self) -> TensorSize:
        """Largest output."""
        return max(self.outputs, key=lambda value: value.size)

    @property
    def source(self) -> TensorSize:
        """Largest input, or the result if there is none."""
        return max(
            (value for value in self.inputs if value is not None),
            key=lambda value: value.size,
            default=self.result,
        )

    @property
    def operands(self) -> tuple[TensorSize, TensorSize]:
        """The two inputs of a product. Raises CompileError if one is missing."""
        first, second = self.inputs[0], self.inputs[1]
        if first is None or second is None:
            raise CompileError(
                f"node {self.node.name!r} ({self.node.op_type}): expected two inputs, found one; "
                "give both"
            )
        return first, second

    def has(self, index: int) -> bool:
        """Return whether the node has the input `index`."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute of the node."""
        return attribute(self.node, name, default)

    def is_constant(self, index: int) -> bool:
        """Return whether an input is known at compile time."""
        return self.node.input[index] in self.constants

    def per_tile(self, size: int) -> int:
        """Return the number of elements on the busiest tile."""
        return math.ceil(size / self.target.num_tiles)

    def bytes_per_tile(self, value: TensorSize) -> int:
        """Return the bytes of a tensor on the busiest tile."""
        return self.per_tile(value.size * value.bytes_per_element)

    def exchange_cycles(self, num_bytes: float) -> float:
        """Return the cycles in which a tile receives `num_bytes`."""
        return num_bytes / self.target.exchange_bytes_per_cycle

    def known_scalar(self, index: int) -> float | None:
        """Return the value of an input that is a constant of one element, else None."""
        return self.scalars.get(self.node.input[index])

    def layout(self, index: int) -> Layout | None:
        """Return the layout of an input that is an activation, else None."""
        return self.layouts[index] if index < len(self.layouts) else None

    @property
    def source_layout(self) -> Layout | None:
        """Layout of the largest input that is an activation."""
        sizes = [value.size if value else 0 for value in self.inputs]
        layouts = [
            (size, layout) for size, layout in zip(sizes, self.layouts, strict=False) if layout
        ]
        return max(layouts, key=lambda each: each[0], default=(0, None))[1]

    def fullest(self, size: int, layout: Layout | None = None) -> int:
        """Return how many of `size` elements the fullest tile has, by their layout, or evenly
        spread without one."""
        return self.per_tile(math.ceil(size * (layout.imbalance if layout else 1.0)))

    def pass_over(self, value: TensorSize, loop: InnerLoop, start: int = UNARY_START) -> float:
        """Return the cycles of a vertex over the elements of a tile: a start of each worker, then
        its loop."""
        return self.loop_cycles(self.per_tile(value.size), loop, start)

    def loop_cycles(self, elements: int, loop: InnerLoop, start: int = UNARY_START) -> float:
        """Return the cycles of a vertex over `elements` elements of a tile."""
        # The supervisor starts the workers; each takes a sixth of the elements, a vector at a time.
        # Workers take turns, so that a worker's cycle takes as many of the tile as there are
        # workers (section 4).
        loops = math.ceil(elements / self.target.workers_per_tile / loop.vector)
        return SPREAD_START + self.target.workers_per_tile * (start + loops * loop.cycles)

    def busy_workers(self, items: int) -> float | None:
        """Return the share of a tile's workers that have work if they share `items`, none of which
        is cut; None without items."""
        workers = self.target.workers_per_tile
        return items / (workers * math.ceil(items / workers)) if items else None

    def spread(
        self,
        kind: str,
        compute: float,
        exchange: float = 0,
        steps: int = 1,
        temporary: int = 0,
        local_steps: int = 0,
        layout: Layout | None = None,
    ) -> Work:
        """Return work of which every tile with an element does its share."""
        name = f"{self.node.op_type} {'float' if is_wide(self.source) else 'half'}"
        return Work(
            kind,
            compute=math.ceil(compute),
            exchange=math.ceil(exchange),
            steps=steps,
            local_steps=local_steps,
            tiles=min(self.target.num_tiles, max(1, self.result.size)),
            temporary_bytes=temporary,
            code=code_of(kind, name, steps + local_steps),
            layout=layout,
        )


def is_wide(value: TensorSize) -> bool:
    """Return whether its elements are wider than a half: they use the loops of floats."""
    return value.bytes_per_element > HALF_BYTES
