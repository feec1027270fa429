"""Chips that can be simulated: one frozen description each, with everything that is a fact about a
chip.

The figures and their public sources are in docs/ipu-performance.md, section 1. Values that were
fitted, or assumed because no source gives them, are in `simipu.operators.formulas.calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from popef._tools.text import did_you_mean
from simipu.errors import LoadError

HALF_BYTES, FLOAT_BYTES = 2, 4
"""Bytes of an element in half and in float. Fp8 has 1; everything else has 4 or is computed as if
it had: the chip has no 64-bit types."""


@dataclass(frozen=True, slots=True)
class BoardPower:
    """Published electrical power of one IPU's share of its board, in watts (section 1.4 of
    docs/ipu-performance.md); None where no source gives a figure."""

    board: str
    """Board or machine that the figures are of, and the number of IPUs that share it."""
    idle_watts: float | None
    """Power of a board that computes nothing; a lower bound."""
    typical_watts: float | None
    """Power while typical workloads run."""
    max_watts: float | None
    """Power that the board or its cooling is designed for; an upper bound."""
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Chip for which a program is compiled. Rates are per tile and cycle."""

    name: str
    """Name of the chip as `ipuVersion` in Poplar spells it: ipu1 (Mk1 GC2), ipu2 (Mk2 GC200), ipu21
    (C600); and bow, an ipu2 with another clock."""
    ipu_version: int
    """Integer that PopEF metadata carries: 1, 2 or 21."""
    description: str
    """Common name of the chip."""
    aliases: tuple[str, ...]
    """Other names that users may give."""
    tiles_per_ipu: int
    bytes_per_tile: int
    clock_hz: int
    half_macs_half_partials: int
    half_macs_float_partials: int
    float_macs: int
    host_bytes_per_second: float
    """Bandwidth to and from the host, both directions together (section 1.2)."""
    link_bytes_per_second: float
    """Bandwidth from one IPU to its neighbour, in one direction (section 1.3)."""
    quarter_macs: int = 0
    """Multiply-adds of 8-bit products; 0 if the chip has none, then operands are widened first."""
    num_ipus: int = 1
    workers_per_tile: int = 6
    """Threads of a tile that take turns: a step of one worker takes as many tile cycles as there
    are workers."""
    exchange_bytes_per_cycle: int = 4
    """Exchange bandwidth of a tile (poplibs, Target::getExchangeBytesPerCycle)."""
    tiles_per_exchange_bus: int = 2
    """Number of neighbours that receive the same data at once (poplibs,
    Target::getTilesPerSharedExchangeBus)."""
    copy_bytes_per_cycle: int = 8
    """Bandwidth of a copy within a tile (Target::getMemcpyBytesPerCycle)."""
    coefficient_bytes_per_cycle: int = 8
    """Bandwidth of loading weights into the AMP units; twice that with use128BitConvUnitLoad
    (poplibs, ConvOptions.hpp)."""
    channel_block_bytes: int = 32
    """Bytes of the input channels that an AMP unit takes at a time: 16 halves, 32 quarters or 8
    floats (poplibs, getWeightsPerConvUnit)."""
    internal_sync_cycles: int = 200
    """Cycles of a sync within an IPU. Assumed, within the published range of 100 to 600; whole
    models were validated with it (section 2)."""
    external_sync_cycles: int = 600
    """Cycles of a sync with the host or another IPU (Target::getGlobalSyncCycles of a C600; section
    2)."""
    power: BoardPower | None = None
    """Published power of one IPU; None if it is no board."""
    is_ipu_model: bool = False
    """True for Graphcore's simulator of a chip, the IPU Model, whose cycles are not the chip's."""
    given_name: str = field(default="", compare=False)
    """Name by which the user asked for the chip; "" for none."""

    @property
    def num_tiles(self) -> int:
        """Number of tiles of all its IPUs."""
        return self.tiles_per_ipu * self.num_ipus

    @property
    def label(self) -> str:
        """Name of the chip for messages and results: the one that the user gave, else Poplar's."""
        return self.given_name or self.name

    @property
    def title(self) -> str:
        """Common name with the label and, if there are several, the number of IPUs."""
        name = f"{self.description} ({self.label})"
        return name if self.num_ipus == 1 else f"{self.num_ipus} x {name}"

    def seconds(self, cycles: int) -> float:
        """Return the modelled seconds that `cycles` take at this chip's clock."""
        return cycles / self.clock_hz

    def with_ipus(self, num_ipus: int) -> Target:
        """Return the same chip with `num_ipus` IPUs."""
        return replace(self, num_ipus=num_ipus)

    def amp_units(self, element_bytes: int, partial_bytes: int) -> int:
        """Return the number of a tile's AMP units at work, each of which computes an output
        channel.

        Half partials keep all of them busy. With float partials only half as many are busy, because
        a tile stores 64 bits in a cycle. A unit takes 8 quarters, 4 halves or a float in a cycle.
        """
        # Units = multiply-adds of a cycle over those of a unit. All chips with 8-bit products have
        # 16 units for them. A unit takes a float a cycle, so that units and products are the same.
        if element_bytes < HALF_BYTES:
            return 16
        if element_bytes > HALF_BYTES:
            return self.float_macs
        macs = (
            self.half_macs_half_partials
            if partial_bytes == HALF_BYTES
            else self.half_macs_float_partials
        )
        return macs // 4


