"""Computed graph of a program, ready to run in this process with ONNX Runtime. For a graph without
kernels see `reference`, for one on OpenVINO or a GPU `accelerated`. `numerics` lowers the placed
graph, which the executable holds, to the computed one.

Weights are passed as arrays that are mapped from their file, and are not copied. Of streams this
module reads only the names; it knows nothing of rows or cycles.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from popef._tools.arrays import Array
from popef._tools.memory import usable_memory_bytes
from popef._tools.text import restore_characters
from simipu import errors
from simipu.accelerators import ChosenAccelerator
from simipu.engines.arenas import ARENAS
from simipu.engines.bound_memory import BoundMemory
from simipu.engines.libraries import OperatorLibrary, registered_libraries
from simipu.kernels import LIBRARY, find_kernels
from simipu.numerics.options import KernelUse
from simipu.processes.watchdog import WATCHDOG, EndedBy

if TYPE_CHECKING:
    import onnx

Weights = Mapping[str, Array]
Provider = str | tuple[str, dict[str, str]]
"""An execution provider of ONNX Runtime, or one with its options."""
CPU_PROVIDER = "CPUExecutionProvider"

ORT_ERRORS = (
    ort_errors.EPFail,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.RuntimeException,
    *((ort_errors.ModelLoadCanceled,) if hasattr(ort_errors, "ModelLoadCanceled") else ()),
    RuntimeError,
    ValueError,
    MemoryError,
)
"""Exceptions that ONNX Runtime raises for a graph or data that it cannot compute. Its classes have
no common base, and other exceptions of its C++ code appear as Python's."""

MAX_COPIED_WEIGHTS_BYTES = 256 << 10
"""Maximum size of a graph's weights that are copied instead of read in place. Runs of such a graph
are so short that the check of the mapped files before each would be a large part of them."""
MAX_THREADS = 1024
"""Maximum number of threads, more than any machine has cores; ONNX Runtime starts as many as it is
told to."""
OWN_BYTES = 1 << 30
"""Memory of a process that computes a graph, beside graph and weights: libraries, stacks and
answers."""
NO_DATA = Path(__file__).with_name("no_data") / "empty"
"""Empty file for ONNX Runtime, which requires that the file of external data exists, though it
never opens it for a value that it is given. Its folder contains nothing else."""
ORT_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
_BROKEN_OPTIMIZERS = ("ReshapeFusion",) if ORT_VERSION < (1, 31) else ()
"""Optimizers to disable for every graph, besides those of `Lowered.left_out`. Before 1.31 this one
leaves nodes without an input that others still need, and no session can be created from the graph;
packed transformers in half have such reshapes."""
_NO_MEMORY = ("Available memory of", "Failed to allocate memory", "bad_alloc")
"""Parts of ONNX Runtime's messages when memory does not suffice."""

INDEX_CHECKS = ("error", "clamp")
_NO_OPERATOR = "is not a registered function/op"
_NO_OPERATOR_HINT = (
    "; if it is a custom operator, name the library that has it: sim_custom_ops of a server's "
    "model, simipu.register_library in Python"
)

