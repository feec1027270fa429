"""What one run of a graph would take on the chip, in time and memory. Modelled, never measured; shapes only, no values.

Laws: cycles are integers; every cycle of every tile has exactly one cause, and the causes sum to cycles times tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import onnx

from simipu.cost import constants as c
from simipu.cost.host import batch_seconds, transfer_seconds
from simipu.cost.operators import VIEWS, Context, Work, operator_work
from simipu.cost.products import Settings
from simipu.errors import CompileError
from simipu.shapes import Value, collect_values
from simipu.target import Target


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The compiler options that time and memory depend on, by their names and defaults in PopRT."""

    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    batches_per_step: int = 1
    stream_buffering_depth: int = 1
    use_128bit_conv_unit_load: bool = False
    fused_attention: bool = False
    """PopRT's pass of that name was used: attention works on layouts that need no element by element copies."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One node of the graph: what it takes, and what is live on a tile while it runs."""

    name: str
    op_type: str
    work: Work
    sync_cycles: int
    live_bytes: int
    """Of a tile: tensors that are alive, and copies of operands."""

    @property
    def cycles(self) -> int:
        """Compute, exchange and sync of the busiest tile, one after the other."""
        return self.work.compute + self.work.exchange + self.sync_cycles


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and memory of one run: the compiled batch, once."""

    target: Target
    options: CostOptions
    operators: tuple[OperatorCost, ...]
    host_bytes: int
    """To and from the host in one run."""
    weight_bytes: int
    """Of a tile."""
    code_bytes: int
    stream_bytes: int
    """Of an I/O tile, or of every tile where there are none."""
    batch_size: int = 1
    cycles: int = field(init=False)
    """Of the chip, without host transfers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cycles", sum(operator.cycles for operator in self.operators))

    @property
    def compute_tiles(self) -> int:
        """Tiles that compute: all but the I/O tiles."""
        return self.target.num_tiles - self.options.num_io_tiles * self.target.num_ipus

    @property
    def compute_seconds(self) -> float:
        """Modelled seconds of the chip's own work."""
        return self.target.seconds(self.cycles)

    @property
    def host_seconds(self) -> float:
        """Modelled seconds of the transfers to and from the host."""
        return transfer_seconds(self.host_bytes, self.target)

    @property
    def seconds_per_batch(self) -> float:
        """Modelled seconds from batch to batch while batches are queued."""
        return batch_seconds(self.compute_seconds, self.host_seconds, overlapped=self.options.num_io_tiles > 0)

    @property
    def latency_seconds(self) -> float:
        """Modelled seconds of a call that waits for its one batch, nothing else being queued."""
        return c.HOST_CALL_SECONDS + c.HOST_BATCH_SECONDS + self.compute_seconds + self.host_seconds

    @property
    def samples_per_second(self) -> float:
        """Modelled throughput."""
        return self.batch_size / self.seconds_per_batch

    @property
    def fallback_operators(self) -> dict[str, int]:
        """How many nodes of each operator have no formula of their own, only a conservative guess."""
        counts: dict[str, int] = {}
        for operator in self.operators:
            if operator.work.fallback:
                counts[operator.op_type] = counts.get(operator.op_type, 0) + 1
        return counts

    def by_cause(self) -> dict[str, int]:
        """Cycles of all tiles together, I/O tiles included, by what they were spent on; they sum to cycles times tiles."""
        tiles = self.target.num_tiles
        compute = sum(operator.work.compute * min(operator.work.tiles, tiles) for operator in self.operators)
        exchange = sum(operator.work.exchange * min(operator.work.tiles, tiles) for operator in self.operators)
        sync = sum(operator.sync_cycles * tiles for operator in self.operators)
        host = 0
        idle = self.cycles * tiles - compute - exchange - sync - host
        return {"compute": compute, "exchange": exchange, "sync": sync, "host": host, "idle": idle}

    def by_operator(self) -> dict[str, int]:
        """Cycles by operator type, dearest first."""
        cycles: dict[str, int] = {}
        for operator in self.operators:
            cycles[operator.op_type] = cycles.get(operator.op_type, 0) + operator.cycles
        return dict(sorted(cycles.items(), key=lambda item: -item[1]))

    def tile_bytes(self) -> dict[str, int]:
        """Bytes of the fullest tile at the peak, by what they hold."""
        live = max((operator.live_bytes for operator in self.operators), default=0)
        return {"weights": self.weight_bytes, "code": self.code_bytes, "streams": self.stream_bytes, "live": live}

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile at the peak."""
        return sum(self.tile_bytes().values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within a tile's memory."""
        return self.peak_tile_bytes <= self.target.bytes_per_tile


