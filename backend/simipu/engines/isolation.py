"""Runs a graph in a child process: a crash there does not end the server process.

The parent sends a graph and its weights once, then exchanges arrays with the child
(`popef._tools.channel`). The child (`engine_process`) reads the graph, not the parent. The parent
does not unpickle the child's answers (`answers`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from popef._tools.arrays import Array
from popef._tools.channel import LOST, AnsweringChild, StalledError, encode_object
from popef._tools.child import LOST_WHILE_LOADING
from popef._tools.stalls import LOOK_SECONDS, STALL_SECONDS, STOPPED_STATES, read_stat
from simipu import errors
from simipu.engines.answers import AnswerError, decode_arrays, decode_loaded
from simipu.engines.computed import OWN_BYTES, GraphOptions, Lowered, Weights
from simipu.executable import Program
from simipu.numerics.options import Numerics
from simipu.processes.forks import FORKS
from simipu.processes.sandbox import find_missing
from simipu.processes.watchdog import WATCHDOG

_Answer = TypeVar("_Answer")
_GRACE_SECONDS, _GRACE_SHARE = 10.0, 0.25
"""Time for a child to report that a load took too long, and its maximum as a part of the load's own
limit."""
_MAX_LOADS = 3
"""Maximum number of processes that load a graph, one after the other, if a signal ends each: when
memory runs out the kernel kills such a process first, and the next one may find more."""
_RETRY_SECONDS = 1.0
"""Pause before the second load, for memory to be freed; it doubles before each further one."""
_CRASHES = (
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
)
"""Signals by which a process ends itself: the graph may be at fault. All others come from
outside."""
_PAUSE_SECONDS = 5.0
"""Maximum pause in the middle of a request or an answer: a child that takes none of a request for
so long is stalled, as it has nothing else to do."""
_CHILD = (
    "import sys; from popef._tools.memory import offer_to_oom_killer; offer_to_oom_killer(); "
    "from simipu.processes.sandbox import confine; confine(sys.argv[1:]); "
    "from simipu.engines.engine_process import serve; serve({})"
)
"""Code that the child runs, with the descriptor of its end of the channel; its arguments are the
paths that it may read. It confines itself before anything starts a thread."""

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class Trial:
    """Work that a child process does once, to show that it ends within limits. `work` can be
    pickled, loads `held_bytes` of weights, and reads files in `folders`."""

    work: Callable[[], object]
    held_bytes: int
    folders: tuple[str, ...] = ()


def try_in_child(trial: Trial, options: GraphOptions, label: str) -> None:
    """Do work in a child process within the limits of `options`; `label` names it in messages.

    Raises LoadTimeoutError and LoadMemoryError if it exceeds these limits, LoadLostError if its
    process is killed or stalls again and again, and LoadError for work that fails or ends its
    process.
    """
    try:
        graph = IsolatedGraph(label, trial, {}, options, None)
    except OSError as error:
        raise errors.LoadError(
            f"{label}: cannot start the process that loads it first: {error}"
        ) from error
    graph.close()


@cache
def warn_of_missing_confinement() -> None:
    """Log once which confinements of a child the kernel does not support."""
    if missing := " and ".join(find_missing()):
        _log.warning("isolated graphs are computed without %s, which this system lacks", missing)


class IsolatedGraph:
    """A graph that a child process computes. A child that died or took too long in a run is
    replaced at once, and loads the graph again before the next run. One that died or was stopped
    between runs is replaced before the next run, or in it, if it has not read the request."""

    def __init__(
        self,
        label: str,
        source: Program | Lowered | Trial,
        weights: Weights,
        options: GraphOptions,
        numerics: Numerics | None,
    ) -> None:
        self._label = label if isinstance(source, Trial) else f"program {label}"
        self._source = (source, weights, options, numerics, label)
        self._options = options
        self.kernels = ""
        self.reads_weights = bool(weights)
        self._loaded = False
        self._cancelled = False
        self._beginning = threading.Lock()
        self._unwanted: AnsweringChild | None = None
        self._answered_at = time.monotonic()
        FORKS.watch(self)
        self._start()
        try:
            self._load_again_after_signals()
        except errors.RunTimeoutError as error:
            self.close()
            raise errors.LoadTimeoutError(
                f"{self._label}: it was not ready within {options.ready_seconds:g} s, and its "
                "process was ended"
            ) from error
        except BaseException:
            self.close()
            raise

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute in the child. Raises DeviceLostError if it died, RunTimeoutError if it had to be
        killed."""
        self._check_cancelled()
        with self._beginning:
            pass
        if self._child.process.has_ended() or self._stalls_idle():
            # It died, or was stopped, between two runs: no row is lost.
            self._replace()
        if not self._loaded:
            self._load(self._options.ready_seconds)
        limit_seconds, count = self._options.limit_seconds, len(names)
        question = "run", names, feeds

        def decode(answer: bytearray) -> list[Array]:
            return decode_arrays(answer, count)

        try:
            return self._ask(question, limit_seconds, decode)
        except errors.DeviceLostError as error:
            if error.began:
                raise
            # It was stopped or killed while it was idle, too short a time before to be noticed.
            _log.warning("%s: the idle engine's process %s", self._label, error.how)
        self._load(self._options.ready_seconds)
        return self._ask(question, limit_seconds, decode)

    def _stalls_idle(self) -> bool:
        """Return whether the child is stopped while idle, after waiting for a short stop to end.
        The check costs as much as a small run, so it is made only after a pause."""
        begin = time.monotonic()
        if begin < self._answered_at + STALL_SECONDS:
            return False
        with suppress(OSError, ValueError):
            while read_stat(self.pid).state in STOPPED_STATES:
                if time.monotonic() > begin + STALL_SECONDS:
                    return True
                time.sleep(LOOK_SECONDS / 4)
        return False

    def cancel(self) -> None:
        """Kill the child, and with it the run; no other child replaces it."""
        self._cancelled = True
        self._child.process.kill()

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """Kill the child if its run is unwanted; another one replaces it."""
        # A run that begins waits for the lock, and finds that the child has ended.
        with self._beginning:
            child = self._child
            if is_unwanted():
                self._unwanted = child
                child.process.kill()

    def close(self) -> None:
        """Kill the child. A graph that is dropped without `close` does the same some time later."""
        self._finalizer.detach()
        self._child.channel.close()
        self._child.process.end()

    def forget_parent(self) -> None:
        """Drop the child after a fork: it belongs to the parent, and ends with the parent's end of
        the channel, not with this copy. The next run starts another child."""
        self._finalizer.detach()
        self._child.channel.close()
        self._loaded = False

    @property
    def pid(self) -> int:
        """Process ID of the child."""
        return self._child.process.pid

    def _start(self) -> None:
        WATCHDOG.start()
        self._child = AnsweringChild(_CHILD, *self._find_readable(), pause_seconds=_PAUSE_SECONDS)
        self._finalizer = weakref.finalize(self, _abandon, self._child, os.getpid())
        # At exit the child ends with the channel. A thread that is frozen in a run must not find it
        # closed earlier.
        self._finalizer.atexit = False

    def _find_readable(self) -> Iterator[str]:
        """Yield the folders that the child may read besides Python and the system's libraries."""
        source, _, options, *_ = self._source
        if isinstance(source, Trial):
            yield from source.folders
        yield from (os.path.dirname(library.path) for library in options.libraries)

    def _load_again_after_signals(self) -> None:
        """Load the graph; again, in another process, if a signal has ended or stopped the process,
        as long as the limit of the load allows."""
        end = time.monotonic() + self._options.ready_seconds
        pause = _RETRY_SECONDS
        for count in range(1, _MAX_LOADS + 1):
            try:
                return self._load(max(0.0, end - time.monotonic()))
            except errors.RunTimeoutError:
                raise
            except errors.DeviceLostError as error:
                is_last = count == _MAX_LOADS or time.monotonic() + pause >= end
                if is_last or not error.by_signal:
                    raise self._describe_loss(error, count) from error
                _log.warning(
                    "%s: the process that loads it %s; loading it again", self._label, error.how
                )
            time.sleep(pause)
            pause *= 2
        return None

    def _describe_loss(self, error: errors.DeviceLostError, count: int) -> errors.LoadError:
        """Return the error of a load whose processes have died."""
        times = f" {count} times; the last one" if count > 1 else "; it"
        if error.from_outside:
            return errors.LoadLostError(
                f"{self._label}: {LOST_WHILE_LOADING}{times} {error.how}; if memory ran out, add "
                "some or set sim_memory_mib, then load the model again"
            )
        return errors.LoadError(
            f"{self._label}: the process that loaded it was lost{times} {error.how}"
        )

    def _load(self, seconds: float) -> None:
        limit_seconds = seconds + min(_GRACE_SHARE * self._options.ready_seconds, _GRACE_SECONDS)
        self.kernels = self._ask(("load", *self._source), limit_seconds, decode_loaded)
        self._loaded = True

    def _ask(
        self,
        question: tuple[Any, ...],
        limit_seconds: float,
        decode: Callable[[bytearray], _Answer],
    ) -> _Answer:
        request = [encode_object(question)]
        max_bytes = self._options.memory_bytes + OWN_BYTES
        try:
            answer = self._child.ask(request, limit_seconds=limit_seconds, max_bytes=max_bytes)
            decoded = decode(answer)
            self._answered_at = time.monotonic()
            return decoded
        except TimeoutError:
            self._check_cancelled()
            self._replace()
            raise errors.RunTimeoutError(
                f"{self._label}: {errors.describe_limit(limit_seconds)}"
            ) from None
        except (*LOST, AnswerError) as error:
            self._check_cancelled()
            is_unwanted = self._child is self._unwanted
            began = not isinstance(error, BrokenPipeError) and not self._child.channel.has_unread
            status = self._replace()
            if is_unwanted:
                raise errors.RunUnwantedError(errors.UNWANTED) from None
            how, by_signal, from_outside = f"died ({_describe(status)})", status < 0, False
            if isinstance(error, StalledError):
                how, by_signal, from_outside = str(error), True, True
            elif isinstance(error, AnswerError):
                how, by_signal = f"sent an invalid answer ({error}) and was ended", False
            elif by_signal:
                from_outside = -status not in _CRASHES
            raise errors.DeviceLostError(
                f"{self._label}: the engine's process {how}; a new one takes its place",
                how=how,
                by_signal=by_signal,
                from_outside=from_outside,
                began=began,
            ) from None

    def _replace(self) -> int:
        """Start another child, and return the exit status of the old one."""
        self._loaded = False
        self._finalizer.detach()
        status = self._child.end()
        self._start()
        return status

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise errors.RunCancelledError(errors.CANCELLED)


def _abandon(child: AnsweringChild, owner_pid: int) -> None:
    """Kill a child without waiting for it; this is a finalizer. The watchdog's thread waits for the
    child. In a fork the child belongs to another process, and nothing is done."""
    if os.getpid() == owner_pid:
        child.channel.close()
        child.process.kill()
        WATCHDOG.soon(child.process.reap)


def _describe(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
