"""The memory that ONNX Runtime's sessions compute in, of which each may take so much."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import onnxruntime

_ARENA = onnxruntime.OrtMemoryInfo(
    "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
)


class Arenas:
    """Gives sessions memory of their own that grows no larger than it may. Sessions that are made at the same
    time may share one, with the limit of the last."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a fork might have a lock that a thread of its parent held."""
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def of(self, num_bytes: int) -> Iterator[None]:
        """Sessions made meanwhile have such an arena."""
        with self._lock:
            self._users += 1
            _register_arena(num_bytes)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    _register_arena(1)  # the environment holds the last one, and all memory that it has


def _register_arena(num_bytes: int) -> None:
    # ONNX Runtime before 1.23 keeps the first, for all sessions of the process.
    with suppress(RuntimeError):
        onnxruntime.create_and_register_allocator(_ARENA, onnxruntime.OrtArenaCfg({"max_mem": num_bytes}))


ARENAS = Arenas()
"""Of this process."""
os.register_at_fork(after_in_child=ARENAS.reset)
