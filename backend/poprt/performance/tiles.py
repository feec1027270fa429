"""Tiles of a profile: what each tile holds and does, where the cost model knows it.

The estimate describes the fullest and busiest tile. Here its totals are spread over the tiles: by
the plan of a product for its result and its weights, and for what other operators make of them; all
else evenly. Each figure says whether a plan gives it or whether it is an average.

Tiles of an IPU are numbered from 0; I/O tiles are counted as its last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from simipu.cost import (
    Estimate,
    IpuCost,
    OperatorCost,
    Origin,
    Spread,
    TileKnowledge,
    Variable,
    code_of_all,
    count_elements,
    list_levels,
)
from simipu.operators import IPU_COPY

from popef._tools.arrays import Array
from poprt.performance.model_profile import Profile

VERSION = 1
"""Version of the JSON document; it grows if a key changes its meaning."""
_MAX_HOT_SPOTS = 20
"""Maximum number of nodes that are listed as those that exchange longest."""
_STREAMS = "streams"
_NOTES = (
    "All figures are modelled. Averages spread a total evenly over the tiles.",
    "The fullest tile of the estimate, which decides whether a model fits, is the mean times an "
    "imbalance that was measured on published profiles. The map spreads the same bytes by the "
    "plans, so that its fullest tile differs.",
    "Bytes that all tiles receive are an upper bound: every tile at work is taken to receive as "
    "many as the one that receives most.",
)

Runs = list[list[int]]
"""Numbers of neighbouring tiles that have the same value, with the value."""


@dataclass(frozen=True, slots=True)
class Category:
    """Memory of one kind on each tile of an IPU."""

    name: str
    planned_bytes: int
    """Bytes of all tiles of which a plan gives the tiles; the others are averages."""
    fullest_bytes: int | None
    """Bytes on the fullest tile by the estimate; None if that is part of another category."""
    tiles: Array
    """Bytes of each tile."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tiles."""
        return int(self.tiles.sum())

    def as_json(self) -> dict[str, Any]:
        """Return the category for a program that draws it."""
        return {
            "name": self.name,
            "average": self.planned_bytes == 0,
            "planned_bytes": self.planned_bytes,
            "total_bytes": self.total_bytes,
            "fullest_bytes": self.fullest_bytes,
            "tiles": find_runs(self.tiles),
        }


