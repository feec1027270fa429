"""Interrupts of a command: Ctrl-C (SIGINT) and SIGTERM end it with status 130 and nothing on
stderr, whatever it is doing.

An exception is the wrong means for a part of a command's life. C extensions turn one that is raised
during their import into another one, and Python prints one that is raised while it shuts down.
There is nothing to clean up then, so the process exits at once: `exit_at_once`. While the command
works, the first interrupt raises KeyboardInterrupt, once no module is being imported: `raising`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # see popef/__init__.py
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

INTERRUPTED = 130
"""Exit status of an interrupted command: that of a shell for SIGINT."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_CLEAN_UP_SECONDS = 1.0
"""Time in which further interrupts are ignored, so that the clean-up after the first is not
interrupted: a terminal and a parent process may both send one."""
_RETRY_SECONDS = 0.01
"""Time after which an interrupt is tried again that Python has dropped, or that came during an
import."""
_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
"""Files of the code that imports a module."""


class _State:
    """State of the interrupts of this process. Signals have one handler per process."""

    asked_at: float | None = None
    """Time of the first interrupt since `raising` was entered, or None."""


def is_asked() -> bool:
    """Return whether the command has been interrupted, even if the exception was lost."""
    return _State.asked_at is not None


def exit_at_once() -> None:
    """Make an interrupt exit this process at once, from now on. Signals that are ignored stay
    ignored, as in a job that a shell started in the background.

    Once all callbacks of atexit have run, interrupts are ignored: Python would give the signals
    their default actions while it shuts down, and the status of a command that has done its work
    would be that of a crash.
    """
    atexit.register(_set_handler, signal.SIG_IGN)
    _set_handler(_exit)


@contextmanager
def raising() -> Iterator[None]:
    """Make the first interrupt within this context raise KeyboardInterrupt in the main thread. One
    that follows more than a second later exits the process at once.

    Afterwards the signals have their earlier handlers. In other threads nothing changes.
    """
    import threading  # here: see popef/__init__.py

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.asked_at = None
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    unraisable_hook = sys.unraisablehook
    _set_handler(_interrupt)
    sys.unraisablehook = _raise_again
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = unraisable_hook


def _set_handler(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Set the handler of the signals that are not ignored."""
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _exit(*_: object) -> None:
    os._exit(INTERRUPTED)


def _interrupt(_: int, frame: FrameType | None) -> None:
    if _State.asked_at is None:
        _State.asked_at = time.monotonic()
        signal.signal(signal.SIGALRM, _try)
        _try(0, frame)
    elif time.monotonic() > _State.asked_at + _CLEAN_UP_SECONDS:
        _exit()


def _try(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or try it again soon if a module is being imported. Do nothing while
    one is being handled."""
    if _is_importing(frame):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
    elif not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _raise_again(lost: Any) -> None:
    """Have an interrupt raised again that Python has dropped, because it was raised in a finalizer
    or in a callback of C code. This hook cannot raise it itself."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _try)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
    else:
        sys.__unraisablehook__(lost)
