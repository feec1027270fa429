"""Variables of a run: the tensors that lie on the chip, with their bytes, lifetimes and tiles.

They are what `estimate` counts: the weights of an IPU are those of its `weight_bytes`, and the live
tensors of a node sum to its `tensor_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import onnx
from onnxgraph import TensorSize, iter_reads

from simipu.chip.placement import PlacedGraph
from simipu.cost.liveness import Lifetime
from simipu.cost.walk import OperatorCost, Path, Walk
from simipu.operators import IPU_COPY
from simipu.operators.formulas.layout import Layout
from simipu.operators.formulas.spread import VECTOR_BYTES, Linear, Packed, Spread


class Origin(str, Enum):
    """Origin of a variable."""

    WEIGHT = "weight"
    CONSTANT = "constant"
    """Constants that the compiler computes, and the weights of graphs inside nodes, together."""
    INPUT = "input"
    TENSOR = "tensor"
    HANDED_ON = "handed on"
    """What a pipeline's stage passes on while it computes the next batch."""


class TileKnowledge(str, Enum):
    """What is known of the tiles of a variable."""

    PLAN = "plan"
    """The split of a product, or a layout that follows one: exact for the plan."""
    SCALED = "scaled"
    """The elements of the fullest tile, by the plan of another tensor or of narrow groups."""
    LINEAR = "linear"
    """Nothing: elements are spread evenly, as Poplar maps a tensor linearly."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor on the chip. Steps are indices of the estimate's operators."""

    name: str
    kind: Origin
    num_bytes: int
    ipu: int
    first: int
    """First step during which it is alive; -1 if it is there before."""
    last: int
    """Last step during which it is alive; the number of steps if it stays."""
    bytes_per_element: int
    spread: Spread
    source: TileKnowledge
    is_printed: bool = False
    """True if an operator PrintTileMapping reads it, or a view of it."""


def find_spread(
    value: TensorSize, layout: Layout | None, num_tiles: int
) -> tuple[Spread, TileKnowledge]:
    """Return the elements of a tensor on each tile, and what is known of them."""
    if layout is not None and layout.spread is not None and layout.spread.elements == value.size:
        return layout.spread, TileKnowledge.PLAN
    if layout is not None and layout.imbalance > 1:
        fullest = math.ceil(value.size * layout.imbalance / num_tiles)
        return Packed(value.size, fullest), TileKnowledge.SCALED
    grain = max(1, VECTOR_BYTES // value.bytes_per_element)
    return Linear(value.size, num_tiles, grain), TileKnowledge.LINEAR


def iter_weights(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], num_ipus: int
) -> Iterator[str]:
    """Yield the weights that `nodes` read. A single IPU has all weights, used or not."""
    read = {name for node in nodes for name in iter_reads(node)}
    for tensor in graph.initializer:
        if tensor.name in read or num_ipus == 1:
            yield tensor.name


def find_variables(
    placed: PlacedGraph, walk: Walk, operators: Sequence[OperatorCost]
) -> tuple[Variable, ...]:
    """Return the variables of all IPUs, those that stay first, after the walk over the graph."""
    variables: list[Variable] = []
    for ipu in range(walk.options.num_ipus):
        variables += _iter_permanent(placed, ipu, walk, len(operators))
    return (*variables, *(_iter_tensors(placed.graph, walk, operators) if operators else ()))


def _iter_permanent(
    placed: PlacedGraph, ipu: int, walk: Walk, num_steps: int
) -> Iterator[Variable]:
    """Yield what is in an IPU's memory all the time."""
    tiles, nodes = walk.target.num_tiles, placed.nodes_on(ipu)
    printed = set(iter_printed(placed.graph))
    for name in iter_weights(placed.graph, nodes, walk.options.num_ipus):
        value = walk.values[name]
        spread, source = find_spread(value, None, tiles)
        if name in walk.stored and walk.stored[name].elements == value.size:
            spread, source = walk.stored[name], TileKnowledge.PLAN
        if value.bytes:
            is_printed = name in printed
            yield _permanent(name, Origin.WEIGHT, value, ipu, num_steps, spread, source, is_printed)
    others = TensorSize((walk.further_weight_bytes[ipu],), 1)
    if others.size:
        spread, source = find_spread(others, None, tiles)
        yield _permanent("", Origin.CONSTANT, others, ipu, num_steps, spread, source)
    for node in nodes:
        if node.op_type == IPU_COPY and walk.options.enable_pipelining:
            name = node.input[0]
            value = walk.values[name]
            spread, source = find_spread(value, walk.layouts.get(name), tiles)
            yield _permanent(name, Origin.HANDED_ON, value, ipu, num_steps, spread, source)


def iter_printed(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the tensors whose mapping the graph asks for."""
    for node in graph.node:
        if node.op_type == "PrintTileMapping":
            yield node.input[0]


def _permanent(
    name: str,
    kind: Origin,
    value: TensorSize,
    ipu: int,
    num_steps: int,
    spread: Spread,
    source: TileKnowledge,
    is_printed: bool = False,
) -> Variable:
    width = value.bytes_per_element
    return Variable(name, kind, value.bytes, ipu, -1, num_steps, width, spread, source, is_printed)


def _iter_tensors(
    graph: onnx.GraphProto, walk: Walk, operators: Sequence[OperatorCost]
) -> Iterator[Variable]:
    """Yield the inputs and results of the nodes, of those in graphs inside nodes too."""
    # A node with graphs inside it has several steps: a tensor is alive during all of them. What is
    # alive before the first node of a graph inside, or after the last one, is so during all of its
    # steps.
    printed = {walk.liveness[()].holder_of(name) for name in iter_printed(graph)}
    spans: dict[Path, tuple[int, int]] = {(): (-1, len(operators))}
    for step, operator in enumerate(operators):
        path = operator.path
        for end in range(1, len(path) + 1):
            spans[path[:end]] = spans.get(path[:end], (step, step))[0], step
    for path in [path for path in walk.liveness if path in spans]:
        lifetimes = sorted(walk.liveness[path].iter_lifetimes(), key=lambda each: each.begin)
        for each in lifetimes:
            value, begin = walk.values[each.name], (*path, each.begin)
            spread, source = find_spread(value, walk.layouts.get(each.name), walk.target.num_tiles)
            yield Variable(
                each.name,
                Origin.TENSOR if path or each.begin >= 0 else Origin.INPUT,
                each.num_bytes,
                each.ipu,
                spans.get(begin, spans[path])[0],
                _find_last(each, path, spans),
                value.bytes_per_element,
                spread,
                source,
                each.name in printed,
            )


def _find_last(each: Lifetime, path: Path, spans: Mapping[Path, tuple[int, int]]) -> int:
    """Return the last step of a tensor of the graph with that path."""
    if each.end < 0:  # its memory is taken by the first node
        return spans[path][0] - bool(path)
    return spans.get((*path, each.end), spans[path])[1]
