"""Computed graph of a program, ready to run in this process with ONNX Runtime; for a graph without
kernels see `reference`. `numerics` lowers the placed graph, which the executable holds, to the
computed one.

Weights are passed as arrays that are mapped from their file, and are not copied. Of streams this
module reads only the names; it knows nothing of rows or cycles.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    GraphError,
    GraphTooLargeError,
    check_graph,
    check_tensors_only,
    element_bytes,
    find_inputs,
    infer_shapes,
    iter_nodes,
    iter_reads,
)
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from popef._tools.arrays import Array
from popef._tools.memory import usable_memory_bytes
from simipu import errors
from simipu.arenas import ARENAS
from simipu.demand import MAX_FOLDED_OPERATIONS, measure
from simipu.executable import Program
from simipu.kernels import LIBRARY, find_kernels, warn_of_none
from simipu.libraries import OperatorLibrary, register_library, registered_libraries
from simipu.numerics import KernelUse, Numerics, lower
from simipu.numerics.bodies import INDEX_CHECKS, clamp_indices
from simipu.numerics.kernels import KERNELS, set_threads
from simipu.numerics.quarter import QUARTERS, decode
from simipu.numerics.weights import keep_codes, multiplies_parts
from simipu.operators import operator_of
from simipu.streams import Direction
from simipu.watchdog import WATCHDOG

Weights = Mapping[str, Array]

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

MAX_THREADS = 1024
"""Maximum number of threads, more than any machine has cores; ONNX Runtime starts as many as it is
told to."""
_NO_DATA = Path(__file__).with_name("no_data") / "empty"
"""Empty file for ONNX Runtime, which requires that the file of external data exists, though it
never opens it for a value that it is given. Its folder contains nothing else."""
ORT_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
_BROKEN_OPTIMIZERS = ["ReshapeFusion"] if ORT_VERSION < (1, 31) else []
"""Optimizers to disable. Before 1.31 this one leaves nodes without an input that others still need,
and no session can be created from the graph; packed transformers in half have such reshapes."""
_NO_MEMORY = ("Available memory of", "Failed to allocate memory", "bad_alloc")
"""Parts of ONNX Runtime's messages when memory does not suffice."""

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
    the process.
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

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs called `names`. Raises RunError if values are rejected,
        DeviceLostError if the run did not end normally."""

    def cancel(self) -> None:
        """Cancel the run in flight, from any thread: it and all later runs raise
        RunCancelledError."""

    def close(self) -> None:
        """Release everything that the graph holds."""


class _Loading:
    """Creation of a session: setting `terminate` ends it. Before ONNX Runtime 1.21 nothing can."""

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._options = options
        self._ended = False

    @property
    def terminate(self) -> bool:
        """Return whether the creation was ended."""
        return self._ended

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._ended = value
        if hasattr(self._options, "set_load_cancellation_flag"):
            self._options.set_load_cancellation_flag(value)


class NoKernelError(errors.LoadError):
    """ONNX Runtime lacks a kernel for an operator of the graph; the onnx reference has the
    operator."""


class OrtGraph:
    """A graph in ONNX Runtime. A run that exceeds its limit is ended at the next operator."""

    def __init__(
        self, model: bytes, weights: Weights, options: GraphOptions, *, fold: bool = True
    ) -> None:
        # ONNX Runtime reads the arrays in place, so they must live as long as the session.
        self._weights = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in weights.items()
        }
        session_options = _session_options(self._weights, options)
        left_out = _BROKEN_OPTIMIZERS if fold else ["ConstantFolding", *_BROKEN_OPTIMIZERS]
        loading = _Loading(session_options)
        WATCHDOG.begin(loading, options.ready_seconds)
        try:
            with ARENAS.of(options.memory_bytes):
                self._session = onnxruntime.InferenceSession(
                    model,
                    session_options,
                    providers=["CPUExecutionProvider"],
                    disabled_optimizers=left_out,
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
        self._limit_seconds, self._memory_bytes = options.limit_seconds, options.memory_bytes
        self._run_options = onnxruntime.RunOptions()
        self._cancelled = False

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs called `names`, with ONNX Runtime's values and rounding."""
        # Each run has its own options: a termination that comes too late must not end the next run.
        options = self._run_options = onnxruntime.RunOptions()
        WATCHDOG.begin(options, self._limit_seconds)
        try:
            self._check_cancelled()
            results: list[Array] = self._session.run(names, feeds, options)
        except ORT_ERRORS as error:
            self._check_cancelled()
            if options.terminate:
                raise errors.RunTimeoutError(errors.describe_limit(self._limit_seconds)) from error
            if _lacked_memory(error):
                raise errors.RunMemoryError(errors.describe_memory(self._memory_bytes)) from error
            raise errors.RunError(str(error)) from error
        finally:
            WATCHDOG.end(options)
        return results

    def cancel(self) -> None:
        """Cancel the run at its next operator."""
        # The order matters: a run that has not seen the flag yet stored its options before it
        # checked.
        self._cancelled = True
        self._run_options.terminate = True

    def close(self) -> None:
        """Do nothing: the session ends with its last reference."""

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise errors.RunCancelledError(errors.CANCELLED)


