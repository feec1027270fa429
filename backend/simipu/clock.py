"""The device's own time: when the runs that it was given would have ended on the chip."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path


class DeviceClock:
    """Modelled time of one device, for which wall time waits: runs follow one another, each takes its modelled duration."""

    def __init__(self) -> None:
        self._free_at_ns = 0
        self._sharpened = 0

    def start(self) -> None:
        """The device is given something to do now; it begins when it is free."""
        self._free_at_ns = max(self._free_at_ns, time.monotonic_ns())

    def advance(self, seconds: float) -> None:
        """The device is busy for so long; return when it would be free again, if that is not past."""
        self.skip(seconds)
        self._sharpen()
        remaining = self._free_at_ns - time.monotonic_ns()
        if remaining > 0:
            time.sleep(remaining / 1e9)

    def skip(self, seconds: float) -> None:
        """The device is busy for so long; nobody waits."""
        self._free_at_ns += round(seconds * 1e9)

    def _sharpen(self) -> None:
        """Have the kernel wake this thread at its time, not up to 50 us later as it does to save power."""
        thread = threading.get_native_id()
        if thread != self._sharpened:
            self._sharpened = thread
            with suppress(OSError):
                Path(f"/proc/{thread}/timerslack_ns").write_text("1")
