"""Profile: the cost model's estimate of a converted graph with what it describes, and the expected
error of the cost model for networks of a kind, from the validation.

`make validation` wrote `errors.json`. It left out each family of published measurements in turn
when it chose the constants, so the errors are those of networks that the model had not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import onnx
from onnxgraph import find_inputs, name_nodes
from simipu.chip.target import Target
from simipu.cost import CostOptions, Estimate, IpuCost, OperatorCost

import popef
from poprt.performance.kinds import UNVALIDATED_SHARE, describe_kind, kind_of, layer_shares
from poprt.performance.precisions import describe_arithmetic, find_precision
from poprt.pipeline import estimate

FILE = "errors.json"
_MIN_FIGURES = 3
"""Minimum number of figures of a group; fewer say nothing of the next."""


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Result of the validation for networks of a kind and a precision (or all)."""

    kind: str
    """Kind of network, as `kind_of` names it."""
    precision: str | None
    """Precision of the networks; None for all precisions."""
    families: int
    """Number of networks, each left out in turn."""
    figures: int
    """Number of published measurements that were predicted."""
    median_error: float
    """Median of |modelled / measured - 1| of the measured times."""
    within_25: float
    """Share of the measurements that are at most 25 % off, 0 to 1."""
    networks: tuple[str, ...] = ()
    """Names of the networks."""

    def describe(self) -> str:
        """Return the error as a sentence."""
        of = describe_kind(self.kind)
        words = f"{of} in {self.precision}" if self.precision else f"{of} in any precision"
        names = " and ".join(filter(None, (", ".join(self.networks[:-1]), *self.networks[-1:])))
        return (
            f"for {words} validation found a median error of {100 * self.median_error:.0f} %, "
            f"{100 * self.within_25:.0f} % within 25 % ({self.figures} published times of {names}, "
            "each network left out of the fit)"
        )


@dataclass(frozen=True, slots=True)
class CloseVerdicts:
    """Published verdicts, whether a model fits, near the limit, where some predictions are wrong.

    Outside of this range none was.
    """

    least: float
    """Smallest modelled share of a tile's memory of a wrong verdict."""
    most: float
    """Largest one."""
    verdicts: int
    """Number of published verdicts in between."""
    wrong: int
    """Number of those that were predicted wrong."""

    def describe(self) -> str:
        """Return the range and the numbers as a sentence."""
        return (
            f"close: {self.wrong} of {self.verdicts} published verdicts were predicted wrong "
            f"between {self.least:.0%} and {self.most:.0%} of a tile"
        )


@dataclass(frozen=True, slots=True)
class Validation:
    """What `make validation` found: errors of kinds of networks, and the layers they have."""

    groups: tuple[ExpectedError, ...] = ()
    layers: frozenset[str] = frozenset()
    """Kinds of layers that take a considerable part of the time of a validated network."""
    memory: CloseVerdicts | None = None

    @staticmethod
    def parse(document: Mapping[str, Any]) -> Validation:
        """Return the contents of the document that `make validation` wrote."""
        groups = tuple(
            ExpectedError(**{**group, "networks": tuple(group["networks"])})
            for group in document["groups"]
        )
        memory = CloseVerdicts(**document["memory"])
        return Validation(groups, frozenset(document["layers"]), memory)


def find_error(estimate: Estimate, precision: str) -> ExpectedError | None:
    """Return the expected error of networks of the same kind, in the same precision if enough were
    measured, else in any; None for a kind that was never validated, and for a network that spends
    much of its time in layers that no validated network has."""
    if sum(find_unvalidated(estimate).values()) >= UNVALIDATED_SHARE:
        return None
    return find_error_of_kind(kind_of(estimate), precision)


def find_error_of_kind(kind: str, precision: str) -> ExpectedError | None:
    """Return the expected error of a kind of networks; None for one that was never validated."""
    return choose_error(read_validation().groups, kind, precision)


def find_unvalidated(estimate: Estimate) -> dict[str, float]:
    """Return the share of the cycles of each kind of layer that no validated network has, 0 to 1,
    largest first."""
    validated = read_validation().layers
    shares = layer_shares(estimate)
    return {layer: share for layer, share in shares.items() if layer not in validated}


def choose_error(
    groups: Sequence[ExpectedError], kind: str, precision: str
) -> ExpectedError | None:
    """Return the nearest of the groups of a kind that have enough figures."""
    by_precision = {
        group.precision: group
        for group in groups
        if group.kind == kind and group.figures >= _MIN_FIGURES
    }
    return by_precision.get(precision) or by_precision.get(None)


@cache
def read_validation() -> Validation:
    """Return what the validation found, as packaged; nothing if there is no file."""
    file = resources.files("poprt.performance").joinpath(FILE)
    if not file.is_file():
        return Validation()
    return Validation.parse(json.loads(file.read_text(encoding="utf-8")))


_NOTHING_SECONDS = 1e-12
"""Maximum time in seconds that counts as zero: the rounding error of sums of floats."""


@dataclass(frozen=True, slots=True)
class TypeCost:
    """Cost of all nodes of one operator type together, in cycles of the busiest tile."""

    op_type: str
    count: int
    compute: int
    exchange: int
    sync: int
    macs: int

    @property
    def cycles(self) -> int:
        """Cycles of compute, exchange and sync, one after the other."""
        return self.compute + self.exchange + self.sync

    @property
    def bound(self) -> str:
        """Cause of most of the cycles; "" if there are no cycles."""
        causes = {"compute": self.compute, "exchange": self.exchange, "sync": self.sync}
        return max(causes, key=lambda cause: causes[cause]) if self.cycles else ""


