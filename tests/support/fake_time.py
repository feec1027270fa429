"""A clock that only sleeping moves."""

from __future__ import annotations


class FakeTime:
    """Replacement of the module `time` in the tested code."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        """Return the total time slept, in ns."""
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)