def _lacked_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


def read_graph(program: Program) -> onnx.ModelProto:
    """Return the graph of a MAIN program. Raises LoadError for a damaged graph, for one that refers
    to anything outside the executable, and for one whose inputs and outputs differ from the
    program's streams."""
    try:
        model = onnx.load_model_from_string(program.graph)
        check_graph(model, without_weights=True)
        check_tensors_only(model)
    except (DecodeError, GraphError) as error:
        raise errors.LoadError(f"the graph of {program.title} is damaged: {error}") from error
    if any(node.domain == KERNELS for node in iter_nodes(model.graph)):
        raise errors.LoadError(
            f"the graph of {program.title} has a node of domain {KERNELS!r}, which no file may "
            "have: the loader makes such nodes; compile it with poprt again"
        )
    _check_operators(program, model)
    for way, kind, values in (
        (Direction.HOST_TO_DEVICE, "inputs", find_inputs(model.graph)),
        (Direction.DEVICE_TO_HOST, "outputs", model.graph.output),
    ):
        streamed = {stream.tensor for stream in program.streams if stream.direction is way}
        found = {value.name for value in values}
        if found != streamed:
            raise errors.LoadError(
                f"the graph of {program.title}: expected {kind} {_list(streamed)}, found "
                f"{_list(found)}; compile it with poprt again"
            )
    return model


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_operators(program: Program, model: onnx.ModelProto) -> None:
    """Raise LoadError for types that the chip does not have, such as sequences of unbounded
    size."""
    for node in iter_nodes(model.graph):
        operator = operator_of(node)
        if operator.refusal and not operator.counts_data and node.domain in STANDARD_DOMAINS:
            raise errors.LoadError(
                f"the graph of {program.title} has operator {node.op_type} (node {node.name!r}), "
                f"which is not supported: {operator.refusal}"
            )


@dataclass(frozen=True, slots=True)
class Lowered:
    """A computed graph for ONNX Runtime: the model without its large weights, and the weights.
    `fold`: ONNX Runtime may compute, while it loads, what depends on no input, which cannot be
    cancelled."""

    model: bytes
    weights: Mapping[str, Array]
    fold: bool = True


def use_kernels() -> KernelUse:
    """Return which kernels to compute graphs with: the fused ones if the library exists, else
    none."""
    return KernelUse.FUSED if find_kernels().are_there else KernelUse.NONE


def lower_program(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    kernels: KernelUse,
) -> Lowered:
    """Return the graph that computes what the chip would, or fp32 without `numerics`, with its
    weights in the types that it reads.

    Raises LoadError for a damaged graph, and for weights that are not on the device. Raises
    LoadTimeoutError and LoadMemoryError if the graph is known in advance to exceed the limits.
    """
    for library in options.libraries:
        register_library(library)
    model = read_graph(program)
    missing = [t.name for t in model.graph.initializer if _is_variable(t) and t.name not in weights]
    if missing:
        raise errors.LoadError(
            f"{program.title} needs the weights {', '.join(missing[:5])} on the device; run the "
            "load program with the weights' tensor data first"
        )
    for tensor in model.graph.initializer:
        if _is_variable(tensor) and not _holds(weights[tensor.name], tensor):
            raise errors.LoadError(
                f"{program.title}: expected weight {tensor.name!r} of shape {list(tensor.dims)}, "
                f"found shape {list(weights[tensor.name].shape)}; compile it with poprt again"
            )
    try:
        inferred = infer_shapes(model)
        if options.index_check == "clamp" and clamp_indices(model, inferred):
            inferred = infer_shapes(model)
        demand = measure(inferred)
        keeps = not options.prepack or multiplies_parts(model, numerics)
        lowered, values = lower_model(
            model, weights, numerics, inferred, kernels, keeps_codes=keeps
        )
    except errors.SimIpuError:
        raise
    except Exception as error:  # three libraries raise any exception for damaged data
        raise errors.LoadError(
            f"the graph of {program.title} is damaged: {type(error).__name__}: {error}"
        ) from error
    try:
        demand.check(options.memory_bytes, options.limit_seconds, options.num_cores)
    except GraphTooLargeError as error:
        raise errors.LoadMemoryError(f"{program.title}: {error}") from error
    set_threads(lowered.graph, options.num_cores)
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    is_narrow = kinds & {TensorProto.FLOAT16, *QUARTERS}
    if numerics is not None and is_narrow and not find_kernels().are_there:
        warn_of_none()
    folded = demand.folded_operations
    fold = folded is not None and folded <= MAX_FOLDED_OPERATIONS
    return Lowered(lowered.SerializeToString(), values, fold)


