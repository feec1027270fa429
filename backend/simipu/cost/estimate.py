"""What one run of a graph would take on the chip, in time and memory. Modelled, never measured; shapes only,
no values.

Laws: cycles are integers; every cycle of every tile has exactly one cause, and the causes sum to total cycles
times tiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnxgraph import Value, graph_values, iter_reads
from onnxgraph.shapes import MOST_TRIPS

from simipu.cost import constants as c
from simipu.cost.control import Bodies, find_bodies, known_constants
from simipu.cost.host import batch_seconds, transfer_seconds
from simipu.cost.liveness import Liveness
from simipu.cost.operators import VIEWS, Context, Work, control_work, operator_work
from simipu.cost.products import Settings
from simipu.cost.sharding import COPY, copy_work, find_ipus
from simipu.errors import CompileError
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
    """PopRT's pass of that name was used: attention works on layouts that need no element by element
    copies."""
    num_ipus: int = 1
    """IPUs of a replica, over which the layers are spread."""
    virtual_graph_mode: str = "off"
    """manual: nodes are where their attribute `__ipu_number` says; else the model spreads them."""
    enable_pipelining: bool = False
    """The IPUs work on batches that follow one another; otherwise one IPU works at a time."""
    replication_factor: int = 1
    """Copies of the model that run side by side and share the host's link."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One node of the graph: what it takes, and what is live on a tile while it runs."""

    name: str
    op_type: str
    work: Work
    sync_cycles: int
    live_bytes: int
    """Of a tile: tensors that are alive, and copies of operands."""
    ipu: int = 0

    @property
    def cycles(self) -> int:
        """Compute, exchange and sync of the busiest tile, one after the other."""
        return self.work.compute + self.work.exchange + self.sync_cycles


