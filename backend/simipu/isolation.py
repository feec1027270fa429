"""Runs a graph in a child process: a crash there does not end the server process.

The parent sends a graph and its weights once, then exchanges arrays with the child
(`popef._tools.channel`). The child reads the graph, not the parent. The parent does not unpickle
the child's answers (`answers`). A fused program has a graph for each of its branches, in this
process or in children.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from popef._tools.arrays import Array
from popef._tools.channel import (
    LOST,
    AnsweringChild,
    Channel,
    StalledError,
    answer_requests,
    encode_object,
)
from popef._tools.child import prepare
from popef._tools.dataclass import dataclass
from popef._tools.memory import limit_memory, return_memory
from popef._tools.progress import LOOK_SECONDS, STALL_SECONDS, STOPPED_STATES, read_stat
from simipu import errors
from simipu.accelerators import OpenVinoUse
from simipu.answers import (
    AnswerError,
    decode_arrays,
    decode_loaded,
    encode_arrays,
    encode_error,
    encode_loaded,
)
from simipu.computed import (
    ComputedGraph,
    GraphOptions,
    Lowered,
    NoKernelError,
    Weights,
    make_graph,
    use_kernels,
)
from simipu.executable import Program
from simipu.forks import FORKS
from simipu.numerics.options import KernelUse, Numerics
from simipu.sandbox import find_missing
from simipu.streams import Direction
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
    "from simipu.isolation import serve; serve({})"
)
"""Code that the child runs, with the descriptor of its end of the channel; its arguments are the
paths that it may read. It confines itself before anything starts a thread."""
_OWN_BYTES, _WEIGHT_COPIES = 1 << 30, 6
"""Memory of a child beside its graph's values: libraries and stacks, and copies of its weights, as
received, widened and packed."""

_log = logging.getLogger("simipu")


def open_graph(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    *,
    isolated: bool = False,
) -> ComputedGraph:
    """Return the graph of a MAIN program with the device's weights, in this process, or in a child
    process if `isolated`: a fused program has one for each branch.

    Raises LoadError if the graph cannot be computed here, LoadTimeoutError and LoadMemoryError if
    it exceeds the limits in `options`.
    """
    if program.branches:
        graphs: list[ComputedGraph] = []
        try:
            for branch in program.branches:
                graphs.append(open_graph(branch, weights, options, numerics, isolated=isolated))
        except BaseException:
            for graph in graphs:
                graph.close()
            raise
        return BranchedGraph(program, graphs)
    label = f"{program.index} ({program.name})"
    if isolated:
        _warn_of_missing_confinement()
        return IsolatedGraph(label, program, weights, options, numerics)
    graph = _open_here(program, weights, options, numerics, label)
    return_memory()
    return graph


def _open_here(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    label: str,
) -> ComputedGraph:
    """Open a graph in this process, on its accelerators or, without or if it may fall back, on the
    CPU kernels."""
    if options.accelerators:
        graph = _open_accelerated(program, weights, options, numerics, label)
        if graph is not None:
            return graph
        options = replace(options, accelerators=())

    def lower(kernels: KernelUse) -> Lowered:
        return _lower(program, weights, options, numerics, kernels)

    if not options.caches or options.libraries:
        return open_lowered(lower, options, label)
    # Imported here: only servers cache graphs.
    from simipu.graph_cache import CachedLowering

    cached = CachedLowering(lower, program, weights, options, numerics)
    graph = open_lowered(cached.lower, options, label)
    cached.store()
    return graph


def _open_accelerated(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    label: str,
    *,
    is_confined: bool = False,
) -> ComputedGraph | None:
    """Return the graph on its accelerators, or None if it falls back. `is_confined`: this is an
    isolated child process."""
    if OpenVinoUse.is_fork and not options.accelerators[0].entry.on_gpu:
        return IsolatedGraph(label, program, weights, options, numerics)
    # Imported here: it imports onnx, and few models have accelerators.
    from simipu.accelerated import open_accelerated

    try:
        return open_accelerated(program, weights, options, numerics, label, is_confined=is_confined)
    except errors.AcceleratorError as error:
        if not options.falls_back:
            raise
        _log.warning("%s; the CPU kernels of ONNX Runtime compute it", error)
        return None


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
def _warn_of_missing_confinement() -> None:
    """Log once which confinements of a child the kernel does not support."""
    if missing := " and ".join(find_missing()):
        _log.warning("isolated graphs are computed without %s, which this system lacks", missing)


def open_lowered(
    make: Callable[[KernelUse], Lowered],
    options: GraphOptions,
    label: str,
    kernels: KernelUse | None = None,
) -> ComputedGraph:
    """Return a graph that `make` lowers, with `kernels` if they can be used (None: those of served
    graphs); `label` names the program in messages."""
    try:
        return make_graph(make(use_kernels() if kernels is None else kernels), options, label)
    except NoKernelError as error:
        _log.warning("program %s runs on the slow onnx reference: %s", label, error)
        return IsolatedGraph(label, make(KernelUse.NONE), {}, options, None)


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
        self._ask(("load", *self._source), seconds + min(seconds, _GRACE_SECONDS), decode_loaded)
        self._loaded = True

    def _ask(
        self,
        question: tuple[Any, ...],
        limit_seconds: float,
        decode: Callable[[bytearray], _Answer],
    ) -> _Answer:
        request = [encode_object(question)]
        max_bytes = self._options.memory_bytes + _OWN_BYTES
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


class BranchedGraph:
    """Computes the branch that the selector names with that branch's graph. `graphs` are the
    branches' graphs, in order.

    Results of the other branches are zeros, which take neither time nor memory.
    """

    def __init__(self, program: Program, graphs: Sequence[ComputedGraph]) -> None:
        self._program, self._graphs = program, graphs
        self._zeros = {
            stream.tensor: np.broadcast_to(np.zeros((), stream.dtype), stream.shape)
            for stream in program.streams
            if stream.direction is Direction.DEVICE_TO_HOST
        }

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs called `names`. Raises RunError for a selector that names no branch,
        and the errors of the branch's graph."""
        number = self._program.find_branch(feeds[self._program.selector])
        tensors = {
            stream.tensor: stream.direction for stream in self._program.branches[number].streams
        }
        wanted = [name for name in names if name in tensors]
        taken = {
            name: feeds[name] for name, way in tensors.items() if way is Direction.HOST_TO_DEVICE
        }
        made = dict(zip(wanted, self._graphs[number].run(wanted, taken), strict=True))
        return [made[name] if name in made else self._zeros[name] for name in names]

    def cancel(self) -> None:
        """Cancel the run in flight, of any branch."""
        for graph in self._graphs:
            graph.cancel()

    def close(self) -> None:
        """Close the graphs of all branches."""
        for graph in self._graphs:
            graph.close()


