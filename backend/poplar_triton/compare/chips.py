"""Chips as systems: their figures are modelled, like those of `poplar-triton profile`.

A system is a chip or several, written like `4xbow`. Several IPUs share the work in the simplest
way that fits: each holds a copy of the model, or as few of them as possible hold one together and
work as a pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from poprt.cli import read_chip
from poprt.performance import Profile, describe_error
from simipu import CompileError, find_target

from popef._tools.arguments import whole_number
from poplar_triton.compare.systems import MODELLED, Point, System
from poplar_triton.profile.source import Estimator, ProfileSettings

DEFAULT_CHIPS = ("c600", "mk2", "bow", "4xmk2", "4xbow")
"""One IPU of each chip, and the machines with four of them."""
MAX_IPUS = 64
"""Maximum number of IPUs of a system: those of a Pod64. Each divisor may be modelled."""
_NUMBER = re.compile(r"(\d+)x(.+)", re.ASCII)
_read_number = whole_number(1, MAX_IPUS)


@dataclass(frozen=True, slots=True)
class Chips:
    """One or several IPUs of a kind."""

    name: str
    chip: str
    num_ipus: int = 1

    @property
    def title(self) -> str:
        """Common name of the chip, with the number of IPUs."""
        name = find_target(self.chip).description
        return name if self.num_ipus == 1 else f"{self.num_ipus} x {name}"


def read_list(text: str) -> tuple[Chips, ...]:
    """Return the systems of a list such as c600,4xbow, each once. This is an argparse type."""
    return tuple(dict.fromkeys(_read_chips(part.strip().lower()) for part in text.split(",")))


def _read_chips(name: str) -> Chips:
    match = _NUMBER.fullmatch(name)
    if match is None:
        return Chips(name, read_chip(name))
    return Chips(name, read_chip(match[2]), _read_number(match[1]))


@dataclass(slots=True)
class ChipModel:
    """Collects the modelled figures of the systems, batch size by batch size."""

    estimator: Estimator
    systems: Sequence[Chips]
    settings: ProfileSettings
    _points: dict[str, list[Point]] = field(default_factory=dict)
    _needs: dict[str, str] = field(default_factory=dict)
    """What the first batch size that does not fit would need, by the name of the system."""
    _missing: dict[int, str] = field(default_factory=dict)
    _note: str = ""
    batch_size: int = 0
    """Last batch size that was modelled."""

    def add(self, batch_size: int) -> bool:
        """Model all systems at a batch size. Return whether the model can have it."""
        try:
            self._add_all(batch_size)
        except CompileError as error:
            self._missing[batch_size] = str(error)
            return False
        return True

    def add_own(self) -> None:
        """Model all systems at the model's own batch size, because it can have no other. Raises
        CompileError, with the reason of the first batch size, if it has none either."""
        reason = next(iter(self._missing.values()), "")
        try:
            self._add_all(None)
        except CompileError as error:
            raise CompileError(reason or str(error)) from error
        self._missing = {}
        self._note = f"only batch {self.batch_size} is compared: {reason}"

    def _add_all(self, batch_size: int | None) -> None:
        settings = replace(self.settings, batch_size=batch_size)
        fitted = [(chips, *self._fit(chips, settings)) for chips in self.systems]
        for chips, profile, how in fitted:
            self._add(chips, profile, how)

    def list_systems(self) -> list[System]:
        """Return the systems with their figures."""
        return [self._make_system(chips) for chips in self.systems]

    def _add(self, chips: Chips, profile: Profile, how: str) -> None:
        self.batch_size = profile.batch_size
        result = profile.estimate
        if not result.fits:
            self._needs.setdefault(chips.name, _describe_need(chips, profile, how))
        self._points.setdefault(chips.name, []).append(
            Point(
                profile.batch_size,
                result.latency_seconds,
                result.samples_per_second,
                result.fits,
                how,
                error=describe_error(profile),
            )
        )

    def _fit(self, chips: Chips, settings: ProfileSettings) -> tuple[Profile, str]:
        """Return the profile with the most copies of the model that fit, or else with one."""
        for stages in _list_divisors(chips.num_ipus):
            copies = chips.num_ipus // stages
            options = {
                "num_ipus": stages,
                "enable_pipelining": stages > 1,
                "replication_factor": copies,
            }
            profile = self.estimator.profile(
                replace(settings, target=chips.chip, options={**settings.options, **options})
            )
            if profile.estimate.fits or stages == chips.num_ipus:
                break
        return profile, _describe_sharing(copies, stages)

    def _make_system(self, chips: Chips) -> System:
        points = self._points.get(chips.name, [])
        fits = any(point.fits for point in points)
        return System(
            chips.name,
            chips.title,
            MODELLED,
            points,
            self._missing,
            reason="" if fits else self._needs.get(chips.name, ""),
            notes=[self._note] if self._note else [],
            power=find_target(chips.chip).power,
            num_ipus=chips.num_ipus,
            energy_reason="unknown: no power is published for it",
        )


def _list_divisors(number: int) -> Iterable[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _describe_need(chips: Chips, profile: Profile, how: str) -> str:
    needed_bytes, tile_bytes = profile.estimate.peak_tile_bytes, profile.target.bytes_per_tile
    return (
        f"does not fit{f' as {how}' if how else ''}: batch {profile.batch_size} needs "
        f"{needed_bytes / 1024:,.0f} of {tile_bytes / 1024:,.0f} KiB of a tile; compare more IPUs, "
        "such as "
        f"{2 * chips.num_ipus}x{chips.chip}"
    )


def _describe_sharing(copies: int, stages: int) -> str:
    if copies * stages == 1:
        return ""
    together = f"a pipeline of {stages} IPUs" if stages > 1 else "a copy on each IPU"
    return together if copies == 1 or stages == 1 else f"{copies} copies, each {together}"