_log = logging.getLogger("simipu")
onnxruntime.disable_telemetry_events()


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options for computing a graph.

    num_threads: number of threads that one operator may use; 0 for all cores. prepack: let ONNX
    Runtime repack weights for speed, into its own memory; else they stay mapped. limit_seconds:
    maximum duration of one run. exact: round results to half or fp8 between operators as the chip
    does; else nothing is rounded there. ready_seconds: maximum time that ONNX Runtime may take to
    prepare the graph. memory_bytes: maximum size of a graph's values, without weights (default: the
    container's memory). in_order: compute nodes in the order of the graph; ONNX Runtime's own order
    leaves nodes that only inspect tensors to the end, which keeps all these tensors alive.
    optimise: let ONNX Runtime's optimisers rewrite the graph; without them the graph can serve as a
    reference, because some optimisers are wrong. index_check: effect of an index that is computed
    at run time and outside of its table (Gather, GatherElements, GatherND): "error" ends the run,
    "clamp" takes the nearest element. libraries: custom-operator libraries; the default is those of
    the process. caches: take the lowered graph from the user's cache, and write it there
    (`graph_cache`); graphs with custom operators are never cached. accelerators: what computes the
    graph instead of ONNX Runtime's CPU kernels, in the order of priority (`accelerated`).
    falls_back: compute on these kernels what an accelerator cannot; else loading fails. portable:
    lower to a graph that other machines compute, too; they may lack instructions of this one.
    """

    num_threads: int = 0
    prepack: bool = True
    limit_seconds: float = 300.0
    exact: bool = True
    ready_seconds: float = 300.0
    memory_bytes: int = field(default_factory=usable_memory_bytes)
    in_order: bool = False
    optimise: bool = True
    index_check: str = "error"
    libraries: tuple[OperatorLibrary, ...] = field(default_factory=registered_libraries)
    caches: bool = False
    accelerators: tuple[ChosenAccelerator, ...] = ()
    falls_back: bool = False
    portable: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.num_threads <= MAX_THREADS:
            raise errors.LoadError(
                f"num_threads: expected 0 to {MAX_THREADS}, found {self.num_threads}"
            )
        if self.index_check not in INDEX_CHECKS:
            expected = " or ".join(INDEX_CHECKS)
            raise errors.LoadError(f"index_check: expected {expected}, found {self.index_check!r}")
        for name in ("limit_seconds", "ready_seconds", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise errors.LoadError(f"{name}: expected more than 0, found {getattr(self, name)}")

    @property
    def num_cores(self) -> int:
        """Cores that one operator may use."""
        return self.num_threads or os.cpu_count() or 1


class ComputedGraph(Protocol):
    """Interface of a graph that can be run."""

    kernels: str
    """What computes it: the names of its accelerators, or else of the kernels of half precision
    (`simipu.kernels`), or `reference`."""
    reads_weights: bool
    """Whether runs read weights where they were given, which may be in a mapped file."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs called `names`. Raises RunError if values are rejected,
        DeviceLostError if the run did not end normally."""

    def cancel(self) -> None:
        """Cancel the run in flight, from any thread: it and all later runs raise
        RunCancelledError."""

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """Have the run in flight raise RunUnwantedError, from any thread, without waiting; later
        runs are not affected. `is_unwanted` is called when no other run can be ended in its place,
        perhaps in another thread: if it returns False, nothing happens."""

    def close(self) -> None:
        """Release everything that the graph holds."""


class NoKernelError(errors.LoadError):
    """ONNX Runtime lacks a kernel for an operator of the graph; the onnx reference has the
    operator."""


class OrtGraph:
    """A graph in ONNX Runtime. A run that exceeds its limit is ended at the next operator."""

    def __init__(
        self,
        model: bytes,
        weights: Weights,
        options: GraphOptions,
        *,
        fold: bool = True,
        left_out: Sequence[str] = (),
        providers: Sequence[Provider] = (CPU_PROVIDER,),
        entries: Mapping[str, str] | None = None,
    ) -> None:
        self.reads_weights = (
            sum(value.nbytes for value in weights.values()) > MAX_COPIED_WEIGHTS_BYTES
        )
        if not self.reads_weights:
            weights = {name: value.copy() for name, value in weights.items()}
        # ONNX Runtime reads the arrays in place, so they must live as long as the session.
        self._weights = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in weights.items()
        }
        session_options = _session_options(self._weights, options)
        for key, value in (entries or {}).items():
            session_options.add_session_config_entry(key, value)
        disabled = [*_BROKEN_OPTIMIZERS, *left_out, *([] if fold else ["ConstantFolding"])]
        # Before ONNX Runtime 1.21 nothing can end the creation of a session.
        cancel = getattr(session_options, "set_load_cancellation_flag", bool)
        loading = EndedBy(lambda: cancel(True))
        WATCHDOG.begin(loading, options.ready_seconds)
        try:
            with ARENAS.of(options.memory_bytes):
                self._session = onnxruntime.InferenceSession(
                    model,
                    session_options,
                    providers=providers,
                    disabled_optimizers=disabled,
                    enable_fallback=0,  # the fallback prints, and tries again
                )
        except ORT_ERRORS as error:
            if loading.terminate:
                raise errors.LoadTimeoutError(
                    f"ONNX Runtime did not make the graph ready within {options.ready_seconds:g} s "
                    "and was stopped"
                ) from error
            raise
        finally:
            WATCHDOG.end(loading)
        self._session._model_bytes = None  # noqa: SLF001  it is kept for providers that are set later
        # Without the checks of ONNX Runtime's Python class, which take a third of a small run.
        self._run = self._session._sess.run  # noqa: SLF001
        self.providers: list[str] = self._session.get_providers()
        """Names of the providers that compute: ONNX Runtime omits one that it cannot start."""
        self.kernels = find_kernels().instructions
        self._limit_seconds, self._memory_bytes = options.limit_seconds, options.memory_bytes
        self._run_options = onnxruntime.RunOptions()
        self._last: tuple[onnxruntime.RunOptions, int] | None = None
        """Options of the last run, with the number of the watchdog's looks at its start."""
        self._cancelled = False
        self._unwanted: onnxruntime.RunOptions | None = None
        self._memory = BoundMemory(self._session)
        self._on_cpu = tuple(providers) == (CPU_PROVIDER,)

    def can_fill(self, names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> bool:
        """Return whether `run` can write the outputs called `names` to memory of these types."""
        return self._on_cpu and self._memory.has_types(names, dtypes)

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Compute the outputs called `names`, with ONNX Runtime's values and rounding. `out` is
        memory for them, contiguous and of their types (`can_fill`), which is then the result."""
        # The options of the last run are used again unless the watchdog has looked meanwhile: a
        # termination that comes too late must not end the next run.
        last, self._last = self._last, None
        looks = WATCHDOG.num_looks
        options = last[0] if last and last[1] == looks else onnxruntime.RunOptions()
        self._run_options = options
        WATCHDOG.begin(options, self._limit_seconds)
        try:
            if self._cancelled:
                self._check_cancelled()
            if out is None:
                results: list[Array] = self._run(names, feeds, options)
            else:
                results = self._memory.run(names, feeds, out, options)
        except ORT_ERRORS as error:
            self._check_cancelled()
            if options is self._unwanted:
                raise errors.RunUnwantedError(errors.UNWANTED) from error
            if options.terminate:
                raise errors.RunTimeoutError(errors.describe_limit(self._limit_seconds)) from error
            if _lacked_memory(error):
                raise errors.RunMemoryError(errors.describe_memory(self._memory_bytes)) from error
            raise errors.RunError(str(error)) from error
        finally:
            WATCHDOG.end(options)
        self._last = options, looks
        return results

    def cancel(self) -> None:
        """Cancel the run at its next operator."""
        # The order matters: a run that has not seen the flag yet stored its options before it
        # checked.
        self._cancelled = True
        self._run_options.terminate = True

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """End the run at its next operator if it is unwanted."""

        def find_run() -> onnxruntime.RunOptions | None:
            options = self._run_options
            if not is_unwanted():
                return None
            self._unwanted = options
            return options

        WATCHDOG.end_soon(find_run)

    def close(self) -> None:
        """Do nothing: the session ends with its last reference."""

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise errors.RunCancelledError(errors.CANCELLED)


def _lacked_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A computed graph for ONNX Runtime: the model without its large weights, and the weights.
    `fold`: ONNX Runtime may compute, while it loads, what depends on no input, which cannot be
    cancelled. `reads`: the program's weights that the graph reads, or whose values it holds.
    `left_out`: ONNX Runtime's optimisers that would change an answer
    (`numerics.optimisers`).
    `sources`: the program's weight whose data a weight of the graph is, by the name of the latter;
    such data are in no other place of the graph. `rounds`: results are rounded to half or fp8,
    which is slow without kernels. `index_faults`: outputs that are above 0 if an index was out of
    range, with the title of the node that uses it (`numerics.indices`). `outputs`: those of a graph
    for OpenVINO, in their order. `compiled`: such
    a graph as OpenVINO has compiled it, with its weights; model and weights are empty then."""

    model: bytes
    weights: Mapping[str, Array]
    fold: bool = True
    left_out: Sequence[str] = ()
    reads: Sequence[str] = ()
    rounds: bool = False
    index_faults: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    compiled: bytes | memoryview = b""
    sources: Mapping[str, str] = field(default_factory=dict)


def use_kernels() -> KernelUse:
    """Return which kernels to compute graphs with: the fused ones if the library exists, else
    none."""
    return KernelUse.FUSED if find_kernels().are_there else KernelUse.NONE


def inline_weights(lowered: Lowered) -> onnx.ModelProto:
    """Return the model with its weights inside."""
    # Imported here: a process that loads prepared graphs does not need it.
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(lowered.model)
    for tensor in model.graph.initializer:
        if tensor.name in lowered.weights:
            tensor.CopyFrom(numpy_helper.from_array(lowered.weights[tensor.name], tensor.name))
    return model


def make_graph(lowered: Lowered, options: GraphOptions, label: str) -> OrtGraph:
    """Return a graph in ONNX Runtime; `label` names the program in messages.

    Raises LoadError if ONNX Runtime cannot compute the graph, NoKernelError if the onnx reference
    could, LoadTimeoutError and LoadMemoryError if the graph exceeds the limits in `options`.
    """
    try:
        return OrtGraph(
            lowered.model,
            lowered.weights,
            options,
            fold=lowered.fold,
            left_out=lowered.left_out,
        )
    except errors.LoadTimeoutError as error:
        raise errors.LoadTimeoutError(f"program {label}: {error}") from error
    except ort_errors.NotImplemented as error:
        raise NoKernelError(f"program {label}: {error}") from error
    except ORT_ERRORS as error:
        if _lacked_memory(error):
            raise errors.LoadMemoryError(
                f"program {label}: it needs more than its limit of {options.memory_bytes} bytes of "
                "memory (sim_memory_mib)"
            ) from error
        if not lowered.weights:
            hint = _NO_OPERATOR_HINT if _NO_OPERATOR in str(error) else ""
            raise errors.LoadError(
                f"ONNX Runtime cannot load program {label}: {error}{hint}"
            ) from error
        _log.info("program %s loads a copy of its weights: %s", label, error)
        data = inline_weights(lowered).SerializeToString()
        inlined = replace(lowered, model=data, weights={}, sources={})
        return make_graph(inlined, options, label)


def _session_options(
    weights: Mapping[str, onnxruntime.OrtValue], options: GraphOptions
) -> onnxruntime.SessionOptions:
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = options.num_threads
    # Fatal only: errors are raised, and an ended run is no error at exit.
    session.log_severity_level = 4
    # Worker threads spin for some 50 ms after a run and then sleep (the default), so that the next
    # run in a series finds them awake. Stopping them with the run costs up to a sixth of the speed,
    # never spinning up to half.
    if not options.optimise:
        session.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if options.in_order:
        session.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if not options.prepack:
        session.add_session_config_entry("session.disable_prepacking", "1")
    session.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(NO_DATA.parent)
    )
    session.add_session_config_entry("session.use_env_allocators", "1")
    # Else a product with a weight that is dequantized in blocks has activations of 8 bits.
    session.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if find_kernels().are_there:
        session.register_custom_ops_library(restore_characters(str(LIBRARY)))
    for library in options.libraries:
        session.register_custom_ops_library(restore_characters(library.path))
    for name, value in weights.items():
        session.add_initializer(name, value)
    return session
