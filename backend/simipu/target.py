"""The chips that can be simulated: one frozen description each, every number with its source.

The figures are those of section 1.1 of the project's IPU performance notes, which name the public sources:
Graphcore's data sheets and IPU Programmer's Guide (tiles, memory, workers), `tools/calc_ipu_utilization.py`
of graphcore/PopRT (clocks of M2000, Bow-2000 and C600), and the cycle estimators of graphcore/poplibs
(rates).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simipu.errors import LoadError


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is compiled for. Rates are per tile and cycle."""

    name: str
    """The spelling of `ipuVersion` in Poplar: ipu1 (Mk1 GC2), ipu2 (Mk2 GC200), ipu21 (C600); and bow, an
    ipu2 with another clock."""
    ipu_version: int
    """The integer that PopEF metadata carries: 1, 2 or 21."""
    tiles_per_ipu: int
    bytes_per_tile: int
    clock_hz: int
    half_macs_half_partials: int
    half_macs_float_partials: int
    float_macs: int
    quarter_macs: int = 0
    """0 where the chip has no 8-bit products: operands are widened first."""
    num_ipus: int = 1
    workers_per_tile: int = 6
    exchange_bytes_per_cycle: int = 4
    """poplibs: Target::getExchangeBytesPerCycle."""
    memory_element_bytes: int = 16_384
    """A bank of a tile's memory, one access each at a time (osmarks/ipu-stack for Mk2; assumed for Mk1)."""
    internal_sync_cycles: int = 200
    """Assumed, within the 100 to 600 seen; section 4 of the notes validated whole models with it."""

    @property
    def num_tiles(self) -> int:
        return self.tiles_per_ipu * self.num_ipus

    def seconds(self, cycles: int) -> float:
        """Modelled seconds that `cycles` take at this chip's clock."""
        return cycles / self.clock_hz

    def with_ipus(self, num_ipus: int) -> Target:
        """The same chip, `num_ipus` of them."""
        return replace(self, num_ipus=num_ipus)


_MK2 = Target(
    name="ipu2",
    ipu_version=2,
    tiles_per_ipu=1472,
    bytes_per_tile=638_976,
    clock_hz=1_330_000_000,
    half_macs_half_partials=64,
    half_macs_float_partials=32,
    float_macs=16,
)

TARGETS: dict[str, Target] = {
    "ipu1": Target(
        name="ipu1",
        ipu_version=1,
        tiles_per_ipu=1216,
        bytes_per_tile=262_144,
        clock_hz=1_600_000_000,
        half_macs_half_partials=32,
        half_macs_float_partials=32,
        float_macs=8,
    ),
    "ipu2": _MK2,
    "bow": replace(_MK2, name="bow", clock_hz=1_850_000_000),
    "ipu21": replace(_MK2, name="ipu21", ipu_version=21, clock_hz=1_500_000_000, quarter_macs=128),
}


MOST_IPUS = 65_536
"""A Pod of 1,024 machines has that many, and none is larger."""


def find_target(name: str, num_ipus: int = 1) -> Target:
    """The target of that name; LoadError lists the known ones, and refuses a number of chips that no machine
    has."""
    if not 1 <= num_ipus <= MOST_IPUS:
        raise LoadError(f"IPU target {name!r}: expected 1 to {MOST_IPUS} IPUs, found {num_ipus}")
    try:
        return TARGETS[name].with_ipus(num_ipus)
    except KeyError:
        raise LoadError(f"IPU target {name!r} is not known; known are {', '.join(sorted(TARGETS))}") from None
