"""Opens the graph of a program on the first engine that can compute it: its accelerators, ONNX
Runtime's CPU kernels, or the onnx reference.

An engine is an entry of a table: what lowers the graph for it, and what opens the lowered graph.
Lowered graphs are taken from the user's cache if the options say so (`graph_cache`). A graph is
opened in this process, or in a child process (`isolation`), which opens it by the same table. A
fused program has a graph for each of its branches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from popef._tools.arrays import Array
from popef._tools.memory import return_memory
from simipu.accelerators import OpenVinoUse, join_names, uses_openvino
from simipu.engines.computed import (
    ComputedGraph,
    GraphOptions,
    Lowered,
    NoKernelError,
    Weights,
    make_graph,
    use_kernels,
)
from simipu.errors import AcceleratorError, LoadError
from simipu.executable import Program
from simipu.numerics.options import KernelUse, Numerics
from simipu.streams import Direction

if TYPE_CHECKING:
    from simipu.engines.graph_cache import CacheEntry

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class _Opening:
    """A graph to open: what lowers it to a set of kernels, how it is computed, and what messages
    call its program. `kernels`: those of ONNX Runtime's graphs. `find_entry` returns where a later
    load finds the lowered graph."""

    lower: Callable[[KernelUse, GraphOptions], Lowered]
    options: GraphOptions
    label: str
    kernels: KernelUse
    find_entry: Callable[[KernelUse, GraphOptions], CacheEntry | None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine: `find_kernels` returns the kernels that it needs the graph to be lowered to.
    `refusal` is raised for a graph that the next engine may compute, and logged as `told`. `export`
    returns what the cache holds, in at most some bytes, of a graph that was opened."""

    find_kernels: Callable[[_Opening], KernelUse]
    open: Callable[[Lowered, _Opening], ComputedGraph]
    refusal: type[LoadError]
    told: str
    export: Callable[[ComputedGraph, Lowered, int], Lowered] = lambda _, lowered, __: lowered


def _find_none(_: _Opening) -> KernelUse:
    return KernelUse.NONE


def _open_accelerated(lowered: Lowered, opening: _Opening) -> ComputedGraph:
    # Imported here, as in all that few models need.
    from simipu.engines.accelerated import open_accelerated

    return open_accelerated(lowered, opening.options, opening.label)


def _export_accelerated(graph: ComputedGraph, lowered: Lowered, max_bytes: int) -> Lowered:
    from simipu.engines.accelerated import export_accelerated

    return export_accelerated(graph, lowered, max_bytes)


def _open_onnxruntime(lowered: Lowered, opening: _Opening) -> ComputedGraph:
    return make_graph(lowered, opening.options, opening.label)


def _open_reference(lowered: Lowered, opening: _Opening) -> ComputedGraph:
    from simipu.processes.sandbox import Confinement

    if not Confinement.is_active:
        from simipu.engines.isolation import IsolatedGraph

        return IsolatedGraph(opening.label, lowered, {}, opening.options, None)
    from simipu.engines.reference import ReferenceGraph

    return ReferenceGraph(lowered)


_ACCELERATORS = _Engine(
    _find_none,
    _open_accelerated,
    AcceleratorError,
    "program %s: the CPU kernels of ONNX Runtime compute it: %s",
    _export_accelerated,
)
_ONNXRUNTIME = _Engine(
    lambda opening: opening.kernels,
    _open_onnxruntime,
    NoKernelError,
    "program %s runs on the slow onnx reference: %s",
)
_REFERENCE = _Engine(_find_none, _open_reference, LoadError, "")


def _find_engines(options: GraphOptions) -> Sequence[_Engine]:
    """Return the engines that may compute a graph, in the order in which they are tried."""
    if not options.accelerators:
        return _ONNXRUNTIME, _REFERENCE
    return (_ACCELERATORS, _ONNXRUNTIME, _REFERENCE) if options.falls_back else (_ACCELERATORS,)


def _open(opening: _Opening) -> ComputedGraph:
    """Return the graph on the first engine that can compute it."""
    *first, last = _find_engines(opening.options)
    for engine in first:
        try:
            return _open_on(engine, opening)
        except engine.refusal as error:
            _log.warning(engine.told, opening.label, error)
        opening = replace(opening, options=replace(opening.options, accelerators=()))
    return _open_on(last, opening)


