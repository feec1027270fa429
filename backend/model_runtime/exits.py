"""How sessions end with the interpreter, in two steps. What ends with a session is the session's business,
not this module's.

1. The main thread ends. Threads of the user's that are no daemons go on, as Python promises them, and are
served. Once all of
   them wait for ever, for rows or for results that nobody can bring any more, every session is stopped, so
   that they end.
2. All those threads have ended. Every session is stopped, its run ended, and its thread joined: a daemon
thread that the
   interpreter finds alive is frozen, with the locks that it holds, and one on its way out of ONNX Runtime
   aborts the process.

Both come before anything is torn down. After that no thread and no lock of ours is needed by any finalizer.
"""

from __future__ import annotations

import atexit

# Its hook, which waits for the workers of thread pools, and then ours are called in the reverse order of
# their registration: a worker may wait for a result that only our hook can give.
import concurrent.futures.thread  # noqa: F401
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from simipu.watchdog import WATCHDOG

_LOOKS = 3
_LOOK_SECONDS = 0.1
"""Who waits the same wait at so many looks, so far apart, was not just about to go on."""
_JOIN_SECONDS = 5.0
"""For a thread that is in a callback of the user's, or in a run of the onnx reference. Both may be frozen."""


class Ending(Protocol):
    """A session, as seen from here."""

    def stop(self) -> None:
        """Have no further run start, and nobody wait for rows."""

    def cancel(self) -> None:
        """Stop, and end the run in flight."""


class SessionThread(threading.Thread):
    """A thread that serves a session: a daemon, so that nobody waits for it who does not mean to, but joined
    at exit."""

    def __init__(self, target: Callable[[], None], name: str, session: Ending) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.session = session


class _EndlessWait:
    """A context in which a thread waits without a limit, for something that another thread must bring."""

    def __enter__(self) -> None:
        _endless_waits[threading.get_ident()] = object()

    def __exit__(self, *_: object) -> None:
        _endless_waits.pop(threading.get_ident(), None)


endless_wait = _EndlessWait()
_endless_waits: dict[int, object] = {}
_sessions: weakref.WeakValueDictionary[int, Ending] = weakref.WeakValueDictionary()
_over = threading.Event()


def attend(session: Ending) -> None:
    """Have `session` end with the interpreter, if it lives so long."""
    WATCHDOG.start()
    _sessions[id(session)] = session


def is_over() -> bool:
    """Whether the interpreter is past the point where a session thread could end in order."""
    return _over.is_set()


def end_quietly() -> None:
    """At the interpreter's end, end the calling thread if it is a daemon, which Python would freeze in a
    moment: what a stopped session has it raise is no news to anybody then."""
    if _over.is_set() and threading.current_thread().daemon:
        raise SystemExit


def _main_thread_ended() -> None:
    if _find_waited_for():
        WATCHDOG.soon(_free_the_stuck)


def _find_waited_for() -> list[threading.Thread]:
    """The threads for whose end Python waits before it exits."""
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _free_the_stuck(before: dict[int, object] | None = None, looks: int = 0) -> None:
    """Stop every session once nobody but those that wait for it could do anything: look, and look again. An
    errand of the watchdog's, for Python 3.12 starts no thread any more."""
    time.sleep(_LOOK_SECONDS)
    waited_for = _find_waited_for()
    if not waited_for:
        return
    stuck = _find_stuck([*waited_for, *_session_threads()])
    looks = looks + 1 if stuck is not None and stuck == before else 0
    if looks >= _LOOKS:
        for session in _live_sessions():
            session.stop()
    WATCHDOG.soon(partial(_free_the_stuck, stuck, looks))


def _find_stuck(threads: Iterable[threading.Thread]) -> dict[int, object] | None:
    """The endless waits that these threads are in; None when one of them does not wait, and may help the
    others."""
    waits = _endless_waits.copy()
    idents = [thread.ident for thread in threads if thread.ident is not None]
    return {ident: waits[ident] for ident in idents} if waits.keys() >= set(idents) else None


def _stop_all() -> None:
    _over.set()
    threads = _session_threads()
    for session in _live_sessions():
        session.stop()
    # Only theirs: an atexit callback may still have a session compute. The runs of the user's daemons
    # simipu.watchdog ends.
    for thread in threads:
        thread.session.cancel()
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        with suppress(RuntimeError):  # its start was interrupted: it has run nothing
            thread.join(max(0.0, deadline - time.monotonic()))


def _live_sessions() -> list[Ending]:
    return [session for reference in _sessions.valuerefs() if (session := reference()) is not None]


def _session_threads() -> list[SessionThread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, SessionThread)]


def _forget() -> None:
    """A fork has its parent's sessions, but not their threads: none of them waits here. The sessions are told
    by simipu.forks."""
    _endless_waits.clear()


# Where this is imported too late already no thread but this one is left to wait. Python has no public hook
# between the end of the main thread and that of the others.
with suppress(RuntimeError):
    threading._register_atexit(_main_thread_ended)  # type: ignore[attr-defined]  # noqa: SLF001
atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget)
