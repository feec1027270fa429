"""Threads that serve sessions, and their shutdown with the interpreter, in two steps. The session
defines what ends with it, not this module.

1. The main thread ends. The user's threads that are not daemons go on, as Python promises, and are
still served. Once all of them wait forever, for rows or for results that nothing can provide, every
session is stopped, so that they end.

2. All those threads have ended. Every session is stopped, its run cancelled, and its thread joined.
The interpreter freezes a daemon thread that is still alive, with the locks that it holds. A thread
that is leaving ONNX Runtime then aborts the process.

Both steps run before any teardown. Afterwards no finalizer needs a thread or a lock of ours.
"""

from __future__ import annotations

import atexit

# Its hook, which waits for the workers of thread pools, and then ours are called in the reverse
# order of their registration: a worker may wait for a result that only our hook can give.
import concurrent.futures.thread  # noqa: F401
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from simipu import WATCHDOG

from model_runtime.errors import StoppedError

_MIN_EQUAL_CHECKS = 3
_CHECK_INTERVAL_SECONDS = 0.1
"""Interval between two checks; a thread in the same wait at that many checks is stuck, not about to
go on."""
_JOIN_SECONDS = 5.0
"""Maximum wait for a thread in a callback of the user's, or in a run of the onnx reference. Both
may be frozen."""


class Stoppable(Protocol):
    """Part of a session that this module uses."""

    def stop(self) -> None:
        """Prevent further runs, and end all waits for rows."""

    def cancel(self) -> None:
        """Stop, and cancel the current run."""


class SessionThread(threading.Thread):
    """Thread that serves a session. It is a daemon, so Python does not wait for it, but it is
    joined at exit."""

    def __init__(self, target: Callable[[], None], name: str, session: Stoppable) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.session = session


class _EndlessWait:
    """Context in which a thread waits without a limit for something that another thread must
    provide."""

    def __enter__(self) -> None:
        _endless_waits[threading.get_ident()] = object()

    def __exit__(self, *_: object) -> None:
        _endless_waits.pop(threading.get_ident(), None)


endless_wait = _EndlessWait()
_endless_waits: dict[int, object] = {}
_sessions: weakref.WeakValueDictionary[int, Stoppable] = weakref.WeakValueDictionary()
_exiting = threading.Event()


def stop_at_exit(session: Stoppable) -> None:
    """Register `session` to be stopped when the interpreter exits, if it is still alive then."""
    WATCHDOG.start()
    _sessions[id(session)] = session


def is_exiting() -> bool:
    """Return whether it is too late in the interpreter's exit for a session thread to end in
    order."""
    return _exiting.is_set()


def exit_daemon_thread() -> None:
    """End the calling thread, at the interpreter's end, if it is a daemon.

    Python is about to freeze such a thread, so the error of its stopped session is of no use.
    """
    if _exiting.is_set() and threading.current_thread().daemon:
        raise SystemExit


def _main_thread_ended() -> None:
    if _find_non_daemon_threads():
        WATCHDOG.soon(_stop_deadlocked_sessions)


def _find_non_daemon_threads() -> list[threading.Thread]:
    """Return the threads that Python waits for before it exits."""
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _stop_deadlocked_sessions(previous: dict[int, object] | None = None, checks: int = 0) -> None:
    """Stop every session once all threads that could act wait for a session.

    It checks repeatedly. The watchdog runs the checks, because Python 3.12 starts no thread at this
    point.
    """
    time.sleep(_CHECK_INTERVAL_SECONDS)
    non_daemons = _find_non_daemon_threads()
    if not non_daemons:
        return
    waits_now = _find_endless_waits([*non_daemons, *_session_threads()])
    checks = checks + 1 if waits_now is not None and waits_now == previous else 0
    if checks >= _MIN_EQUAL_CHECKS:
        for session in _live_sessions():
            session.stop()
    WATCHDOG.soon(partial(_stop_deadlocked_sessions, waits_now, checks))


def _find_endless_waits(threads: Iterable[threading.Thread]) -> dict[int, object] | None:
    """Return the endless waits of these threads; None if one of them does not wait and may help the
    others."""
    waits = _endless_waits.copy()
    idents = [thread.ident for thread in threads if thread.ident is not None]
    return {ident: waits[ident] for ident in idents} if waits.keys() >= set(idents) else None


def _stop_all() -> None:
    _exiting.set()
    threads = _session_threads()
    for session in _live_sessions():
        session.stop()
    # Only theirs: an atexit callback may still have a session compute. The runs of the user's
    # daemons simipu.processes.watchdog ends.
    for thread in threads:
        thread.session.cancel()
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        with suppress(RuntimeError):  # its start was interrupted: it has run nothing
            thread.join(max(0.0, deadline - time.monotonic()))


def _live_sessions() -> list[Stoppable]:
    return [session for reference in _sessions.valuerefs() if (session := reference()) is not None]


def _session_threads() -> list[SessionThread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, SessionThread)]


# Where this is imported too late already no thread but this one is left to wait. Python has no
# public hook between the end of the main thread and that of the others.
with suppress(RuntimeError):
    threading._register_atexit(_main_thread_ended)  # type: ignore[attr-defined]  # noqa: SLF001
atexit.register(_stop_all)
# A fork has its parent's sessions but not their threads.
# simipu.processes.forks informs the sessions.
os.register_at_fork(after_in_child=_endless_waits.clear)


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
                "the interpreter is exiting; a session thread cannot be started any more"
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
