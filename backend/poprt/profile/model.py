"""A profile: the cost model's answer for a source at one batch size, target and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx
from onnxgraph import name_nodes
from simipu import CompileError
from simipu.cost import CostOptions, Estimate, IpuCost, OperatorCost, estimate
from simipu.target import TARGETS, Target

from poprt.profile.source import Source, input_batch

CHIPS = {"ipu1": "Mk1 GC2", "ipu2": "Mk2 GC200, M2000", "bow": "Bow", "ipu21": "C600"}
ALIASES = {"c600": "ipu21", "m2000": "ipu2", "mk2": "ipu2", "gc200": "ipu2", "mk1": "ipu1", "gc2": "ipu1"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for; None is what the source says."""

    target: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """CostOptions by name, where they differ from the source's."""


@dataclass(frozen=True, slots=True)
class TypeCost:
    """All nodes of one operator type together; cycles of the busiest tile."""

    op_type: str
    count: int
    compute: int
    exchange: int
    sync: int
    macs: int

    @property
    def cycles(self) -> int:
        """Compute, exchange and sync, one after the other."""
        return self.compute + self.exchange + self.sync

    @property
    def bound(self) -> str:
        """What takes most of the cycles; "" where there are none."""
        causes = {"compute": self.compute, "exchange": self.exchange, "sync": self.sync}
        return max(causes, key=lambda cause: causes[cause]) if self.cycles else ""


@dataclass(frozen=True, slots=True)
class Profile:
    """An estimate with what it is of. Everything in it is modelled, nothing measured."""

    model: str
    precision: str
    batch_size: int
    estimate: Estimate

    @property
    def target(self) -> Target:
        """The chip."""
        return self.estimate.target

    @property
    def chip(self) -> str:
        """The chip as people call it, with Poplar's name."""
        name = f"{CHIPS.get(self.target.name, self.target.name)} ({self.target.name})"
        return name if self.target.num_ipus == 1 else f"{self.target.num_ipus} x {name}"

    @property
    def steps(self) -> list[OperatorCost]:
        """The nodes that take any time, in order: views are left out."""
        return [operator for operator in self.estimate.operators if operator.cycles]

    @property
    def peak_macs_per_cycle(self) -> int:
        """Multiply-adds that all tiles together could do in a cycle, in this precision and type of partial
        sums."""
        if self.precision == "fp32":
            return self.target.float_macs * self.target.num_tiles
        if self.precision == "fp8" and self.target.quarter_macs:
            return self.target.quarter_macs * self.target.num_tiles
        half = self.estimate.options.partials_type == "half"
        rate = self.target.half_macs_half_partials if half else self.target.half_macs_float_partials
        return rate * self.target.num_tiles

    def peak_share(self, macs: int, cycles: int) -> float:
        """How much of the chip's peak rate `macs` multiply-adds in `cycles` are, 0 to 1."""
        return macs / (cycles * self.peak_macs_per_cycle) if cycles else 0.0

    def by_type(self) -> list[TypeCost]:
        """The operator types, dearest first."""
        found: dict[str, list[OperatorCost]] = {}
        for operator in self.estimate.operators:
            found.setdefault(operator.op_type, []).append(operator)
        costs = [_sum(op_type, operators) for op_type, operators in found.items()]
        return sorted(costs, key=lambda cost: (-cost.cycles, cost.op_type))

    def dearest(self, count: int) -> list[OperatorCost]:
        """The `count` nodes with the most cycles, dearest first."""
        return sorted(self.steps, key=lambda operator: -operator.cycles)[:count]

    def as_json(self) -> dict[str, Any]:
        """The stable keys of `--json`."""
        result = self.estimate
        return {
            "modelled": True,
            "model": self.model,
            "target": self.target.name,
            "batch_size": self.batch_size,
            "precision": self.precision,
            "options": asdict(result.options),
            "cycles": result.cycles,
            "seconds_per_batch": result.seconds_per_batch,
            "samples_per_second": result.samples_per_second,
            "latency_seconds": result.latency_seconds,
            "host_seconds": result.host_seconds,
            "peak_tile_bytes": result.peak_tile_bytes,
            "tile_bytes": self.target.bytes_per_tile,
            "fits": result.fits,
            "by_operator": result.by_operator(),
            "by_cause": result.by_cause(),
            "by_memory": result.by_memory(),
            "fallback_operators": result.fallback_operators,
            "total_cycles": result.total_cycles,
            "interval_cycles": result.interval_cycles,
            "assumptions": list(result.assumptions),
            "ipus": [self._ipu_as_json(ipu) for ipu in result.ipus],
        }

    def _ipu_as_json(self, ipu: IpuCost) -> dict[str, Any]:
        fits = ipu.peak_tile_bytes <= self.target.bytes_per_tile
        return {
            "cycles": ipu.cycles,
            "peak_tile_bytes": ipu.peak_tile_bytes,
            "fits": fits,
            "by_memory": ipu.by_memory(),
        }


class Profiler:
    """Profiles one source under many settings; equal graphs are converted once."""

    def __init__(self, source: Source, on_step: Callable[[str], None] = lambda step: None) -> None:
        self.source = source
        self._on_step = on_step
        self._converted: tuple[tuple[int | None, str], onnx.ModelProto] | None = None

    def profile(self, settings: Settings) -> Profile:
        """What the source takes under `settings`. Raises CompileError naming what cannot be compiled, and
        why."""
        target = TARGETS[settings.target or self.source.target]
        options = replace(self.source.options, **settings.options)
        if not 0 <= options.num_io_tiles < target.tiles_per_ipu:
            raise CompileError(
                f"num_io_tiles must be at least 0 and below the {target.tiles_per_ipu} tiles of "
                f"{target.name}, found {options.num_io_tiles}"
            )
        precision = settings.precision or self.source.precision
        model = self._convert(settings.batch_size, precision)
        self._on_step("plan operators")
        return make_profile(self.source.name, precision, model, target, options, settings.batch_size)

    def _convert(self, batch_size: int | None, precision: str) -> onnx.ModelProto:
        key = (batch_size, precision)
        if self._converted is None or self._converted[0] != key:
            self._converted = key, self.source.convert(batch_size, precision, self._on_step)
        return self._converted[1]


def profile(source: Source, settings: Settings | None = None) -> Profile:
    """What one batch of `source` takes. Raises CompileError naming what cannot be compiled, and why."""
    return Profiler(source).profile(settings or Settings())


def make_profile(
    name: str,
    precision: str,
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions,
    batch_size: int | None = None,
) -> Profile:
    """The profile of a converted graph, whose unnamed nodes are named, in place, by what they make."""
    name_nodes(model.graph)
    batch = batch_size or input_batch(model)
    return Profile(name, precision, batch, estimate(model, target, options, batch))


def _sum(op_type: str, operators: list[OperatorCost]) -> TypeCost:
    return TypeCost(
        op_type,
        len(operators),
        sum(operator.work.compute for operator in operators),
        sum(operator.work.exchange for operator in operators),
        sum(operator.sync_cycles for operator in operators),
        sum(operator.work.macs for operator in operators),
    )
