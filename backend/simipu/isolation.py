"""Runs a graph in a child process: a crash there does not end the server process.

The parent sends a graph and its weights once, then exchanges arrays with the child
(`popef._tools.channel`). The child (`engine_process`) reads the graph, not the parent. The parent
does not unpickle the child's answers (`answers`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from popef._tools.arrays import Array
from popef._tools.channel import LOST, AnsweringChild, StalledError, encode_object
from popef._tools.progress import LOOK_SECONDS, STALL_SECONDS, STOPPED_STATES, read_stat
from simipu import errors
from simipu.answers import AnswerError, decode_arrays, decode_loaded
from simipu.computed import GraphOptions, Lowered, Weights
from simipu.executable import Program
from simipu.forks import FORKS
from simipu.numerics.options import Numerics
from simipu.sandbox import find_missing
from simipu.watchdog import WATCHDOG

_Answer = TypeVar("_Answer")
_GRACE_SECONDS = 10.0
"""Time for a child to report that a load took too long; never longer than the load's own limit."""
_PAUSE_SECONDS = 5.0
"""Maximum pause in the middle of a request or an answer: a child that takes none of a request for
so long is stalled, as it has nothing else to do."""
_CHILD = (
    "import sys; from popef._tools.memory import offer_to_oom_killer; offer_to_oom_killer(); "
    "from simipu.sandbox import confine; confine(sys.argv[1:]); "
    "from simipu.engine_process import serve; serve({})"
)
"""Code that the child runs, with the descriptor of its end of the channel; its arguments are the
paths that it may read. It confines itself before anything starts a thread."""
OWN_BYTES = 1 << 30
"""Memory of a child beside its graph and weights: libraries, stacks and answers."""

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

    Raises LoadTimeoutError and LoadMemoryError if it exceeds these limits, and LoadError for work
    that fails or ends its process.
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
    replaced at once, and loads the graph again before the next run. One that died between runs is
    replaced before the next run."""

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
        self._loaded = False
        self._cancelled = False
        self._answered_at = time.monotonic()
        FORKS.watch(self)
        self._start()
        try:
            self._load()
        except errors.RunTimeoutError as error:
            self.close()
            raise errors.LoadTimeoutError(
                f"{self._label}: it was not ready within {options.ready_seconds:g} s, and its "
                "process was ended"
            ) from error
        except errors.DeviceLostError as error:
            self.close()
            raise errors.LoadError(
                f"{self._label}: the process that loaded it died: {error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute in the child. Raises DeviceLostError if it died, RunTimeoutError if it had to be
        killed."""
        self._check_cancelled()
        if self._child.process.has_ended() or self._stalls_idle():
            # It died, or was stopped, between two runs: no row is lost.
            self._replace()
        if not self._loaded:
            self._load()
        limit_seconds, count = self._options.limit_seconds, len(names)
        return self._ask(("run", names, feeds), limit_seconds, lambda it: decode_arrays(it, count))

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

    def _load(self) -> None:
        seconds = self._options.ready_seconds
        limit_seconds = seconds + min(seconds, _GRACE_SECONDS)
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
            status = self._replace()
            how = f"died ({_describe(status)})"
            if isinstance(error, StalledError):
                how = str(error)
            elif isinstance(error, AnswerError):
                how = f"sent an invalid answer ({error}) and was ended"
            raise errors.DeviceLostError(
                f"{self._label}: the engine's process {how}; a new one takes its place"
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
