"""What the cost model takes for the numbers that no public source gives exactly: fitted to published
measurements, or assumed. Facts about a chip are `simipu.target`'s, cycles of poplibs' vertices `vertices`'.

Fitted numbers come from the rows in `benchmarks/data`, and `benchmarks/validation.py` prints what they are
worth; docs/ipu-performance.md, section 9, says what each was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from simipu.target import Target


@dataclass(frozen=True, slots=True)
class Calibration:
    """One set of such numbers, which is passed in: whoever tries another value makes another set. Cycles are
    a tile's where nothing else is said, bytes too."""

    planned_cycles: int = 600
    """Of each planned product beside what its plan says: zeroing, layout phases, control. Fitted."""
    fp8_block_cycles: int = 280
    """Of a block of 32 by 16 fp8 weights: the C++ vertex has more overhead than the assembly of the others.
    Fitted; reading it gave 360, where no cast was counted."""
    pow_cycles: int = 45
    """Of a worker for an element, where the exponent has no vertex of its own. Fitted on BERT-base with and
    without the fused Gelu; poplibs' estimator says 325, an average over random exponents."""
    lookup_imbalance: float = 1.2
    """The fullest tile's share of looked-up rows over the mean: they lie as the parts of the table do, never
    as evenly as a product's result. Assumed."""
    phase_cycles: int = 500
    """Of each exchange, beside its sync and its bytes: the way over the chip, and tiles that are not ready at
    the same time. Fitted."""
    local_step_cycles: int = 60
    """Of a compute set whose operands are on the tiles already: its launch from the supervisor, about five
    instructions of 6 cycles by the bytes of control code of real profiles, and the workers' end. Assumed."""
    reduction_cycles: int = 750
    """Of each stage of a reduction, beside its elements. Fitted on poplibs' simulator: 1,466 to 1,882 for one
    stage, 2,446 to 3,357 for two (section 5.1)."""
    pool_start_cycles: int = 600
    """Of a pool, beside its positions. Chosen: no time of inference alone is published (section 5.4)."""
    guess_cycles_per_element: float = 6.0
    """Of a worker, of an operator without a formula: dearer than the common ones, so that the estimate errs
    on the safe side. Chosen."""
    cut_slack: float = 0.1
    """Of an IPU's share, by which the share may be missed where the graph is cut, for the sake of smaller
    copies. Chosen; PopRT's tools/auto_sharding.py too only cuts where branches join."""

    host_call_seconds: float = 130e-6
    """Of a synchronous call: 0.447 ms of the least latency of ResNet-50 against 0.321 ms streamed
    (graphcore/PopRT; section 1.2)."""
    host_step_seconds: float = 30e-6
    """Between two calls that follow one another, which the batches of a call share: ResNet-50 in half takes
    0.321 ms streamed with one batch in a call and no I/O tiles, 0.274 on the chip alone, and its picture 17
    us over the link (graphcore/PopRT; section 1.2)."""
    host_batch_seconds: float = 100e-6
    """The host's own work for a batch, which only shows where the chip is faster: Wide&Deep's intervals, 90
    to 166 us above what the link takes (graphcore/PopRT, ByteMLPerf; section 1.2). Fitted."""

    imbalance: float = 1.058
    """What the fullest tile has over the mean, of tensors and code: 1.053 and 1.063 in the two halves of a
    BERT-Large (section 8)."""

    @property
    def planning(self) -> Calibration:
        """Of these numbers those that plans depend on, the others as they are by default: plans are kept by
        it."""
        return _planning(self)

    def step_cycles(self, target: Target) -> int:
        """Of a superstep, beside what it exchanges and computes."""
        return target.internal_sync_cycles + self.phase_cycles


_PLANNING = (
    "planned_cycles",
    "fp8_block_cycles",
    "phase_cycles",
)


@lru_cache(maxsize=64)
def _planning(calibration: Calibration) -> Calibration:
    return Calibration(**{name: getattr(calibration, name) for name in _PLANNING})


CALIBRATION = Calibration()
"""The set that everything uses but those who try others."""