def serve(descriptor: int) -> None:
    """Answer the requests of the parent; this is the child's main function."""
    # Imported here: it imports argparse, which only commands need.
    from popef._tools.console import LineFormatter

    prepare(LineFormatter("simipu"))
    answer_requests(descriptor, _Answerer().answer)


class _Answerer:
    """The child's graph, and the limit of its memory."""

    def __init__(self) -> None:
        self._graph: ComputedGraph | None = None
        self._memory_bytes = 0

    def answer(self, channel: Channel) -> list[bytes]:
        """Return the answer to the next request, which comes from the parent."""
        question = channel.receive_object()
        loads = question[0] == "load"
        try:
            if loads:
                self._memory_bytes = question[3].memory_bytes
                self._graph = _open_in_child(*question[1:])
                return [encode_loaded()]
            assert self._graph is not None
            return [encode_arrays(self._graph.run(*question[1:]))]
        except (errors.LoadError, errors.RunError, errors.DeviceLostError) as error:
            return [encode_error(error)]
        except MemoryError:
            told = errors.describe_memory(self._memory_bytes)
            kind = errors.LoadMemoryError if loads else errors.RunMemoryError
            return [encode_error(kind(told))]


def _open_in_child(
    source: Program | Lowered | Trial,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    label: str,
) -> ComputedGraph | None:
    if isinstance(source, Trial):
        held = source.held_bytes
    else:
        lowered_weights = source.weights if isinstance(source, Lowered) else weights
        held = sum(value.nbytes for value in lowered_weights.values())
    limit_memory(options.memory_bytes + held * _WEIGHT_COPIES + _OWN_BYTES)
    if isinstance(source, Trial):
        source.work()
        return None
    if isinstance(source, Lowered):  # the parent has already logged that ONNX Runtime cannot
        return _refer(source)
    if options.accelerators:
        graph = _open_accelerated(source, weights, options, numerics, label, is_confined=True)
        if graph is not None:
            return graph
        options = replace(options, accelerators=())
    try:
        lowered = _lower(source, weights, options, numerics, use_kernels())
        return make_graph(lowered, options, label)
    except NoKernelError as error:
        _log.warning("program %s runs on the slow onnx reference: %s", label, error)
        return _refer(_lower(source, weights, options, numerics, KernelUse.NONE))


def _lower(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    kernels: KernelUse,
) -> Lowered:
    # Imported here: a process whose graphs are prepared, or computed by a child, never lowers one.
    from simipu.program_graphs import lower_program

    return lower_program(program, weights, options, numerics, kernels)


def _refer(lowered: Lowered) -> ComputedGraph:
    # Imported here: few models need the reference, which takes 10 MiB.
    from simipu.reference import ReferenceGraph

    return ReferenceGraph(lowered)