@dataclass(frozen=True, slots=True)
class TileMemory:
    """Memory of the tiles of one IPU while the node runs at which it is fullest."""

    ipu: int
    peak_step: int | None
    """Index of that node among the estimate's operators; None if the IPU has none."""
    fullest_bytes: int
    """Bytes of the fullest tile by the estimate."""
    categories: tuple[Category, ...]

    @property
    def tiles(self) -> Array:
        """Bytes of each tile."""
        total: Array = np.sum([category.tiles for category in self.categories], axis=0)
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the memory for a program that draws it."""
        tiles = self.tiles
        mean, fullest = float(tiles.mean()), int(tiles.max())
        return {
            "ipu": self.ipu,
            "peak_step": self.peak_step,
            "fullest_bytes": self.fullest_bytes,
            "mapped_fullest_bytes": fullest,
            "mean_bytes": mean,
            "balance": mean / fullest if fullest else 1.0,
            "tiles": find_runs(tiles),
            "categories": [category.as_json() for category in self.categories],
        }


@dataclass(frozen=True, slots=True)
class TileVertex:
    """Vertices of one type; a node that runs several types in turn counts as a type of its own."""

    name: str
    nodes: int
    executions: int
    """Vertices that run: tiles at work times compute sets."""
    cycles: int
    """Cycles of the busiest tile."""
    bytes: int
    """Bytes of the instructions on a tile."""


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Part of the program: nodes that follow one another, or a node that has others inside it."""

    kind: str
    name: str
    first: int | None = None
    """First step, an index of the estimate's operators; None for transfers to and from the host."""
    last: int | None = None
    """Last step, which belongs to the part."""
    num_bytes: int | None = None
    """Bytes transferred; None for computing."""
    children: list[TileProgram] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the part with its children for a program that draws it."""
        sized = {} if self.num_bytes is None else {"bytes": self.num_bytes}
        return {
            "kind": self.kind,
            "name": self.name,
            "first": self.first,
            "last": self.last,
            **sized,
            "children": [child.as_json() for child in self.children],
        }


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures of the tiles of a profile; all are modelled."""

    profile: Profile

    @property
    def _estimate(self) -> Estimate:
        return self.profile.estimate

    @property
    def compute_tiles(self) -> int:
        """Tiles of an IPU that compute: all but its I/O tiles."""
        return self.profile.target.tiles_per_ipu - self._estimate.options.num_io_tiles

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Tensors on the chip, those that stay first."""
        return self._estimate.variables

    def memory(self) -> list[TileMemory]:
        """Return the memory of the tiles of each IPU, at its peak."""
        result = self._estimate
        peaks: dict[int, int] = {}
        for step, operator in enumerate(result.operators):
            peak = peaks.get(operator.ipu)
            if peak is None or operator.live_bytes > result.operators[peak].live_bytes:
                peaks[operator.ipu] = step
        return [
            TileMemory(
                ipu,
                peaks.get(ipu),
                cost.fullest_tile_bytes,
                tuple(self._iter_categories(ipu, cost, peaks.get(ipu))),
            )
            for ipu, cost in enumerate(result.ipus)
        ]

    def _iter_categories(self, ipu: int, cost: IpuCost, step: int | None) -> Iterator[Category]:
        estimated = cost.by_memory()
        mine = [variable for variable in self.variables if variable.ipu == ipu]

        def of(name: str, kinds: set[Origin]) -> Category:
            chosen = [
                variable
                for variable in mine
                if variable.kind in kinds
                and (step is None or variable.first <= step <= variable.last)
            ]
            return self._category(name, chosen, estimated[name])

        yield of("weights", {Origin.WEIGHT, Origin.CONSTANT})
        peak = None if step is None else self._estimate.operators[step]
        yield of("live", {Origin.INPUT, Origin.TENSOR})
        yield self._copies(peak)
        yield of("handed on", {Origin.HANDED_ON})
        yield from self._iter_code(ipu, cost)
        if self._estimate.options.num_io_tiles:
            tile_bytes = np.zeros(self.profile.target.tiles_per_ipu, dtype=np.int64)
            tile_bytes[self.compute_tiles :] = cost.io_tile_bytes
            yield Category(_STREAMS, 0, cost.io_tile_bytes, tile_bytes)

    def _category(self, name: str, variables: Iterable[Variable], fullest: int) -> Category:
        tiles, planned = self._spread_evenly(0), 0
        for variable in variables:
            counts = count_elements(variable.spread)
            tiles[: len(counts)] += counts * variable.bytes_per_element
            planned += variable.num_bytes if variable.source is TileKnowledge.PLAN else 0
        return Category(name, planned, fullest, tiles)

    def _spread_evenly(self, num_bytes: int) -> Array:
        tiles = np.zeros(self.profile.target.tiles_per_ipu, dtype=np.int64)
        tile_bytes, remainder = divmod(num_bytes, self.compute_tiles)
        tiles[: self.compute_tiles] = tile_bytes
        tiles[:remainder] += 1
        return tiles

    def _copies(self, peak: OperatorCost | None) -> Category:
        """Return what the node at the peak copies: on each tile at work as much as on the
        fullest."""
        tiles = self._spread_evenly(peak.copied_weight_bytes if peak else 0)
        if peak is not None:
            tiles[: min(peak.work.tiles, self.compute_tiles)] += peak.copies_bytes
        return Category("copies", 0, None, tiles)

    def _iter_code(self, ipu: int, cost: IpuCost) -> Iterator[Category]:
        # The estimate's state, exchange and control code are those of the fullest tile; the code
        # of the operators is the mean. All vertices are taken to be on every tile.
        operators = [operator for operator in self._estimate.operators if operator.ipu == ipu]
        code = code_of_all(operators, outlined=self._estimate.options.enable_outlining)
        means = {
            "vertex state": code.state,
            "internal exchange code": code.exchange,
            "control code": code.control,
        }
        estimated = cost.by_memory()
        names = ("vertex code", *means, "host exchange code", "stack")
        for name in names:
            mean = means.get(name, estimated[name])
            tiles = self._spread_evenly(mean * self.compute_tiles)
            yield Category(name, 0, estimated[name], tiles)

    def cycles(self) -> list[dict[str, Array]]:
        """Return for each IPU the cycles of each tile by cause: over all tiles and IPUs they are
        those of `Estimate.by_cause`."""
        result, target = self._estimate, self.profile.target
        computing = np.arange(target.tiles_per_ipu) < self.compute_tiles
        superstep_cycles: list[dict[str, Array]] = []
        for ipu in range(target.num_ipus):
            # Tiles at work are the first ones. An operator adds its cycles at tile 0, and takes
            # them off behind its last tile; sums from tile 0 on are the cycles of each tile.
            ends = np.zeros((3, target.tiles_per_ipu + 1), dtype=np.int64)
            for operator in result.operators:
                here = operator.ipu == ipu
                is_link = operator.op_type == IPU_COPY
                if here or (is_link and operator.sender == ipu):
                    tiles, work = operator.work.tiles, operator.work
                    cycles = np.array([work.compute if here else 0, work.exchange, 0])
                    ends[:, 0] += cycles
                    ends[:, tiles] -= cycles
                    ends[2, 0] += operator.sync_cycles
                    ends[2, self.compute_tiles] -= operator.sync_cycles
            compute, exchange, sync = np.cumsum(ends, axis=1)[:, :-1]
            at_host = ~computing if result.overlapped else np.ones_like(computing)
            host = at_host * result.host_cycles
            idle = result.total_cycles - compute - exchange - sync - host
            superstep_cycles.append(
                {
                    "compute": compute,
                    "exchange": exchange,
                    "sync": sync,
                    "host": host,
                    "idle": idle,
                }
            )
        return superstep_cycles

    def received_bytes(self, operator: OperatorCost) -> tuple[int, int]:
        """Return the bytes that the tile that receives most receives during a node, and at most all
        tiles."""
        target, work = self.profile.target, operator.work
        if operator.op_type == IPU_COPY:
            total = round(work.exchange * target.link_bytes_per_second / target.clock_hz)
            return -(-total // self.compute_tiles), total
        fullest = work.exchange * target.exchange_bytes_per_cycle
        return fullest, fullest * work.tiles

    def vertex_types(self) -> list[TileVertex]:
        """Return the types of vertices, those with the most cycles first."""
        nodes, executions, cycles = Counter[str](), Counter[str](), Counter[str]()
        sizes: dict[str, int] = {}
        for operator in self._estimate.operators:
            name, work = name_vertices(operator), operator.work
            if name:
                nodes[name] += 1
                executions[name] += work.tiles * (work.steps + work.local_steps)
                cycles[name] += work.compute
                sizes[name] = work.code.vertex_bytes
        order = sorted(nodes, key=lambda name: (-cycles[name], name))
        return [TileVertex(n, nodes[n], executions[n], cycles[n], sizes[n]) for n in order]

    def program(self) -> TileProgram:
        """Return the tree of the program of one run."""
        result = self._estimate
        sent = result.host_bytes - result.host_input_bytes
        return TileProgram(
            "Sequence",
            "main",
            0 if result.operators else None,
            len(result.operators) - 1 if result.operators else None,
            children=[
                TileProgram("StreamCopy", "host to device", num_bytes=result.host_input_bytes),
                *_make_parts(result.operators, 0, len(result.operators), 0),
                TileProgram("StreamCopy", "device to host", num_bytes=sent),
            ],
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of `--tiles`, with stable keys."""
        target = self.profile.target
        mappings, variables = self._describe_variables()
        return {
            "modelled": True,
            "version": VERSION,
            "model": self.profile.model,
            "target": target.label,
            "ipu_version": target.ipu_version,
            "batch_size": self.profile.batch_size,
            "replication_factor": self._estimate.options.replication_factor,
            "num_ipus": target.num_ipus,
            "tiles_per_ipu": target.tiles_per_ipu,
            "io_tiles": self._estimate.options.num_io_tiles,
            "tile_bytes": target.bytes_per_tile,
            "clock_hz": target.clock_hz,
            "workers_per_tile": target.workers_per_tile,
            "exchange_bytes_per_cycle": target.exchange_bytes_per_cycle,
            "notes": list(_NOTES),
            "memory": [memory.as_json() for memory in self.memory()],
            "mappings": mappings,
            "variables": variables,
            "steps": self._describe_steps(),
            "hot_spots": self._find_hot_spots(),
            "vertices": [asdict(vertex) for vertex in self.vertex_types()],
            "cycles": [
                {"ipu": ipu, **{cause: find_runs(tiles) for cause, tiles in causes.items()}}
                for ipu, causes in enumerate(self.cycles())
            ],
            "program": self.program().as_json(),
        }

    def _describe_variables(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the different mappings, and the columns of the variables."""
        kinds = [kind.value for kind in Origin]
        numbers: dict[tuple[Spread, TileKnowledge], int] = {}
        columns = {
            "kinds": kinds,
            "name": [variable.name for variable in self.variables],
            "kind": [kinds.index(variable.kind.value) for variable in self.variables],
            "bytes": [variable.num_bytes for variable in self.variables],
            "ipu": [variable.ipu for variable in self.variables],
            "mapping": [
                numbers.setdefault((variable.spread, variable.source), len(numbers))
                for variable in self.variables
            ],
            "first": [variable.first for variable in self.variables],
            "last": [variable.last for variable in self.variables],
        }
        return [_describe_mapping(*key) for key in numbers], columns

    def _describe_steps(self) -> dict[str, Any]:
        steps = self._estimate.operators
        types = list(dict.fromkeys(step.op_type for step in steps))
        vertices = list(dict.fromkeys(filter(None, map(name_vertices, steps))))
        type_of = {name: i for i, name in enumerate(types)}
        vertex_of = {name: i for i, name in enumerate(vertices)} | {"": -1}
        ends = np.cumsum([0, *(step.cycles for step in steps)]).tolist()
        received = [self.received_bytes(step) for step in steps]
        return {
            "types": types,
            "vertex_types": vertices,
            "name": [step.name for step in steps],
            "type": [type_of[step.op_type] for step in steps],
            "ipu": [step.ipu for step in steps],
            "sender": [step.sender if step.op_type == IPU_COPY else -1 for step in steps],
            "depth": [step.depth for step in steps],
            "start": ends[:-1],
            "sync": [step.sync_cycles for step in steps],
            "exchange": [step.work.exchange for step in steps],
            "compute": [step.work.compute for step in steps],
            "supersteps": [step.work.steps for step in steps],
            "local_steps": [step.work.local_steps for step in steps],
            "tiles": [step.work.tiles for step in steps],
            "vertex": [vertex_of[name_vertices(step)] for step in steps],
            "workers": [_round(step.work.busy_workers) for step in steps],
            "live_bytes": [step.tensor_bytes + step.copied_weight_bytes for step in steps],
            "fullest_live_bytes": [step.live_bytes for step in steps],
            "copies_bytes": [step.copies_bytes for step in steps],
            "received_fullest_bytes": [fullest for fullest, _ in received],
            "received_bytes": [total for _, total in received],
            "receivers": [step.work.receivers and list(step.work.receivers) for step in steps],
        }

    def _find_hot_spots(self) -> list[dict[str, Any]]:
        """Return the nodes that exchange longest, with their share of the time of all exchanges."""
        steps = self._estimate.operators
        total = sum(step.work.exchange for step in steps)
        order = sorted(range(len(steps)), key=lambda step: (-steps[step].work.exchange, step))
        return [
            {
                "step": step,
                "received_fullest_bytes": self.received_bytes(steps[step])[0],
                "share": steps[step].work.exchange / total,
                "receivers": steps[step].work.receivers and list(steps[step].work.receivers or ()),
            }
            for step in order[:_MAX_HOT_SPOTS]
            if steps[step].work.exchange
        ]


def tiles_of(profile: Profile) -> Tiles:
    """Return the figures of the tiles of a profile."""
    return Tiles(profile)


def name_vertices(operator: OperatorCost) -> str:
    """Return the names of the vertices that a node runs in turn; "" for a view."""
    return " + ".join(sorted(name for name, _ in operator.work.code.vertices))


def find_runs(values: Array) -> Runs:
    """Return the values of neighbouring tiles, equal ones together."""
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*starts[1:], len(values)]
    pairs = zip(starts, ends, strict=True)
    return [[end - start, int(values[start])] for start, end in pairs if end > start]


def _describe_mapping(spread: Spread, source: TileKnowledge) -> dict[str, Any]:
    return {
        "source": source.value,
        "average": source is not TileKnowledge.PLAN,
        "elements": spread.elements,
        "tiles": len(count_elements(spread)),
        "levels": list_levels(spread),
    }


def _round(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _make_parts(
    operators: Sequence[OperatorCost], first: int, end: int, depth: int
) -> list[TileProgram]:
    """Return the parts of the steps from `first` to before `end`, which have at least `depth`."""
    # A node with others inside it comes directly before them:
    #     step   0  1  2  3  4  5      Execute 0 to 1, Loop 2 with Execute 3 to 4 inside, Execute 5
    #     depth  0  0  0  1  1  0
    parts: list[TileProgram] = []
    start = step = first
    while step < end:
        inner = step + 1
        while inner < end and operators[inner].depth > depth:
            inner += 1
        if inner > step + 1:
            if step > start:
                parts.append(TileProgram("Execute", "", start, step - 1))
            node = operators[step]
            inside = _make_parts(operators, step + 1, inner, depth + 1)
            parts.append(TileProgram(node.op_type, node.name, step, inner - 1, children=inside))
            start = inner
        step = inner
    if end > start:
        parts.append(TileProgram("Execute", "", start, end - 1))
    return parts
