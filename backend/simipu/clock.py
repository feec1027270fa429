"""The device's own time: when the runs that it was given would have ended on the chip."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path

from simipu.errors import RunTimeoutError

_WAKE_NS = 20_000_000
"""The last of a wait is slept, which is to the microsecond, and cannot be cancelled; an Event's wait is not
that sharp."""


class DeviceClock:
    """Modelled time of one device, for which wall time waits: runs follow one another, each takes its
    modelled duration.

    On the clock of time.perf_counter_ns. Where rows wait for the device, a run begins as soon as the run
    before leaves room for it, which is at its modelled end or, where the device overlaps runs, earlier;
    however long the CPU and the sleeping thread took to get there, for what one run is late does not add to
    the next.
    """

    def __init__(self, limit_seconds: float = math.inf) -> None:
        self._limit_seconds = limit_seconds
        self.free_at_ns = 0
        """When the device, modelled, has room for more than it was given so far."""
        self._sharpened = 0
        self._cancelled = threading.Event()

    def start(self, ready_ns: int, seconds: float) -> None:
        """What the device is given next has been ready since then; it begins when the device is free, and
        takes so long.

        Raises RunTimeoutError where that is longer than a run may take, and leaves the device as it is.
        """
        if seconds > self._limit_seconds:
            raise RunTimeoutError(
                f"a run takes {seconds:g} s on the modelled device, longer than its limit of "
                f"{self._limit_seconds:g} s (the limit is target.hostSyncTimeout of POPLAR_RUNTIME_OPTIONS; "
                "sim_timing fast does not wait)"
            )
        self.free_at_ns = max(self.free_at_ns, ready_ns)

    def advance(self, seconds: float, until_free: float) -> int:
        """The device takes so long; return when it would be done, or at once when that is past. It has room
        for more earlier.

        The CPU's lateness in ns: how long it is past at the time of the call, 0 if it is not.
        """
        done_ns = self.free_at_ns + round(seconds * 1e9)
        self.skip(until_free)
        self._sharpen()
        remaining_ns = done_ns - time.perf_counter_ns()
        if remaining_ns <= 0:
            return -remaining_ns
        if remaining_ns > _WAKE_NS and not self._cancelled.wait(
            min((remaining_ns - _WAKE_NS) / 1e9, threading.TIMEOUT_MAX)
        ):
            remaining_ns = done_ns - time.perf_counter_ns()
        if not self._cancelled.is_set():
            time.sleep(max(0, remaining_ns) / 1e9)
        return 0

    def cancel(self) -> None:
        """Have nobody wait for the device any more, from any thread."""
        self._cancelled.set()

    def skip(self, seconds: float) -> None:
        """The device has no room for so long; nobody waits."""
        self.free_at_ns += round(seconds * 1e9)

    def _sharpen(self) -> None:
        """Have the kernel wake this thread at its time, not up to 50 us later as it does to save power."""
        thread = threading.get_native_id()
        if thread != self._sharpened:
            self._sharpened = thread
            with suppress(OSError):
                Path(f"/proc/{thread}/timerslack_ns").write_text("1")