@dataclass(frozen=True, slots=True)
class IpuCost:
    """What one of the IPUs has of a run."""

    cycles: int
    weight_bytes: int
    """Of a tile, as all that follows."""
    code_bytes: int
    stream_bytes: int
    """Of every tile where there are no I/O tiles; of a pipeline's stage also what it hands on and is handed
    meanwhile."""
    live_bytes: int
    """At the peak."""

    def by_memory(self) -> dict[str, int]:
        """Bytes of the fullest tile at the peak, by what they hold."""
        return {
            "weights": self.weight_bytes,
            "code": self.code_bytes,
            "streams": self.stream_bytes,
            "live": self.live_bytes,
        }

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile at the peak."""
        return sum(self.by_memory().values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and memory of one run of one replica: the compiled batch, once."""

    target: Target
    """With the IPUs of a replica."""
    options: CostOptions
    operators: tuple[OperatorCost, ...]
    ipus: tuple[IpuCost, ...]
    host_bytes: int
    """To and from the host in one run."""
    batch_size: int = 1
    assumptions: tuple[str, ...] = ()
    """What is not known before the run, and what is taken for it."""
    cycles: int = field(init=False)
    """Of one batch on the chip, from the first node to the last, without host transfers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cycles", sum(operator.cycles for operator in self.operators))

    @property
    def overlapped(self) -> bool:
        """Whether I/O tiles transfer while the others compute."""
        return self.options.num_io_tiles > 0

    @property
    def host_cycles(self) -> int:
        """Cycles that the transfers of all replicas to and from the host take: the link is shared."""
        return math.ceil(self.host_seconds * self.target.clock_hz)

    @property
    def total_cycles(self) -> int:
        """Cycles with the host's transfers: one after the other, or the longer of the two where they
        overlap."""
        return max(self.cycles, self.host_cycles) if self.overlapped else self.cycles + self.host_cycles

    @property
    def interval_cycles(self) -> int:
        """Cycles from batch to batch: of the slowest stage of a pipeline, else of all IPUs one after the
        other."""
        return max(ipu.cycles for ipu in self.ipus) if self.options.enable_pipelining else self.cycles

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
        return transfer_seconds(self.host_bytes * self.options.replication_factor, self.target)

    @property
    def seconds_per_batch(self) -> float:
        """Modelled seconds from batch to batch while batches are queued; every replica has one meanwhile."""
        return batch_seconds(
            self.target.seconds(self.interval_cycles), self.host_seconds, overlapped=self.overlapped
        )

    @property
    def latency_seconds(self) -> float:
        """Modelled seconds of a call that waits for its one batch, nothing else being queued."""
        return c.HOST_CALL_SECONDS + c.HOST_BATCH_SECONDS + self.compute_seconds + self.host_seconds

    @property
    def samples_per_second(self) -> float:
        """Modelled throughput of all replicas."""
        return self.batch_size * self.options.replication_factor / self.seconds_per_batch

    @property
    def fallback_operators(self) -> dict[str, int]:
        """How many nodes of each operator have no formula of their own, only a conservative guess."""
        counts: dict[str, int] = {}
        for operator in self.operators:
            if operator.work.fallback:
                counts[operator.op_type] = counts.get(operator.op_type, 0) + 1
        return counts

    def by_cause(self) -> dict[str, int]:
        """Cycles of all tiles of a replica, I/O tiles included, by what they were spent on; sum: total cycles
        times tiles.

        Transfers keep the I/O tiles busy or, where there are none, all tiles.
        """
        tiles = self.target.num_tiles
        compute = exchange = sync = 0
        for operator in self.operators:
            ipus = 2 if operator.op_type == COPY else 1
            compute += operator.work.compute * operator.work.tiles
            exchange += operator.work.exchange * operator.work.tiles * ipus
            sync += operator.sync_cycles * (self.compute_tiles // self.target.num_ipus) * ipus
        host = self.host_cycles * (tiles - self.compute_tiles if self.overlapped else tiles)
        idle = self.total_cycles * tiles - compute - exchange - sync - host
        return {"compute": compute, "exchange": exchange, "sync": sync, "host": host, "idle": idle}

    def by_operator(self) -> dict[str, int]:
        """Cycles by operator type, dearest first."""
        cycles: dict[str, int] = {}
        for operator in self.operators:
            cycles[operator.op_type] = cycles.get(operator.op_type, 0) + operator.cycles
        return dict(sorted(cycles.items(), key=lambda item: -item[1]))

    @property
    def fullest(self) -> IpuCost:
        """The IPU whose tiles are fullest."""
        return max(self.ipus, key=lambda ipu: ipu.peak_tile_bytes)

    @property
    def weight_bytes(self) -> int:
        """Of a tile of the fullest IPU."""
        return self.fullest.weight_bytes

    def by_memory(self) -> dict[str, int]:
        """Bytes of the fullest tile at the peak, by what they hold."""
        return self.fullest.by_memory()

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile at the peak."""
        return self.fullest.peak_tile_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within a tile's memory, on every IPU."""
        return self.peak_tile_bytes <= self.target.bytes_per_tile


def estimate(
    placed: onnx.ModelProto, target: Target, options: CostOptions | None = None, batch_size: int = 1
) -> Estimate:
    """What one run of a placed graph takes on `target`; `batch_size` samples are in a run.

    Its shapes are those that it declares. `options.num_ipus` counts the chips, not `target`. Raises
    CompileError for a node with a tensor whose shape is not known.
    """
    options = options or CostOptions()
    graph = placed.graph
    values = graph_values(graph)
    one = _take_ipu(target, options)
    places = find_ipus(graph, options.num_ipus)
    walk = _Walk(one, options, values)
    operators = tuple(walk.iter_operators(graph, places))
    streams = [values[info.name] for info in (*graph.input, *graph.output) if info.name in values]
    host_bytes = sum(stream.bytes for stream in streams)
    return Estimate(
        target.with_ipus(options.num_ipus),
        options,
        operators,
        tuple(_ipu_cost(ipu, graph, places, operators, walk, host_bytes) for ipu in range(options.num_ipus)),
        host_bytes=host_bytes,
        batch_size=batch_size,
        assumptions=tuple(walk.assumptions),
    )


def node_cycles(model: onnx.ModelProto, target: Target, options: CostOptions) -> list[int]:
    """Cycles of each node of a graph, with those of the graphs inside it, on one IPU."""
    graph = model.graph
    cycles = [0] * len(graph.node)
    walk = _Walk(_take_ipu(target, options), options, graph_values(graph))
    for operator in walk.iter_operators(graph, range(len(graph.node))):
        cycles[operator.ipu] += operator.cycles
    return cycles