def estimate(model: onnx.ModelProto, target: Target, options: CostOptions | None = None, batch_size: int = 1) -> Estimate:
    """What one run of `model` (every shape static) takes on `target`; `batch_size` samples are in a run.

    Raises CompileError for a node with a tensor whose shape is not known.
    """
    options = options or CostOptions()
    values = collect_values(model)
    compute = replace(target, tiles_per_ipu=target.tiles_per_ipu - options.num_io_tiles)
    operators = tuple(_iter_operators(model.graph, values, compute, options))
    weights = sum(values[tensor.name].bytes for tensor in model.graph.initializer)
    streams = [values[info.name] for info in (*model.graph.input, *model.graph.output) if info.name in values]
    host_bytes = sum(stream.bytes for stream in streams)
    io_tiles = options.num_io_tiles or compute.num_tiles
    return Estimate(
        target,
        options,
        operators,
        host_bytes=host_bytes,
        weight_bytes=math.ceil(weights / compute.num_tiles * c.IMBALANCE),
        code_bytes=_code_bytes(operators),
        stream_bytes=0 if options.num_io_tiles else math.ceil(host_bytes * options.stream_buffering_depth / io_tiles),
        batch_size=batch_size,
    )


def _iter_operators(
    graph: onnx.GraphProto, values: dict[str, Value], target: Target, options: CostOptions
) -> Iterator[OperatorCost]:
    settings = Settings(options.available_memory_proportion, options.use_128bit_conv_unit_load)
    constants = {tensor.name for tensor in graph.initializer}
    liveness = _Liveness(graph, values)
    moved: set[str] = set()
    for i, node in enumerate(graph.node):
        inputs, outputs = _values(node, node.input, values), _values(node, node.output, values)
        context = Context(
            node,
            inputs,
            [value for value in outputs if value is not None],
            target,
            settings,
            options.partials_type == "half",
            frozenset(constants.intersection(node.input)),
            frozenset(moved.intersection(node.input)),
            options.fused_attention,
        )
        work = operator_work(context)
        if node.op_type == "Transpose" or (work.kind == "view" and moved.intersection(node.input)):
            moved.update(node.output)
        if all(name in constants for name in node.input if name):
            constants.update(node.output)
        live = liveness.during(i, node)
        live_bytes = math.ceil(live / target.num_tiles * c.IMBALANCE) + work.temporary_bytes
        yield OperatorCost(node.name, node.op_type, work, work.steps * target.internal_sync_cycles, live_bytes)


class _Liveness:
    """Which tensors are alive while a node runs: from the node that makes them to the last that needs them.

    A view is its source under another name. Weights are not among them: they are always there.
    """

    def __init__(self, graph: onnx.GraphProto, values: dict[str, Value]) -> None:
        self._values = values
        self._roots = {tensor.name: "" for tensor in graph.initializer}
        self._last_use: dict[str, int] = {}
        for i, node in enumerate(graph.node):
            roots = [self._root(name) for name in node.input]
            self._last_use.update(dict.fromkeys(roots, i))
            if node.op_type in VIEWS or not any(roots):
                self._roots.update(dict.fromkeys(node.output, roots[0] if roots else ""))
        self._last_use.update({self._root(info.name): len(graph.node) for info in graph.output})
        self._live = {info.name: self._bytes(info.name) for info in graph.input if self._root(info.name)}

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)

    def _bytes(self, name: str) -> int:
        return self._values[name].bytes if name in self._values else 0

    def during(self, i: int, node: onnx.NodeProto) -> int:
        """Bytes alive while node `i` runs; to be called for each in turn."""
        self._live.update({name: self._bytes(name) for name in node.output if self._root(name) == name})
        total = sum(self._live.values())
        for name in {*map(self._root, node.input), *node.output}:
            if self._last_use.get(name, i) <= i:
                self._live.pop(name, None)
        return total


def _values(node: onnx.NodeProto, names: Iterable[str], values: dict[str, Value]) -> list[Value | None]:
    listed = list(names)
    missing = [name for name in listed if name and name not in values]
    if missing and node.op_type not in VIEWS:
        raise CompileError(
            f"node {node.name!r} ({node.op_type}): the shape of {missing[0]!r} is not known at compile time; "
            "the IPU runs static graphs only"
        )
    return [values.get(name) for name in listed]


def _code_bytes(operators: tuple[OperatorCost, ...]) -> int:
    """Equal operators share their code: it is outlined."""
    distinct = {(operator.op_type, operator.work) for operator in operators if operator.work.steps}
    return c.RESERVED_BYTES + c.CODE_BYTES + sum(work.code_bytes for _, work in distinct)