def _open_on(engine: _Engine, opening: _Opening) -> ComputedGraph:
    kernels = engine.find_kernels(opening)
    entry = opening.find_entry(kernels, opening.options)
    if entry is None:
        return engine.open(opening.lower(kernels, opening.options), opening)
    stored = _open_entry(entry, engine, opening)
    if stored is not None:
        return stored
    lowered = opening.lower(kernels, opening.options)
    graph = engine.open(lowered, opening)
    exported = engine.export(graph, lowered, entry.max_bytes)
    if exported is lowered:
        entry.write(lowered)
        return graph
    # The exported graph takes less memory: it stays in its file, which all processes share. Another
    # instance may have written it meanwhile.
    if entry.read() is None:
        entry.write(exported)
    return _open_entry(entry, engine, opening) or graph


def _open_entry(entry: CacheEntry, engine: _Engine, opening: _Opening) -> ComputedGraph | None:
    """Return the graph of the cache, or None if there is none that the engine can open."""
    lowered = entry.read()
    try:
        return None if lowered is None else engine.open(lowered, opening)
    except engine.refusal as error:
        _log.warning(
            "program %s is lowered again, not read from the cache: %s", opening.label, error
        )
    return None


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
    label = _make_label(program)
    if isolated or (OpenVinoUse.is_fork and uses_openvino(options.accelerators)):
        from simipu.engines.isolation import IsolatedGraph, warn_of_missing_confinement

        if isolated:
            warn_of_missing_confinement()
        return IsolatedGraph(label, program, weights, options, numerics)
    graph = _open(_make_opening(program, weights, options, numerics))
    return_memory()
    return graph


def open_confined(
    source: Program | Lowered,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    label: str,
) -> ComputedGraph:
    """Return the graph of a program in this process, the child of an isolated graph. A lowered
    graph is one that the parent cannot compute: it is opened in the onnx reference. Raises the
    errors of `open_graph`."""
    if isinstance(source, Lowered):
        return _open_on(_REFERENCE, _Opening(lambda *_: source, options, label, KernelUse.NONE))
    return _open(_make_opening(source, weights, options, numerics, is_confined=True))


def open_lowered(
    make: Callable[[KernelUse], Lowered],
    options: GraphOptions,
    label: str,
    kernels: KernelUse | None = None,
) -> ComputedGraph:
    """Return a graph that `make` lowers, with `kernels` if they can be used (None: those of served
    graphs); `label` names the program in messages."""
    kernel_set = use_kernels() if kernels is None else kernels
    return _open(_Opening(lambda kernels, _: make(kernels), options, label, kernel_set))


def _make_opening(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    *,
    is_confined: bool = False,
) -> _Opening:
    def lower(kernels: KernelUse, options: GraphOptions) -> Lowered:
        # Imported here: a process whose graphs are cached, or computed by a child, never lowers.
        if options.accelerators:
            from simipu.engines.admission import lower_accelerated

            return lower_accelerated(program, weights, options, numerics, is_confined=is_confined)
        from simipu.engines.program_graphs import lower_program

        return lower_program(program, weights, options, numerics, kernels)

    def find_entry(kernels: KernelUse, options: GraphOptions) -> CacheEntry | None:
        if is_confined or options.libraries or not options.caches:
            return None
        # Imported here: only servers cache graphs.
        from simipu.engines.graph_cache import CacheEntry

        return CacheEntry(program, weights, options, numerics, kernels)

    label = _make_label(program)
    return _Opening(lower, options, label, use_kernels(), find_entry)


def _make_label(program: Program) -> str:
    return f"{program.index} ({program.name})"


class BranchedGraph:
    """Computes the branch that the selector names with that branch's graph. `graphs` are the
    branches' graphs, in order.

    Results of the other branches are zeros, which take neither time nor memory.
    """

    def __init__(self, program: Program, graphs: Sequence[ComputedGraph]) -> None:
        self._program, self._graphs = program, graphs
        self.kernels = join_names(graph.kernels for graph in graphs)
        self.reads_weights = any(graph.reads_weights for graph in graphs)
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
        branch_outputs = [name for name in names if name in tensors]
        branch_feeds = {
            name: feeds[name] for name, way in tensors.items() if way is Direction.HOST_TO_DEVICE
        }
        results = dict(
            zip(branch_outputs, self._graphs[number].run(branch_outputs, branch_feeds), strict=True)
        )
        return [results[name] if name in results else self._zeros[name] for name in names]

    def cancel(self) -> None:
        """Cancel the run in flight, of any branch."""
        for graph in self._graphs:
            graph.cancel()

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """End the run in flight, of any branch, if it is unwanted."""
        for graph in self._graphs:
            graph.end_run(is_unwanted)

    def close(self) -> None:
        """Close the graphs of all branches."""
        for graph in self._graphs:
            graph.close()
