"""Systems of a comparison with their figures by batch size, and what a buyer derives from these:
the best batch, energy and cost per sample.

A chip's figures are modelled, this machine's are measured; each system says which. Nothing here
computes figures: `chips` models them, `machine` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from simipu.chip.target import BoardPower

MODELLED, MEASURED = "modelled", "measured"
_SECONDS_PER_HOUR = 3600
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured latencies of the calls of one batch size, in seconds."""

    calls: int
    p10_seconds: float
    """A tenth of the calls was at least as fast."""
    p90_seconds: float
    """Nine tenths of the calls were at least as fast."""


@dataclass(frozen=True, slots=True)
class Point:
    """Figures of a system at one batch size."""

    batch_size: int
    latency_seconds: float
    """Latency of a call; the median if it is measured."""
    samples_per_second: float
    """Throughput: of a chip while batches are queued, of this machine one call after another."""
    fits: bool = True
    how: str = ""
    """How a system of several IPUs is used."""
    spread: Spread | None = None
    """None for modelled figures."""
    joules_per_sample: float | None = None
    """Measured energy; None if it is unknown."""
    error: str = ""
    """Expected error of modelled figures, as a sentence."""

    @property
    def bounding_seconds(self) -> float:
        """Latency that a latency limit must exceed: that of nine of ten calls if measured."""
        return self.spread.p90_seconds if self.spread else self.latency_seconds


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a sample; None where it is unknown."""

    least: float | None
    """Modelled with the power of an idle board."""
    typical: float | None
    """Modelled with the power of typical workloads, or measured."""
    most: float | None
    """Modelled with the board's maximum power."""
    how: str
    """Modelled or measured, from what; or the reason why nothing is known."""


@dataclass(frozen=True, slots=True)
class System:
    """A system with its points, or with the reason why it has none."""

    name: str
    """Short name, by which a price is given."""
    title: str
    kind: str
    """`MODELLED` or `MEASURED`."""
    points: Sequence[Point] = ()
    missing: Mapping[int, str] = field(default_factory=dict)
    """Why a batch size has no point."""
    reason: str = ""
    """Why there are no figures at all; "" if there are some."""
    notes: Sequence[str] = ()
    """Conditions of the figures, such as the number of threads."""
    power: BoardPower | None = None
    num_ipus: int = 0
    energy_reason: str = ""
    """Why the energy is unknown, if nothing was measured and no power is published."""

    @property
    def usable(self) -> list[Point]:
        """Points whose model fits, by batch size."""
        return [point for point in self.points if point.fits]

    @property
    def single(self) -> Point | None:
        """Point of batch size 1."""
        return next((point for point in self.usable if point.batch_size == 1), None)

    def find_best(self, limit_seconds: float | None = None) -> Point | None:
        """Return the point of the highest throughput, among those whose latency is at most the
        limit; None if there is none. Of equal ones it is the smaller batch."""
        allowed = [
            point
            for point in self.usable
            if limit_seconds is None or point.bounding_seconds <= limit_seconds
        ]
        return max(allowed, key=lambda point: point.samples_per_second, default=None)

    def find_energy(self, point: Point) -> Energy:
        """Return the energy of a sample at a point.

        A board's energy is its published power over the throughput, whatever the model does on it:
        the true one lies between that of an idle board and that of its maximum power.
        """
        if point.joules_per_sample is not None:
            return Energy(
                None, point.joules_per_sample, None, "measured by RAPL: processor package"
            )
        if self.power is None:
            return Energy(None, None, None, self.energy_reason)
        watts = self.power.idle_watts, self.power.typical_watts, self.power.max_watts
        least, typical, most = (
            None if watt is None else self.num_ipus * watt / point.samples_per_second
            for watt in watts
        )
        return Energy(least, typical, most, f"modelled from {_describe_power(self.power)}")


def _describe_power(power: BoardPower) -> str:
    watts = (power.idle_watts, power.typical_watts, power.max_watts)
    idle, typical, most = map(describe_watts, watts)
    return (
        f"the published power of an IPU's share of the {power.board}: idle {idle}, typical "
        f"{typical}, maximum {most} ({', '.join(power.sources)})"
    )


def describe_watts(watts: float | None) -> str:
    """Return published watts, or that there are none."""
    return "not published" if watts is None else f"{watts:g} W"


def cost_per_million(point: Point, price_per_hour: float) -> float:
    """Return what a million samples cost at a point, in the currency of the price."""
    return price_per_hour / _SECONDS_PER_HOUR / point.samples_per_second * _MILLION


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """All systems with the user's wishes."""

    model: str
    precision: str
    """Precision of the chips' figures; this machine runs the model's own types."""
    systems: Sequence[System]
    limit_seconds: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of an hour by the name of the system, in one currency."""

    def choose(self, system: System) -> Point | None:
        """Return the point at which a buyer would run a system: the best within the limit."""
        return system.find_best(self.limit_seconds)

    def find_cost(self, system: System) -> float | None:
        """Return what a million samples cost on a system; None without a price or a point."""
        point, price = self.choose(system), self.prices.get(system.name)
        return None if point is None or price is None else cost_per_million(point, price)

    def as_json(self) -> dict[str, Any]:
        """Return the comparison with the stable keys of `--json`."""
        return {
            "model": self.model,
            "precision": self.precision,
            "latency_limit_seconds": self.limit_seconds,
            "systems": [self._system_as_json(system) for system in self.systems],
        }

    def _system_as_json(self, system: System) -> dict[str, Any]:
        chosen = self.choose(system)
        best = system.find_best()
        return {
            "name": system.name,
            "title": system.title,
            "figures": system.kind,
            "reason": system.reason or None,
            "notes": list(system.notes),
            "points": [asdict(point) for point in system.points],
            "missing": {str(size): why for size, why in system.missing.items()},
            "latency_batch_1_seconds": system.single and system.single.latency_seconds,
            "best_batch_size": best and best.batch_size,
            "chosen_batch_size": chosen and chosen.batch_size,
            "energy_per_sample_joules": chosen and asdict(system.find_energy(chosen)),
            "power": system.power and asdict(system.power),
            "price_per_hour": self.prices.get(system.name),
            "cost_per_million_samples": self.find_cost(system),
        }
