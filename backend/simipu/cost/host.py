"""The host's side of a run: transfers over its link, and its own work for each batch. Modelled, in
seconds."""

from __future__ import annotations

from simipu.cost import constants as c
from simipu.target import Target


def transfer_seconds(num_bytes: int, target: Target) -> float:
    """What moving so many bytes between host and chip takes, in both directions together."""
    return num_bytes / c.HOST_BYTES_PER_SECOND[target.name] + target.seconds(2 * c.EXTERNAL_SYNC_CYCLES)


def batch_seconds(compute_seconds: float, host_seconds: float, *, overlapped: bool) -> float:
    """From batch to batch while batches are queued.

    Transfers overlap with computing where there are I/O tiles (`overlapped`), else one follows the other; the
    host prepares the next batch meanwhile.
    """
    device = max(compute_seconds, host_seconds) if overlapped else compute_seconds + host_seconds
    return max(device, host_seconds + c.HOST_BATCH_SECONDS)
