"""The chips that can be simulated: one frozen description each, with everything that is a fact about a chip.

The figures and their public sources are in docs/ipu-performance.md, section 1. What was fitted, or assumed
where no source says, is `simipu.operators.formulas.calibration`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simipu.errors import LoadError

HALF_BYTES = 2
"""Of an element in half. Fp8 has 1, and all else is 4 or computed as if it were: the chip has no 64 bits."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is compiled for. Rates are per tile and cycle."""

    name: str
    """The spelling of `ipuVersion` in Poplar: ipu1 (Mk1 GC2), ipu2 (Mk2 GC200), ipu21 (C600); and bow, an
    ipu2 with another clock."""
    ipu_version: int
    """The integer that PopEF metadata carries: 1, 2 or 21."""
    description: str
    """As people call it."""
    aliases: tuple[str, ...]
    """Other names by which users ask for it."""
    tiles_per_ipu: int
    bytes_per_tile: int
    clock_hz: int
    half_macs_half_partials: int
    half_macs_float_partials: int
    float_macs: int
    host_bytes_per_second: float
    """To and from the host, together (section 1.2)."""
    link_bytes_per_second: float
    """From one IPU to its neighbour, one way (section 1.3)."""
    quarter_macs: int = 0
    """0 where the chip has no 8-bit products: operands are widened first."""
    num_ipus: int = 1
    workers_per_tile: int = 6
    """Threads that take turns: a step of one worker takes as many tile cycles."""
    exchange_bytes_per_cycle: int = 4
    """poplibs: Target::getExchangeBytesPerCycle."""
    tiles_per_exchange_bus: int = 2
    """Neighbours that receive the same data at once (poplibs: Target::getTilesPerSharedExchangeBus)."""
    copy_bytes_per_cycle: int = 8
    """From one place of a tile to another (Target::getMemcpyBytesPerCycle)."""
    coefficient_bytes_per_cycle: int = 8
    """Loading weights into the AMP units; twice that with use128BitConvUnitLoad (poplibs,
    ConvOptions.hpp)."""
    channel_block_bytes: int = 32
    """Of the input channels that an AMP unit takes at a time: 16 halves, 32 quarters or 8 floats (poplibs,
    getWeightsPerConvUnit)."""
    internal_sync_cycles: int = 200
    """Assumed, within the 100 to 600 seen; whole models were validated with it (section 2)."""
    external_sync_cycles: int = 600
    """With the host or another IPU (Target::getGlobalSyncCycles of a C600; section 2)."""

    @property
    def num_tiles(self) -> int:
        """Tiles of all its IPUs."""
        return self.tiles_per_ipu * self.num_ipus

    @property
    def title(self) -> str:
        """As people call it, with Poplar's name, and how many there are."""
        name = f"{self.description} ({self.name})"
        return name if self.num_ipus == 1 else f"{self.num_ipus} x {name}"

    def seconds(self, cycles: int) -> float:
        """Modelled seconds that `cycles` take at this chip's clock."""
        return cycles / self.clock_hz

    def with_ipus(self, num_ipus: int) -> Target:
        """The same chip, `num_ipus` of them."""
        return replace(self, num_ipus=num_ipus)

    def amp_units(self, element_bytes: int, partial_bytes: int) -> int:
        """AMP units of a tile at work, each of which makes an output channel.

        Half partials keep all of them busy; of float partials only half as many can be stored in a cycle,
        64 bits wide. A unit takes 8 quarters, 4 halves or a float in a cycle.
        """
        if element_bytes < HALF_BYTES:
            return 16
        if element_bytes > HALF_BYTES:
            return self.float_macs
        macs = self.half_macs_half_partials if partial_bytes == HALF_BYTES else self.half_macs_float_partials
        return macs // 4


_MK2 = Target(
    name="ipu2",
    ipu_version=2,
    description="Mk2 GC200, M2000",
    aliases=("m2000", "mk2", "gc200"),
    tiles_per_ipu=1472,
    bytes_per_tile=638_976,
    clock_hz=1_330_000_000,
    half_macs_half_partials=64,
    half_macs_float_partials=32,
    float_macs=16,
    host_bytes_per_second=5.5e9,
    link_bytes_per_second=54.4e9,
)
_BOW = replace(_MK2, name="bow", description="Bow", aliases=(), clock_hz=1_850_000_000)

TARGETS: dict[str, Target] = {
    "ipu1": Target(
        name="ipu1",
        ipu_version=1,
        description="Mk1 GC2",
        aliases=("mk1", "gc2"),
        tiles_per_ipu=1216,
        bytes_per_tile=262_144,
        clock_hz=1_600_000_000,
        half_macs_half_partials=32,
        half_macs_float_partials=32,
        float_macs=8,
        host_bytes_per_second=5.5e9,
        link_bytes_per_second=54.4e9,
    ),
    "ipu2": _MK2,
    "bow": _BOW,
    "ipu21": replace(
        _MK2,
        name="ipu21",
        ipu_version=21,
        description="C600",
        aliases=("c600",),
        clock_hz=1_500_000_000,
        quarter_macs=128,
        host_bytes_per_second=9.4e9,
        link_bytes_per_second=27.2e9,
    ),
}
_ALIASES = {alias: name for name, target in TARGETS.items() for alias in target.aliases}
DEFAULT_CHIP = "ipu21"
"""What is meant where nobody says which: the C600, PopRT's own card, of which most published figures are."""

MOST_IPUS = 65_536
"""A Pod of 1,024 machines has that many, and none is larger."""


def find_target(name: str, num_ipus: int = 1) -> Target:
    """The target of that name, Poplar's or another that people have for it, in any case: the one place that
    knows how a chip is called.

    LoadError lists the known names, and refuses a number of chips that no machine has.
    """
    if not 1 <= num_ipus <= MOST_IPUS:
        raise LoadError(f"IPU target {name!r}: expected 1 to {MOST_IPUS} IPUs, found {num_ipus}")
    try:
        return TARGETS[_ALIASES.get(name.lower(), name.lower())].with_ipus(num_ipus)
    except KeyError:
        raise LoadError(f"IPU target {name!r} is not known; known are {known_chips()}") from None


def known_chips() -> str:
    """All names of all chips, for messages and help."""
    return ", ".join(sorted({*TARGETS, *_ALIASES}))
