"""Numbers of the cost model that no public source gives exactly: fitted to published measurements,
or assumed. Facts about a chip are in `simipu.chip.target`, cycles of poplibs' vertices in
`vertices`.

Fitted numbers come from the rows in `benchmarks/data`, and `benchmarks/validation.py` prints their
accuracy; docs/ipu-performance.md, section 9, says what each was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simipu.chip.target import Target


@dataclass(frozen=True, slots=True)
class Calibration:
    """One set of such numbers, passed as an argument so that other values can be tried. Cycles and
    bytes are per tile unless noted."""

    planned_cycles: int = 600
    """Cycles of each planned product in addition to its plan: zeroing, layout phases, control.
    Fitted."""
    fp8_block_cycles: int = 280
    """Cycles of a block of 32 by 16 fp8 weights: the C++ vertex has more overhead than the assembly
    of the others. Fitted; counting its code gave 360, without a cast."""
    pow_cycles: int = 45
    """Cycles of a worker for an element, for an exponent without a vertex of its own. Fitted on
    BERT-base with and without the fused Gelu; poplibs' estimator says 325, an average over random
    exponents."""
    lookup_imbalance: float = 1.2
    """The fullest tile's number of looked-up rows over the mean. The rows lie like the parts of the
    table, never as evenly as a product's result. Assumed."""
    phase_cycles: int = 500
    """Cycles of each exchange, in addition to its sync and its bytes: the distance across the chip,
    and tiles that are not ready at the same time. Fitted."""
    local_step_cycles: int = 60
    """Cycles of a compute set whose operands are already on the tiles: its launch from the
    supervisor, and the workers' end. The launch is about five instructions of 6 cycles, according
    to the bytes of control code of real profiles. Assumed."""
    reduction_cycles: int = 750
    """Cycles of each stage of a reduction, in addition to its elements. Fitted on poplibs'
    simulator: 1,466 to 1,882 for one stage, 2,446 to 3,357 for two (section 5.1)."""
    pool_start_cycles: int = 600
    """Cycles of a pool, in addition to its positions. Chosen: no time of inference alone is
    published (section 5.4)."""
    guess_cycles_per_element: float = 6.0
    """Cycles of a worker per element, for an operator without a formula. It is more expensive than
    the common operators, so that the estimate is conservative. Chosen."""
    cut_slack: float = 0.1
    """Maximum relative deviation from an IPU's share when the graph is cut, which allows cuts with
    smaller copies. Chosen; PopRT's tools/auto_sharding.py also cuts only where branches join."""

    host_call_seconds: float = 130e-6
    """Seconds of a synchronous call: 0.447 ms minimum latency of ResNet-50 against 0.321 ms
    streamed (graphcore/PopRT; section 1.2)."""
    host_step_seconds: float = 30e-6
    """Seconds between two successive calls, shared by the batches of a call. ResNet-50 in half
    takes 0.321 ms streamed with one batch in a call and no I/O tiles, 0.274 on the chip alone, and
    its picture 17 us over the link (graphcore/PopRT; section 1.2)."""
    host_batch_seconds: float = 100e-6
    """Seconds of the host's own work for a batch, visible only if the chip is faster: Wide&Deep's
    intervals are 90 to 166 us longer than the link's time (graphcore/PopRT, ByteMLPerf; section
    1.2). Fitted."""

    imbalance: float = 1.058
    """Ratio of the fullest tile's tensors and code to the mean: 1.053 and 1.063 in the two halves
    of a BERT-Large (section 8)."""

    ipu_model_planned_cycles: int = 2_000
    """`planned_cycles` of Graphcore's simulator, the IPU Model, which also counts rearrangements
    that a chip does not need. Fitted on poplibs' convolutions, fully connected layers and
    products: 600 gives a median error of 12 %, 2,000 of 7 %."""

    def of(self, target: Target) -> Calibration:
        """Return these numbers for a target: those of chips, unless it is the IPU Model."""
        if not target.is_ipu_model:
            return self
        return replace(self, planned_cycles=self.ipu_model_planned_cycles)

    @property
    def planning(self) -> Calibration:
        """These numbers as far as plans depend on them, the others with their defaults; it is the
        cache key of plans."""
        return _planning(self)

    def step_cycles(self, target: Target) -> int:
        """Return the cycles of a superstep in addition to its exchange and its compute."""
        return target.internal_sync_cycles + self.phase_cycles


_PLANNING = ("planned_cycles", "fp8_block_cycles", "phase_cycles")


@lru_cache(maxsize=64)
def _planning(calibration: Calibration) -> Calibration:
    return Calibration(**{name: getattr(calibration, name) for name in _PLANNING})


CALIBRATION = Calibration()
"""Default set of numbers."""
