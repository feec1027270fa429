"""Thread that serves the waiting requests of one process, from its start to a fork or to the end of
the interpreter (shutdown.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from model_runtime.errors import StoppedError
from model_runtime.shutdown import SessionThread, Stoppable, is_exiting, stop_at_exit


class ServingThread:
    """Thread of the requests that wait in this process.

    A forked child process lacks it. Its owner calls `forget_parent` there, and `restart` with the
    first request.
    """

    def __init__(self) -> None:
        self._thread: SessionThread | None = None
        self._name = ""
        self.is_lost = False
        """Whether a fork left the thread in the parent."""

    @property
    def has_ended(self) -> bool:
        """Whether the thread was started in this process and has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, serve: Callable[[], None], name: str, session: Stoppable) -> None:
        """Start the thread, which runs `serve` and ends with `session` or the interpreter.

        Raises StoppedError if the interpreter is exiting.
        """
        if is_exiting():
            raise StoppedError(
                "the interpreter exits: a session thread would not end in order any more"
            )
        self._name = name
        self._thread = SessionThread(serve, name, session)
        self._thread.start()
        self.is_lost = False

    def restart(self, serve: Callable[[], None], session: Stoppable) -> None:
        """Start the thread that a fork has lost."""
        stop_at_exit(session)
        self.start(serve, self._name, session)

    def forget_parent(self) -> None:
        """Leave the thread to the parent, in a fork."""
        if self._thread is not None:
            self.is_lost, self._thread = True, None

    def join(self, seconds: float | None = None) -> None:
        """Wait until the thread has ended, unless it is the calling one or was never started."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