def _holds(value: Array, tensor: onnx.TensorProto) -> bool:
    """Return whether a weight has the declared size: ONNX Runtime would read beyond a smaller
    one."""
    num_bytes = element_bytes(tensor.data_type)
    return value.shape == tuple(tensor.dims) and value.dtype.itemsize == num_bytes


def lower_model(
    model: onnx.ModelProto,
    weights: Weights,
    numerics: Numerics | None,
    inferred: onnx.ModelProto | None = None,
    kernels: KernelUse = KernelUse.NONE,
    *,
    keeps_codes: bool = False,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Lower a model whose initializers without data are all among `weights`, and return it with the
    weights that it reads; `inferred` is the model with known shapes. With `keeps_codes` 8-bit
    weights stay a byte each, as the kernels read them anyway."""
    lowered = lower(model, numerics, inferred, kernels)
    if lowered is model:
        lowered = onnx.ModelProto()
        lowered.CopyFrom(model)
    quarters = {
        t.name: QUARTERS[t.data_type] for t in model.graph.initializer if t.data_type in QUARTERS
    }
    for tensor in lowered.graph.initializer:
        is_coded = tensor.data_type == TensorProto.UINT8 and tensor.name in quarters
        if is_coded and _is_variable(tensor):
            weights = {**weights, tensor.name: weights[tensor.name].view(np.uint8)}
            del quarters[tensor.name]
    if keeps_codes:
        weights = {**weights, **keep_codes(model.graph, lowered.graph, quarters, weights)}
    mapped, values = _find_mappable(lowered.graph), dict[str, Array]()
    for tensor in lowered.graph.initializer:
        if not _is_variable(tensor):
            continue
        name, value = tensor.name, weights[tensor.name]
        if name in quarters:
            value = decode(value.view(np.uint8), quarters[name])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if name in mapped and value.dtype == dtype and value.flags.c_contiguous:
            values[name] = value
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=_NO_DATA.name)
        else:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(dtype), name))
    return lowered, values


def _find_mappable(graph: onnx.GraphProto) -> set[str]:
    """Return the weights that ONNX Runtime can read in place, for every node that reads them.

    Its optimiser computes a node whose inputs are all constant, and looks for their values in the
    graph.
    """
    constants = {tensor.name for tensor in graph.initializer}
    mappable = set(constants)
    for node in graph.node:
        reads = set(iter_reads(node))
        is_constant = reads <= constants
        if is_constant:
            constants.update(node.output)
        reads_in_place = node.domain == KERNELS or operator_of(node).reads_mapped_weights
        if is_constant or not reads_in_place:
            mappable -= reads
    return mappable


def inline_weights(lowered: Lowered) -> onnx.ModelProto:
    """Return the model with its weights inside."""
    whole = onnx.load_model_from_string(lowered.model)
    for tensor in whole.graph.initializer:
        if tensor.name in lowered.weights:
            tensor.CopyFrom(numpy_helper.from_array(lowered.weights[tensor.name], tensor.name))
    return whole


def make_graph(lowered: Lowered, options: GraphOptions, label: str) -> OrtGraph:
    """Return a graph in ONNX Runtime; `label` names the program in messages.

    Raises LoadError if ONNX Runtime cannot compute the graph, NoKernelError if the onnx reference
    could, LoadTimeoutError and LoadMemoryError if the graph exceeds the limits in `options`.
    """
    try:
        return OrtGraph(lowered.model, lowered.weights, options, fold=lowered.fold)
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
        whole = inline_weights(lowered).SerializeToString()
        return make_graph(Lowered(whole, {}, lowered.fold), options, label)


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
        "session.model_external_initializers_file_folder_path", str(_NO_DATA.parent)
    )
    session.add_session_config_entry("session.use_env_allocators", "1")
    if find_kernels().are_there:
        session.register_custom_ops_library(str(LIBRARY))
    for library in options.libraries:
        session.register_custom_ops_library(library.path)
    for name, value in weights.items():
        session.add_initializer(name, value)
    return session


def _is_variable(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)