_TOOLS = "https://docs.graphcore.ai/projects/command-line-tools/en/latest/"
_NEWS = "https://www.eenewseurope.com/en/"
_C2_POWER = BoardPower(
    "C2 card of 2 IPUs",
    idle_watts=None,
    typical_watts=None,
    max_watts=300 / 2,
    sources=("https://github.com/graphcore/legacy_drivers_and_tools",),
)
_M2000_POWER = BoardPower(
    "IPU-M2000 of 4 IPUs",
    idle_watts=None,
    typical_watts=1000 / 4,
    max_watts=1500 / 4,
    sources=(f"{_NEWS}graphcore-details-power-figures-for-mk2-chip-and-ai-system/",),
)
_BOW_POWER = BoardPower(
    "Bow-2000 of 4 IPUs",
    idle_watts=None,
    typical_watts=1250 / 4,
    max_watts=None,
    sources=(f"{_NEWS}graphcore-details-power-for-bow-ai-unit/",),
)
_C600_POWER = BoardPower(
    "C600 card of 1 IPU",
    idle_watts=12.6,
    typical_watts=None,
    max_watts=185,
    sources=(
        "https://docs.graphcore.ai/projects/C600-datasheet/en/latest/overview.html",
        f"{_TOOLS}device-attributes.html",
    ),
)

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
    power=_M2000_POWER,
)
_BOW = replace(
    _MK2, name="bow", description="Bow", aliases=(), clock_hz=1_850_000_000, power=_BOW_POWER
)

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
        power=_C2_POWER,
    ),
    "ipu2": _MK2,
    "bow": _BOW,
    "ipumodel": replace(
        _MK2,
        name="ipumodel",
        description="IPU Model of a GC200",
        aliases=(),
        is_ipu_model=True,
        power=None,
    ),
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
        power=_C600_POWER,
    ),
}
_ALIASES = {alias: name for name, target in TARGETS.items() for alias in target.aliases}
MAX_TILES_PER_IPU = max(target.tiles_per_ipu for target in TARGETS.values())
"""Maximum number of tiles of an IPU: no chip has more."""
DEFAULT_CHIP = "ipu21"
"""Chip used if none is named: the C600, PopRT's own card, for which most figures are published."""

MAX_IPUS = 65_536
"""Maximum number of IPUs: a Pod of 1,024 machines has that many, and none is larger."""


def find_target(name: str, num_ipus: int = 1) -> Target:
    """Return the target with that name, Poplar's or a common alias, in any case. Messages call it
    by that name. This is the only place that knows the names of chips.

    Raises LoadError, with a list of the known names, for an unknown name, and for a number of IPUs
    that no machine has.
    """
    if not 1 <= num_ipus <= MAX_IPUS:
        raise LoadError(f"IPU target {name!r}: expected 1 to {MAX_IPUS} IPUs, found {num_ipus}")
    try:
        target = TARGETS[_ALIASES.get(name.lower(), name.lower())]
    except KeyError:
        raise LoadError(
            f"IPU target {name!r} is not known; known are {known_chips()}"
            f"{did_you_mean(name, (*TARGETS, *_ALIASES))}"
        ) from None
    return replace(target, given_name=name, num_ipus=num_ipus)


def known_chips() -> str:
    """Return all names of all chips, for messages and help."""
    return ", ".join(sorted({*TARGETS, *_ALIASES}))