def _take_ipu(target: Target, options: CostOptions) -> Target:
    """One IPU, without its I/O tiles."""
    return replace(target, num_ipus=1, tiles_per_ipu=target.tiles_per_ipu - options.num_io_tiles)


def _ipu_cost(
    ipu: int,
    graph: onnx.GraphProto,
    places: list[int],
    operators: tuple[OperatorCost, ...],
    walk: _Walk,
    host_bytes: int,
) -> IpuCost:
    mine = [operator for operator in operators if operator.ipu == ipu]
    nodes = [node for node, place in zip(graph.node, places, strict=True) if place == ipu]
    read = {name for node in nodes for name in iter_reads(node)}
    tiles, values, options = walk.target.num_tiles, walk.values, walk.options
    weights = sum(
        values[tensor.name].bytes
        for tensor in graph.initializer
        if tensor.name in read or options.num_ipus == 1
    )
    weights += walk.further_weight_bytes[ipu]
    streams = 0 if options.num_io_tiles else math.ceil(host_bytes * options.stream_buffering_depth / tiles)
    handed = (
        [values[node.input[0]].bytes for node in nodes if node.op_type == COPY]
        if options.enable_pipelining
        else []
    )
    return IpuCost(
        cycles=sum(operator.cycles for operator in mine),
        weight_bytes=math.ceil(weights / tiles * c.IMBALANCE),
        code_bytes=_code_bytes(mine),
        stream_bytes=(streams if ipu in (0, options.num_ipus - 1) else 0) + math.ceil(sum(handed) / tiles),
        live_bytes=max((operator.live_bytes for operator in mine), default=0),
    )


