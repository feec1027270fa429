"""A clock that only sleeping moves."""

from __future__ import annotations


class FakeTime:
    """Takes the place of the module `time` in what is tested."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        """The time that has been slept, in ns."""
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)
