"""Waits for conditions, and locks that another thread holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

PATIENCE_SECONDS = 240
"""Timeout of anything that must happen: far more than it takes, for machines with other work."""


def wait_until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `holds()` is true; raises AssertionError that names `what` on a timeout."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


@contextmanager
def held_by_another_thread(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Have another thread hold the lock in the block."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()