class _Walk:
    """Costs the nodes of a graph in order, and those of the graphs inside them."""

    def __init__(self, target: Target, options: CostOptions, values: dict[str, Value]) -> None:
        self.target, self.options, self.values = target, options, values
        self.assumptions: list[str] = []
        self.further_weight_bytes = Counter[int]()
        """By IPU: of the graphs inside nodes, and of what constants alone make, as far as it is more than
        they are."""
        self._settings = Settings(options.available_memory_proportion, options.use_128bit_conv_unit_load)
        self._known: dict[str, onnx.TensorProto] = {}
        self._constants: set[str] = set()
        self._grown: dict[str, int] = {}
        """Constants that nodes make of constants, and how many elements more they have than those that are
        weights."""
        self._moved: set[str] = set()

    def iter_operators(
        self, graph: onnx.GraphProto, ipus: Sequence[int], inside: str = "", around: int = 0
    ) -> Iterator[OperatorCost]:
        """The nodes of `graph`, which is inside the node of that name; `around` bytes are alive on a tile
        meanwhile."""
        self._constants.update(tensor.name for tensor in graph.initializer)
        self._known.update(known_constants(graph))
        liveness = Liveness(graph, self.values, ipus)
        for i, node in enumerate(graph.node):
            live = around + math.ceil(liveness.during(i, node) / self.target.num_tiles * c.IMBALANCE)
            bodies = find_bodies(node, self.values, self._known)
            if bodies.graphs or not self._is_constant(node):
                self._hold(iter_reads(node), ipus[i])
            if bodies.graphs:
                yield from self._iter_bodies(node, bodies, ipus[i], inside, live)
            else:
                yield self._operator(node, self._work(node), ipus[i], inside, live)

        if not inside:
            self._hold((info.name for info in graph.output), ipus[-1] if ipus else 0)

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        return all(name in self._constants for name in node.input if name)

    def _hold(self, names: Iterable[str], ipu: int) -> None:
        """What constants make is computed by the compiler and lies on the chip, if a run needs it."""
        held = {name: self._grown.pop(name, 0) for name in names}
        self.further_weight_bytes[ipu] += sum(
            size * self.values[name].bytes_per_element for name, size in held.items() if size
        )

    def _grow(self, node: onnx.NodeProto) -> None:
        """In elements: a weight that is widened where it is used lies on the chip as narrow as it is."""
        taken = [
            self.values[name].size - self._grown.get(name, 0) for name in node.input if name in self.values
        ]
        covered = sum(taken) if node.op_type == "Concat" else max(taken, default=0)
        for name in node.output:
            if name in self.values:
                self._grown[name] = max(0, self.values[name].size - covered)

    def _operator(self, node: onnx.NodeProto, work: Work, ipu: int, inside: str, live: int) -> OperatorCost:
        sync = c.EXTERNAL_SYNC_CYCLES if node.op_type == COPY else self.target.internal_sync_cycles
        return OperatorCost(
            inside + node.name, node.op_type, work, work.steps * sync, live + work.temporary_bytes, ipu
        )

    def _work(self, node: onnx.NodeProto) -> Work:
        if node.op_type == COPY:
            return copy_work(self.values[node.output[0]], self.target)
        work = operator_work(self._context(node))
        if node.op_type == "Transpose" or (work.kind == "view" and self._moved.intersection(node.input)):
            self._moved.update(node.output)
        if self._is_constant(node):
            self._constants.update(node.output)
            self._grow(node)
        return work

    def _context(self, node: onnx.NodeProto) -> Context:
        inputs, outputs = _values(node, node.input, self.values), _values(node, node.output, self.values)
        return Context(
            node,
            inputs,
            [value for value in outputs if value is not None],
            self.target,
            self._settings,
            self.options.partials_type == "half",
            frozenset(self._constants.intersection(node.input)),
            frozenset(self._moved.intersection(node.input)),
            self.options.fused_attention,
        )

    def _iter_bodies(
        self, node: onnx.NodeProto, bodies: Bodies, ipu: int, inside: str, live: int
    ) -> Iterator[OperatorCost]:
        """The node itself, which copies what goes in and comes out, and the nodes of the dearest of the
        graphs inside it."""
        if bodies.assumption:
            self.assumptions.append(f"{node.op_type} {inside + node.name!r}: {bodies.assumption}")
        found = []
        for graph in bodies.graphs:
            self.values.update(graph_values(graph))
            self.further_weight_bytes[ipu] += sum(
                self.values[tensor.name].bytes for tensor in graph.initializer
            )
            places = [ipu] * len(graph.node)
            found.append(list(self.iter_operators(graph, places, f"{inside}{node.name}/", live)))
        dearest = max(found, key=lambda operators: sum(operator.cycles for operator in operators))
        if bodies.runs > MOST_TRIPS:
            raise CompileError(
                f"node {inside + node.name!r} ({node.op_type}) runs {bodies.runs} times, and nothing ends "
                "it before"
            )
        others = [operator for operators in found if operators is not dearest for operator in operators]
        work = control_work(self._context(node), bodies.runs)
        work = replace(work, code_bytes=work.code_bytes + _code_bytes(others) - _code_bytes([]))
        yield self._operator(
            node, work, ipu, inside, max([live, *(operator.live_bytes for operator in others)])
        )
        for operator in dearest:
            yield _repeat(operator, bodies.runs)


def _repeat(operator: OperatorCost, runs: int) -> OperatorCost:
    work = operator.work
    work = replace(
        work,
        compute=work.compute * runs,
        exchange=work.exchange * runs,
        steps=work.steps * runs,
        macs=work.macs * runs,
    )
    return replace(operator, work=work, sync_cycles=operator.sync_cycles * runs)


def _values(node: onnx.NodeProto, names: Iterable[str], values: Mapping[str, Value]) -> list[Value | None]:
    listed = list(names)
    missing = [name for name in listed if name and name not in values]
    if missing and node.op_type not in VIEWS:
        raise CompileError(
            f"node {node.name!r} ({node.op_type}): the shape of {missing[0]!r} is not known at compile time; "
            "the IPU runs static graphs only"
        )
    return [values.get(name) for name in listed]


def _code_bytes(operators: Iterable[OperatorCost]) -> int:
    """Equal operators share their code: it is outlined."""
    distinct = {(operator.op_type, operator.work) for operator in operators if operator.work.steps}
    return c.RESERVED_BYTES + c.CODE_BYTES + sum(work.code_bytes for _, work in distinct)
