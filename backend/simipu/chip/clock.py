"""Modelled clock of the device: when its runs would end on the chip."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path

from simipu.errors import RunTimeoutError

_WAKE_NS = 20_000_000
"""Last part of a wait, in ns, that uses sleep instead of an Event. Sleep is exact to the
microsecond but cannot be cancelled; an Event's wait is less exact."""


class DeviceClock:
    """Modelled time of one device. Wall time waits for it: runs follow one another, and each takes
    its modelled duration.

    Times are on the clock of time.perf_counter_ns. If rows wait for the device, a run begins as
    soon as the previous run leaves room for it. That is the previous run's modelled end, or earlier
    if the device overlaps runs. Delays of the CPU and of the sleeping thread do not matter: the
    delay of one run is not added to the next.
    """

    def __init__(self, limit_seconds: float = math.inf) -> None:
        self._limit_seconds = limit_seconds
        self.free_at_ns = 0
        """Modelled time in ns at which the device can accept another run."""
        self._sharpened = 0
        self._cancelled = threading.Event()

    def start(self, ready_ns: int, seconds: float) -> None:
        """Begin a run whose input has been ready since `ready_ns` and that takes `seconds`. The run
        begins when the device is free.

        Raises RunTimeoutError if `seconds` exceeds the limit of a run. The device then stays
        unchanged.
        """
        if seconds > self._limit_seconds:
            raise RunTimeoutError(
                f"a run takes {seconds:g} s on the modelled device, longer than its limit of "
                f"{self._limit_seconds:g} s (the limit is target.hostSyncTimeout of "
                "POPLAR_RUNTIME_OPTIONS; sim_timing fast does not wait)"
            )
        self.free_at_ns = max(self.free_at_ns, ready_ns)

    def advance(self, seconds: float, until_free: float) -> int:
        """Wait until the modelled end of a run of `seconds`, and return the CPU's lateness in ns.
        The device can accept the next run after `until_free` seconds, which is earlier.

        The lateness is how long the modelled end is past at the time of the call, else 0. If it is
        past, the method returns at once.
        """
        #      free_at (before)          free_at (after)       done
        #         |------- until_free ------|                   |
        #         |------------------ seconds ------------------|
        done_ns = self.free_at_ns + round(seconds * 1e9)
        self.skip(until_free)
        self._sharpen()
        remaining_ns = done_ns - time.perf_counter_ns()
        if remaining_ns <= 0:
            return -remaining_ns
        seconds = min((remaining_ns - _WAKE_NS) / 1e9, threading.TIMEOUT_MAX)
        if seconds > 0 and not self._cancelled.wait(seconds):
            remaining_ns = done_ns - time.perf_counter_ns()
        if not self._cancelled.is_set():
            time.sleep(max(0, remaining_ns) / 1e9)
        return 0

    def cancel(self) -> None:
        """Cancel all waits for the device, now and later. Any thread may call this."""
        self._cancelled.set()

    def skip(self, seconds: float) -> None:
        """Keep the device busy for `seconds` without waiting."""
        self.free_at_ns += round(seconds * 1e9)

    def _sharpen(self) -> None:
        """Have the kernel wake this thread on time, not up to 50 us later as it does to save
        power."""
        thread = threading.get_native_id()
        if thread != self._sharpened:
            self._sharpened = thread
            with suppress(OSError):
                Path(f"/proc/{thread}/timerslack_ns").write_text("1")
