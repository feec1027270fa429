"""Modelled seconds of a batch with its transfers between host and chip, from what the graph takes
on the chip. They are modelled, never measured. Graphs do not belong here."""

from __future__ import annotations

from simipu.chip.target import Target
from simipu.operators.formulas.calibration import CALIBRATION, Calibration

OVERLAPPED_STEPS = 3
"""Number of steps of a batch if I/O tiles overlap its transfers with computing: load, compute and
store, each while other batches are in the other steps (PopART's OverlapInnerLoop). As many threads
must feed a runner to keep the chip busy."""


def transfer_seconds(num_bytes: int, target: Target) -> float:
    """Return the seconds that moving `num_bytes` between host and chip takes, in both directions
    together."""
    syncs = target.seconds(2 * target.external_sync_cycles)
    return num_bytes / target.host_bytes_per_second + syncs


def batch_seconds(
    compute_seconds: float,
    host_seconds: float,
    *,
    overlapped: bool,
    batches_per_step: int = 0,
    calibration: Calibration = CALIBRATION,
) -> float:
    """Return the seconds from batch to batch while batches are queued.

    Transfers overlap with computing if there are I/O tiles (`overlapped`), else one follows the
    other; the host prepares the next batch meanwhile. `batches_per_step` batches share the round
    trip to the host, which computing also hides; 0 leaves it out.
    """
    # transfer |in 1|       |out 1, in 2|       |     transfer |in 3, out 1|in 4, out 2|
    # compute       |batch 1|           |batch 2|     compute  |  batch 2  |  batch 3  |
    #          no I/O tiles: the sum of both          I/O tiles: the longer of the two
    #
    # The host prepares a batch while the chip computes another, but not while it transfers. So
    # its work counts only where the chip is faster (section 1.2).
    device = max(compute_seconds, host_seconds) if overlapped else compute_seconds + host_seconds
    if batches_per_step and not overlapped:
        device += calibration.host_step_seconds / batches_per_step
    return max(device, host_seconds + calibration.host_batch_seconds)


def pass_seconds(
    compute_seconds: float, host_seconds: float, interval: float, *, overlapped: bool
) -> float:
    """Return the seconds from the start to the end of a batch's transfers, if a batch comes each
    `interval`. With I/O tiles a step is as long as an interval, whichever of its parts is
    shorter."""
    steps = OVERLAPPED_STEPS * interval if overlapped else interval
    return max(steps, compute_seconds + host_seconds)


def call_seconds(
    compute_seconds: float,
    interval_seconds: float,
    host_seconds: float,
    *,
    overlapped: bool,
    calibration: Calibration = CALIBRATION,
) -> float:
    """Return the seconds of a call that waits for its one batch while no other batch is queued: the
    host's own work and the batch's pass. `interval_seconds` is what the chip computes from batch to
    batch, less than `compute_seconds` in a pipeline."""
    # With I/O tiles each step is as long as the longer of computing and transferring.
    step = max(interval_seconds, host_seconds) if overlapped else 0.0
    own = calibration.host_call_seconds + calibration.host_batch_seconds
    return own + pass_seconds(compute_seconds, host_seconds, step, overlapped=overlapped)