@dataclass(frozen=True, slots=True)
class LatencyParts:
    """Parts of the latency of a single call, in seconds; their sum is the latency."""

    chip_seconds: float
    """Time from the first operator to the last."""
    transfer_seconds: float
    """Time of the transfers from and to the host."""
    waiting_seconds: float
    """Time of waiting for the steps of other batches, if I/O tiles overlap transfers with
    computing; else 0."""
    fixed_seconds: float
    """The host's own work for a call, whatever the call contains."""

    def name(self) -> dict[str, float]:
        """Return the seconds of each part by its name in reports, without a waiting time of 0."""
        seconds_by_part = {
            "chip": self.chip_seconds,
            "transfers": self.transfer_seconds,
            "waiting for I/O tiles": self.waiting_seconds,
            "fixed cost of a call": self.fixed_seconds,
        }
        return {
            part: seconds for part, seconds in seconds_by_part.items() if seconds or part == "chip"
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """An estimate with its model, precision and batch size.

    All values are modelled, none is measured.
    """

    model: str
    precision: str
    batch_size: int
    estimate: Estimate

    @property
    def target(self) -> Target:
        """Target chip of the estimate."""
        return self.estimate.target

    @property
    def chip(self) -> str:
        """Common name of the chip, with the name by which it was asked for."""
        return self.target.title

    @property
    def arithmetic(self) -> str:
        """Precision with the type of partial sums, as in a result line."""
        return describe_arithmetic(self.precision, self.estimate.options.partials_type)

    @property
    def expected_error(self) -> ExpectedError | None:
        """Expected error of such networks from the validation; None if there is none."""
        return find_error(self.estimate, self.precision)

    @property
    def kind(self) -> str:
        """Kind of network."""
        return kind_of(self.estimate)

    @property
    def close_verdicts(self) -> CloseVerdicts | None:
        """Published verdicts near this one, if whether it fits is uncertain; else None."""
        validated = read_validation().memory
        share = self.estimate.fullest.fullest_tile_bytes / self.target.bytes_per_tile
        return validated if validated and validated.least <= share <= validated.most else None

    @property
    def unvalidated_layers(self) -> dict[str, float]:
        """Share of the cycles of each kind of layer that no validated network has, largest
        first."""
        return find_unvalidated(self.estimate)

    @property
    def is_validated_kind(self) -> bool:
        """Whether times of such networks were published, so that their error is known if their
        layers are."""
        return find_error_of_kind(self.kind, self.precision) is not None

    @property
    def latency_parts(self) -> LatencyParts:
        """Parts of the latency of a single call."""
        result = self.estimate
        fixed = result.calibration.host_call_seconds + result.calibration.host_batch_seconds
        chip, transfers = result.compute_seconds, result.host_seconds
        waiting = result.latency_seconds - chip - transfers - fixed
        return LatencyParts(chip, transfers, waiting if waiting > _NOTHING_SECONDS else 0.0, fixed)

    @property
    def steps(self) -> list[OperatorCost]:
        """Nodes that take time, in order; views are left out."""
        return [operator for operator in self.estimate.operators if operator.cycles]

    @property
    def peak_macs_per_cycle(self) -> int:
        """Maximum multiply-adds of all tiles in a cycle.

        They depend on this precision and type of partial sums.
        """
        if self.precision == "fp32":
            return self.target.float_macs * self.target.num_tiles
        if self.precision == "fp8" and self.target.quarter_macs:
            return self.target.quarter_macs * self.target.num_tiles
        half = self.estimate.options.partials_type == "half"
        rate = self.target.half_macs_half_partials if half else self.target.half_macs_float_partials
        return rate * self.target.num_tiles

    def peak_share(self, macs: int, cycles: int) -> float:
        """Return the share of the chip's peak rate, 0 to 1, of `macs` multiply-adds in `cycles`."""
        return macs / (cycles * self.peak_macs_per_cycle) if cycles else 0.0

    def by_type(self) -> list[TypeCost]:
        """Return the costs of the operator types, most expensive first."""
        operators_by_type: dict[str, list[OperatorCost]] = {}
        for operator in self.estimate.operators:
            operators_by_type.setdefault(operator.op_type, []).append(operator)
        costs = [_sum(op_type, operators) for op_type, operators in operators_by_type.items()]
        return sorted(costs, key=lambda cost: (-cost.cycles, cost.op_type))

    def dearest(self, count: int) -> list[OperatorCost]:
        """Return the `count` nodes with the most cycles, most expensive first."""
        return sorted(self.steps, key=lambda operator: -operator.cycles)[:count]

    def as_json(self) -> dict[str, Any]:
        """Return the profile with the stable keys of `--json`."""
        result = self.estimate
        return {
            "modelled": True,
            "model": self.model,
            "target": self.target.label,
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
            "fits_closely": asdict(close) if (close := self.close_verdicts) else None,
            "by_operator": result.by_operator(),
            "by_cause": result.by_cause(),
            "by_memory": result.by_memory(),
            "io_tile_bytes": result.fullest.io_tile_bytes,
            "peak": None if result.peak is None else asdict(result.peak),
            "host_buffer_bytes": result.host_buffer_bytes,
            "fallback_operators": result.fallback_operators,
            "total_cycles": result.total_cycles,
            "interval_cycles": result.interval_cycles,
            "network_kind": self.kind,
            "unvalidated_layers": self.unvalidated_layers,
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
    """Return the profile of a graph that was converted to a precision.

    Nodes without a name are named, in place, after their results.
    """
    name_nodes(model.graph)
    batch = batch_size or find_batch_size(model)
    precision = find_precision(model, precision)
    return Profile(name, precision, batch, estimate(model, target, options, batch))


def find_batch_size(model: onnx.ModelProto) -> int:
    """Return the leading dimension that the inputs of a static graph share; 1 if there is none."""
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
