"""Estimated time and memory of one run of a graph on the chip, with the host's side of it. The
estimate is modelled, never measured, from shapes only, not from values.

Invariants: cycles are integers. Every cycle of every tile has exactly one cause, and the causes sum
to total cycles times tiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import onnx
from onnxgraph import TensorSize, find_inputs, graph_values

from simipu.chip.placement import PlacedGraph, find_stages
from simipu.chip.target import Target
from simipu.cost.variables import Variable, find_variables, iter_weights
from simipu.cost.walk import CostOptions, OperatorCost, Walk, code_of_all
from simipu.host_link import batch_seconds, call_seconds, transfer_seconds
from simipu.operators import IPU_COPY
from simipu.operators.formulas.calibration import CALIBRATION, Calibration
from simipu.operators.formulas.code import NO_CODE, Code

STACK_BYTES = 1_760
HOST_EXCHANGE_BYTES = 289
"""Stack and host exchange code of a tile. Together they are what a dense layer's profile has
besides its own categories, 2,049 bytes (ipu_tensorflow_addons, Mk2). The second is the value from
an addition's profile (the TensorFlow documentation's report, Mk1; section 8)."""


@dataclass(frozen=True, slots=True)
class IpuCost:
    """Share of one IPU in a run: cycles, and bytes of the fullest of the tiles that compute."""

    cycles: int
    weight_bytes: int
    """Bytes that are always in memory: weights, constants, and a second copy of a layer's weights
    if layers share code."""
    code: Code
    live_bytes: int
    """Bytes at the peak: tensors, and the operands that the operator there copies."""
    handed_bytes: int = 0
    """Bytes that a pipeline's stage passes on and receives meanwhile."""
    io_tile_bytes: int = 0
    """Bytes of an I/O tile, if there are any: the next inputs and the last outputs, beside its
    code."""

    def by_memory(self) -> dict[str, int]:
        """Return the bytes of the fullest tile at the peak, by category."""
        return {
            "weights": self.weight_bytes,
            "live": self.live_bytes,
            "handed on": self.handed_bytes,
            "vertex code": self.code.vertex_bytes,
            "vertex state": self.code.state,
            "internal exchange code": self.code.exchange,
            "control code": self.code.control,
            "host exchange code": HOST_EXCHANGE_BYTES,
            "stack": STACK_BYTES,
        }

    @property
    def code_bytes(self) -> int:
        """Bytes of code: what every program has, and what its operators add."""
        own = self.code.vertex_bytes + self.code.state + self.code.exchange + self.code.control
        return own + HOST_EXCHANGE_BYTES + STACK_BYTES

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile that computes, at the peak."""
        return sum(self.by_memory().values())

    @property
    def fullest_tile_bytes(self) -> int:
        """Bytes of the fullest tile at the peak, or of an I/O tile if that holds more."""
        return max(self.peak_tile_bytes, self.io_tile_bytes)


@dataclass(frozen=True, slots=True)
class Peak:
    """Node at which most memory is in use, and its contents. Bytes are per tile."""

    ipu: int
    node: str
    op_type: str
    temporary_bytes: int
    """Bytes that the node copies for itself."""
    tensors: tuple[tuple[str, int], ...]
    """Largest tensors alive at the node, largest first, without the weights."""


_MAX_TENSORS = 10
"""Maximum number of tensors that a peak lists."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and memory of one run of one replica: the compiled batch, once."""

    target: Target
    """Chip, with the IPUs of one replica."""
    options: CostOptions
    operators: tuple[OperatorCost, ...]
    ipus: tuple[IpuCost, ...]
    host_bytes: int
    """Bytes transferred to and from the host in one run."""
    batch_size: int = 1
    assumptions: tuple[str, ...] = ()
    """Assumptions about what is not known before the run."""
    calibration: Calibration = CALIBRATION
    stage_cycles: tuple[int, ...] = ()
    """Cycles of each stage of a pipeline, if nodes name their stages; else each IPU is a stage."""
    peak: Peak | None = None
    """Memory peak of the fullest IPU; None if no node has a cost."""
    list_variables: Callable[[], tuple[Variable, ...]] = field(
        default=tuple, repr=False, compare=False
    )
    """Function that lists the tensors on the chip, once; `variables` calls it."""
    host_input_bytes: int = 0
    """Bytes transferred from the host in one run."""
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the graph's outputs."""
    cycles: int = field(init=False)
    """Cycles of one batch on the chip, from the first node to the last, without host transfers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cycles", sum(operator.cycles for operator in self.operators))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Tensors on the chip, with their lifetimes and tiles. They are listed when they are first
        asked for, from the graph as it is then."""
        return self.list_variables()

    @property
    def overlapped(self) -> bool:
        """Return whether I/O tiles transfer while the others compute."""
        return self.options.num_io_tiles > 0

    @property
    def host_cycles(self) -> int:
        """Cycles of all replicas' transfers to and from the host: they share the link."""
        return math.ceil(self.host_seconds * self.target.clock_hz)

    @property
    def total_cycles(self) -> int:
        """Cycles including the host's transfers: the sum of both, or the longer of the two if they
        overlap."""
        cycles = self.cycles, self.host_cycles
        return max(cycles) if self.overlapped else sum(cycles)

    @property
    def interval_cycles(self) -> int:
        """Cycles from batch to batch. With pipelining these are the cycles of the slowest stage, or
        of the busiest IPU if it has several stages; else of all IPUs one after the other."""
        if not self.options.enable_pipelining:
            return self.cycles
        return max(*(ipu.cycles for ipu in self.ipus), *self.stage_cycles, 0)

    @property
    def num_stages(self) -> int:
        """Number of stages of a pipeline."""
        return len(self.stage_cycles) or self.target.num_ipus

    @property
    def compute_tiles(self) -> int:
        """Tiles that compute: all but the I/O tiles."""
        return self.target.num_tiles - self.options.num_io_tiles * self.target.num_ipus

    @property
    def compute_seconds(self) -> float:
        """Modelled seconds of the chip's own work."""
        return self.target.seconds(self.cycles)

    @property
    def host_buffer_bytes(self) -> int:
        """Bytes of host memory for the streams' buffers; the chip has none."""
        buffers = self.options.stream_buffering_depth * self.options.replication_factor
        return self.host_bytes * buffers

    @property
    def host_seconds(self) -> float:
        """Modelled seconds of the transfers to and from the host."""
        return transfer_seconds(self.host_bytes * self.options.replication_factor, self.target)

    @property
    def seconds_per_batch(self) -> float:
        """Modelled seconds from batch to batch while batches are queued; every replica computes one
        batch in that time."""
        return batch_seconds(
            self.target.seconds(self.interval_cycles),
            self.host_seconds,
            overlapped=self.overlapped,
            batches_per_step=self.options.batches_per_step,
            calibration=self.calibration,
        )

    @property
    def latency_seconds(self) -> float:
        """Modelled seconds of a call that waits for its one batch while no other batch is
        queued."""
        return call_seconds(
            self.compute_seconds,
            self.target.seconds(self.interval_cycles),
            self.host_seconds,
            overlapped=self.overlapped,
            calibration=self.calibration,
        )

    @property
    def samples_per_second(self) -> float:
        """Modelled throughput of all replicas."""
        return self.batch_size * self.options.replication_factor / self.seconds_per_batch

    @property
    def fallback_operators(self) -> dict[str, int]:
        """Number of nodes of each operator that has no formula of its own, only a conservative
        guess."""
        guessed = (operator.op_type for operator in self.operators if operator.work.fallback)
        return dict(Counter(guessed))

    def by_cause(self) -> dict[str, int]:
        """Return the cycles of all tiles of a replica, I/O tiles included, by cause. They sum to
        total cycles times tiles.

        Transfers keep the I/O tiles busy or, if there are none, all tiles.
        """
        # An operator's busiest tile takes compute + exchange + sync cycles. The tiles at work
        # count as busy for its compute and exchange, the tiles of its IPU that compute for its
        # sync; a copy between IPUs keeps two IPUs busy. Whatever remains of total cycles times
        # tiles is idle, so that the causes sum to it.
        tiles = self.target.num_tiles
        compute = exchange = sync = 0
        for operator in self.operators:
            ipus = 2 if operator.op_type == IPU_COPY else 1
            compute += operator.work.compute * operator.work.tiles
            exchange += operator.work.exchange * operator.work.tiles * ipus
            sync += operator.sync_cycles * (self.compute_tiles // self.target.num_ipus) * ipus
        host = self.host_cycles * (tiles - self.compute_tiles if self.overlapped else tiles)
        idle = self.total_cycles * tiles - compute - exchange - sync - host
        return {"compute": compute, "exchange": exchange, "sync": sync, "host": host, "idle": idle}

    def by_operator(self) -> dict[str, int]:
        """Return cycles by operator type, most expensive first."""
        cycles = Counter[str]()
        for operator in self.operators:
            cycles[operator.op_type] += operator.cycles
        return dict(cycles.most_common())

    @property
    def fullest(self) -> IpuCost:
        """The IPU whose tiles are fullest."""
        return max(self.ipus, key=lambda ipu: ipu.fullest_tile_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on a tile of the fullest IPU."""
        return self.fullest.weight_bytes

    def by_memory(self) -> dict[str, int]:
        """Return the bytes of the fullest tile at the peak, by category."""
        return self.fullest.by_memory()

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile that computes, at the peak."""
        return self.fullest.peak_tile_bytes

    @property
    def fits(self) -> bool:
        """Return whether every tile of every IPU, I/O tiles included, has enough memory."""
        return self.fullest.fullest_tile_bytes <= self.target.bytes_per_tile


def estimate(
    placed: onnx.ModelProto,
    target: Target,
    options: CostOptions | None = None,
    batch_size: int = 1,
    calibration: Calibration = CALIBRATION,
) -> Estimate:
    """Estimate one run of a placed graph on `target`; a run has `batch_size` samples.

    Shapes are those that the graph declares. `options.num_ipus` sets the number of chips, not
    `target`. Raises CompileError for a node with a tensor of unknown shape.
    """
    options = options or CostOptions()
    graph = placed.graph
    values, places = graph_values(graph), PlacedGraph.read(graph, options.num_ipus)
    walk = Walk(_take_ipu(target, options), options, values, calibration)
    stages = find_stages(graph) if options.enable_pipelining else []
    by_stage = dict.fromkeys(sorted(set(stages)), 0)
    operators = []
    fullest: dict[int, tuple[OperatorCost, int]] = {}
    """Node with the most live bytes on each IPU, with the node's position."""
    for operator in walk.iter_operators(places):
        operators.append(operator)
        if operator.ipu not in fullest or operator.live_bytes > fullest[operator.ipu][0].live_bytes:
            fullest[operator.ipu] = (operator, walk.position)
        if stages:
            by_stage[stages[walk.position]] += operator.cycles
    streams = _find_streams(places, values)
    costs = tuple(
        _ipu_cost(ipu, places, operators, walk, streams) for ipu in range(options.num_ipus)
    )
    fullest_ipu = max(range(options.num_ipus), key=lambda ipu: costs[ipu].peak_tile_bytes)
    return Estimate(
        target.with_ipus(options.num_ipus),
        options,
        tuple(operators),
        costs,
        host_bytes=sum(streams.values()),
        batch_size=batch_size,
        assumptions=tuple(walk.assumptions),
        calibration=calibration,
        stage_cycles=tuple(by_stage.values()),
        peak=_find_peak(*fullest[fullest_ipu], walk) if fullest_ipu in fullest else None,
        list_variables=cache(partial(find_variables, places, walk, operators)),
        host_input_bytes=sum(
            values[info.name].bytes for info in find_inputs(graph) if info.name in values
        ),
        output_shapes=tuple(
            values[info.name].shape for info in graph.output if info.name in values
        ),
    )


def node_cycles(
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions,
    calibration: Calibration = CALIBRATION,
) -> list[int]:
    """Return the cycles of each node of a graph with declared shapes, including the graphs inside
    the node. Each node is costed as if it had an IPU of its own. The result is used to balance a
    pipeline's stages."""
    graph = model.graph
    cycles = [0] * len(graph.node)
    walk = Walk(_take_ipu(target, options), options, graph_values(graph), calibration)
    for operator in walk.iter_operators(PlacedGraph.at(graph, range(len(graph.node)))):
        cycles[operator.ipu] += operator.cycles
    return cycles


def _take_ipu(target: Target, options: CostOptions) -> Target:
    """Return the target of one IPU without its I/O tiles."""
    return replace(target, num_ipus=1, tiles_per_ipu=target.tiles_per_ipu - options.num_io_tiles)


def _ipu_cost(
    ipu: int,
    placed: PlacedGraph,
    operators: Sequence[OperatorCost],
    walk: Walk,
    streams: Mapping[int, int],
) -> IpuCost:
    mine = [operator for operator in operators if operator.ipu == ipu]
    nodes, options = placed.nodes_on(ipu), walk.options
    weights = iter_weights(placed.graph, nodes, options.num_ipus)
    weight_bytes = sum(walk.values[name].bytes for name in weights)
    # A pipeline's stage passes on one batch while it computes the next.
    handed = [walk.values[node.input[0]].bytes for node in nodes if node.op_type == IPU_COPY]
    code = code_of_all(mine, outlined=options.enable_outlining)
    return IpuCost(
        cycles=sum(operator.cycles for operator in mine),
        weight_bytes=walk.per_tile(weight_bytes + walk.further_weight_bytes[ipu]),
        code=code.of_fullest(walk.calibration.imbalance),
        live_bytes=max((operator.live_bytes for operator in mine), default=0),
        handed_bytes=walk.per_tile(sum(handed)) if options.enable_pipelining else 0,
        io_tile_bytes=_io_tile_bytes(streams[ipu], options),
    )


def _find_streams(placed: PlacedGraph, values: Mapping[str, TensorSize]) -> Counter[int]:
    """Return the bytes to and from the host in one run, by the IPU that reads or computes them."""
    graph, places = placed.graph, dict(placed.input_ipus)
    for node, ipu in zip(graph.node, placed.ipus, strict=True):
        places.update(dict.fromkeys(node.output, ipu))
    num_bytes = Counter[int]()
    for info in (*find_inputs(graph), *graph.output):
        if info.name in values:
            num_bytes[places.get(info.name, 0)] += values[info.name].bytes
    return num_bytes


def _io_tile_bytes(num_bytes: int, options: CostOptions) -> int:
    """Return the bytes that an I/O tile holds if its IPU transfers `num_bytes` to and from the
    host. While a batch is computed, the tile holds the next batch's inputs and the last one's
    outputs (PopART's OverlapInnerLoop), in pieces for the tiles that compute."""
    if not options.num_io_tiles:
        return 0
    tile_bytes = math.ceil(num_bytes / options.num_io_tiles)
    # Such a tile has no vertices: only messages for each piece, the host's exchange and a stack.
    return tile_bytes + NO_CODE.rearranging(tile_bytes).exchange + HOST_EXCHANGE_BYTES + STACK_BYTES


def _find_peak(operator: OperatorCost, position: int, walk: Walk) -> Peak:
    alive = sorted(
        walk.liveness[()].iter_alive(position, operator.ipu), key=lambda tensor: -tensor[1]
    )
    return Peak(
        operator.ipu,
        operator.name,
        operator.op_type,
        operator.work.temporary_bytes,
        tuple((name, walk.per_tile(size)) for name, size in alive[:_MAX_TENSORS]),
    )
