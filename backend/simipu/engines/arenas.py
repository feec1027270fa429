"""Memory arenas in which ONNX Runtime's sessions compute, each with a size limit."""

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
    """Gives each session a memory arena with a size limit. Sessions created at the same time may
    share one arena, with the limit of the last session."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state. After a fork the lock may be held by a thread of the
        parent."""
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def of(self, num_bytes: int) -> Iterator[None]:
        """Give sessions created within this context an arena of at most `num_bytes`."""
        with self._lock:
            self._users += 1
            _register_arena(num_bytes)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    _register_arena(1)  # the environment keeps the last arena, and all its memory


def _register_arena(num_bytes: int) -> None:
    # ONNX Runtime before 1.23 keeps the first arena for all sessions of the process.
    with suppress(RuntimeError):
        onnxruntime.create_and_register_allocator(
            _ARENA, onnxruntime.OrtArenaCfg({"max_mem": num_bytes})
        )


ARENAS = Arenas()
"""Memory arenas of this process."""
os.register_at_fork(after_in_child=ARENAS.reset)
