"""A profile: the cost model's answer for a converted graph, with what it is of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import onnx
from onnxgraph import find_inputs, name_nodes
from simipu.cost import CostOptions, Estimate, IpuCost, OperatorCost
from simipu.target import Target

import popef
from poprt.pipeline import estimate
from poprt.profiling.errors import ExpectedError, find_error

_NOTHING_SECONDS = 1e-12
"""What sums of floats leave of nothing."""


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
class LatencyParts:
    """The parts of the latency of a lone call, in seconds; they add up to it."""

    chip_seconds: float
    """From the first operator to the last."""
    transfer_seconds: float
    """To and from the host."""
    waiting_seconds: float
    """For the steps of other batches, where I/O tiles overlap transfers with computing; else 0."""
    fixed_seconds: float
    """The host's own work for a call, whatever is in it."""

    def name(self) -> dict[str, float]:
        """Seconds by the words that the reports have for the parts; without waiting where there is none."""
        found = {
            "chip": self.chip_seconds,
            "transfers": self.transfer_seconds,
            "waiting for I/O tiles": self.waiting_seconds,
            "fixed cost of a call": self.fixed_seconds,
        }
        return {part: seconds for part, seconds in found.items() if seconds or part == "chip"}


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
        return self.target.title

    @property
    def partials(self) -> str:
        """The type of partial sums, as a result line has it."""
        return f"{self.estimate.options.partials_type} partials"

    @property
    def expected_error(self) -> ExpectedError | None:
        """What validation found for such networks; None where there is nothing."""
        return find_error(self.estimate, self.precision)

    @property
    def latency_parts(self) -> LatencyParts:
        """What a lone call waits for, part by part."""
        result = self.estimate
        fixed = result.calibration.host_call_seconds + result.calibration.host_batch_seconds
        chip, transfers = result.compute_seconds, result.host_seconds
        waiting = result.latency_seconds - chip - transfers - fixed
        return LatencyParts(chip, transfers, waiting if waiting > _NOTHING_SECONDS else 0.0, fixed)

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
            "chip": self.target.description,
            "partials_type": result.options.partials_type,
            "options": asdict(result.options),
            "cycles": result.cycles,
            "seconds_per_batch": result.seconds_per_batch,
            "samples_per_second": result.samples_per_second,
            "latency_seconds": result.latency_seconds,
            "latency_parts": asdict(self.latency_parts),
            "host_seconds": result.host_seconds,
            "peak_tile_bytes": result.peak_tile_bytes,
            "tile_bytes": self.target.bytes_per_tile,
            "fits": result.fits,
            "by_operator": result.by_operator(),
            "by_cause": result.by_cause(),
            "by_memory": result.by_memory(),
            "io_tile_bytes": result.fullest.io_tile_bytes,
            "peak": None if result.peak is None else asdict(result.peak),
            "host_buffer_bytes": result.host_buffer_bytes,
            "fallback_operators": result.fallback_operators,
            "total_cycles": result.total_cycles,
            "interval_cycles": result.interval_cycles,
            "expected_error": asdict(self.expected_error) if self.expected_error else None,
            "assumptions": list(result.assumptions),
            "ipus": [self._ipu_as_json(ipu) for ipu in result.ipus],
        }

    def _ipu_as_json(self, ipu: IpuCost) -> dict[str, Any]:
        fits = ipu.fullest_tile_bytes <= self.target.bytes_per_tile
        return {
            "cycles": ipu.cycles,
            "peak_tile_bytes": ipu.peak_tile_bytes,
            "fits": fits,
            "by_memory": ipu.by_memory(),
        }


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
    batch = batch_size or _input_batch(model)
    return Profile(name, precision, batch, estimate(model, target, options, batch))


def _input_batch(model: onnx.ModelProto) -> int:
    """The leading dimension that the inputs of a static graph share; 1 where there is none."""
    inputs = find_inputs(model.graph)
    shapes = [tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in inputs]
    return popef.batch_size(shapes) or 1


def _sum(op_type: str, operators: list[OperatorCost]) -> TypeCost:
    return TypeCost(
        op_type,
        len(operators),
        sum(operator.work.compute for operator in operators),
        sum(operator.work.exchange for operator in operators),
        sum(operator.sync_cycles for operator in operators),
        sum(operator.work.macs for operator in operators),
    )
