"""A program's graph, ready to compute: ONNX Runtime in this process, or the onnx reference where it has no kernel.

Weights are handed over as arrays that are mapped from their file, and stay there. No streams, rows or cycles here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from simipu.errors import LoadError, LoadTimeoutError, RunCancelledError, RunError, RunTimeoutError
from simipu.executable import Program
from simipu.numerics import Numerics, iter_subgraphs, lower
from simipu.numerics.quarter import QUARTERS, decode
from simipu.watchdog import WATCHDOG

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]

ORT_ERRORS = (
    ort_errors.EPFail,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.RuntimeException,
    *((ort_errors.ModelLoadCanceled,) if hasattr(ort_errors, "ModelLoadCanceled") else ()),
)
"""What ONNX Runtime raises for a graph or data that it cannot compute; its classes have no base of their own."""

_MAPPABLE_OPERATORS = ("Gather", "Gemm", "MatMul")
_NO_FILE = Path("/dev/null")

_log = logging.getLogger("simipu")
onnxruntime.disable_telemetry_events()


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How a graph is computed, and, unless it is `exact`, what: then nothing is rounded to half or fp8 between operators.

    num_threads: threads that one operator may use, 0 for all cores. prepack: let ONNX Runtime repack weights for speed,
    into memory of its own; without, all weights stay where they are mapped. limit_seconds: the longest that one run may take.
    ready_seconds: the longest that ONNX Runtime may take to make the graph ready.
    """

    num_threads: int = 0
    prepack: bool = True
    limit_seconds: float = 300.0
    exact: bool = True
    ready_seconds: float = 300.0


class Graph(Protocol):
    """Something that computes."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs called `names`; RunError when values are refused, DeviceLostError when the run did not end well."""

    def cancel(self) -> None:
        """End the run in flight, from any thread: it raises RunCancelledError, as all that follow do."""

    def close(self) -> None:
        """Give up everything that the graph holds."""


class _Loading:
    """The making of a session, as the watchdog sees it: setting `terminate` ends it. Before ONNX Runtime 1.21 nothing does."""

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._options = options
        self._ended = False

    @property
    def terminate(self) -> bool:
        """Whether it was ended."""
        return self._ended

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._ended = value
        if hasattr(self._options, "set_load_cancellation_flag"):
            self._options.set_load_cancellation_flag(value)


class OrtGraph:
    """A graph in ONNX Runtime. A run that exceeds its limit is ended at the next operator."""

    def __init__(self, model: bytes, weights: Weights, options: GraphOptions) -> None:
        # ONNX Runtime reads the arrays where they are, so they must live as long as the session.
        self._weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in weights.items()}
        session_options = _session_options(self._weights, options)
        loading = _Loading(session_options)
        WATCHDOG.begin(loading, options.ready_seconds)
        try:
            self._session = onnxruntime.InferenceSession(model, session_options, providers=["CPUExecutionProvider"])
        except ORT_ERRORS as error:
            if loading.terminate:
                raise LoadTimeoutError(
                    f"ONNX Runtime did not make the graph ready within {options.ready_seconds:g} s and was stopped"
                ) from error
            raise
        finally:
            WATCHDOG.end(loading)
        self._limit_seconds = options.limit_seconds
        self._run_options = onnxruntime.RunOptions()
        self._cancelled = False

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute; the values are ONNX Runtime's, in its rounding."""
        # Its own for each run: what ends one, too late, must not end the next.
        options = self._run_options = onnxruntime.RunOptions()
        WATCHDOG.begin(options, self._limit_seconds)
        try:
            self._check_cancelled()
            results: list[Array] = self._session.run(names, feeds, options)
        except ORT_ERRORS as error:
            self._check_cancelled()
            if options.terminate:
                raise RunTimeoutError(describe_limit(self._limit_seconds)) from error
            raise RunError(str(error)) from error
        finally:
            WATCHDOG.end(options)
        return results

    def cancel(self) -> None:
        """End the run at its next operator."""
        # In this order: a run that has not seen the first yet has shown its options before it looked.
        self._cancelled = True
        self._run_options.terminate = True

    def close(self) -> None:
        """Nothing to do: the session goes with the last reference."""

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise RunCancelledError(CANCELLED)


class ReferenceGraph:
    """A graph in the onnx reference implementation: slow, exact, without a limit on its time."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model)

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute operator by operator in numpy."""
        results = self._evaluator.run(list(names), dict(feeds))
        return list(results)

    def cancel(self) -> None:
        """Nothing to end: the evaluator takes no signal, its run goes on to its end."""

    def close(self) -> None:
        """Nothing to give up."""


CANCELLED = "the run was ended: its session was stopped"


def describe_limit(seconds: float) -> str:
    """What a run that was ended is told."""
    return (
        f"a run took longer than its limit of {seconds:g} s and was ended (the limit is target.hostSyncTimeout of "
        "POPLAR_RUNTIME_OPTIONS)"
    )


def lower_program(program: Program, weights: Weights, numerics: Numerics | None) -> tuple[bytes, dict[str, Array]]:
    """The serialised graph that computes what the chip would, or fp32 without `numerics`, and its weights in the types that
    this graph takes.

    Raises LoadError for a damaged graph, and for weights that are not on the device.
    """
    try:
        model = onnx.load_model_from_string(program.graph)
    except DecodeError as error:
        raise LoadError(f"the graph of program {program.index} ({program.name}) is damaged: {error}") from error
    missing = [t.name for t in model.graph.initializer if _is_variable(t) and t.name not in weights]
    if missing:
        raise LoadError(
            f"program {program.index} ({program.name}) needs the weights {', '.join(missing[:5])} on the device; "
            "run the load program with the weights' tensor data first"
        )
    lowered, values = lower_model(model, weights, numerics)
    return lowered.SerializeToString(), values


def lower_model(
    model: onnx.ModelProto, weights: Weights, numerics: Numerics | None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The same for a model whose initializers without data are all among `weights`."""
    lowered = lower(model, numerics)
    if lowered is model:
        lowered = onnx.ModelProto()
        lowered.CopyFrom(model)
    quarters = {t.name: QUARTERS[t.data_type] for t in model.graph.initializer if t.data_type in QUARTERS}
    mapped = _find_mappable(lowered.graph)
    values = {}
    for tensor in lowered.graph.initializer:
        if not _is_variable(tensor):
            continue
        name, value = tensor.name, weights[tensor.name]
        if name in quarters:
            value = decode(value.view(np.uint8), quarters[name])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if name in mapped and value.dtype == dtype and value.flags.c_contiguous:
            values[name] = value
            # ONNX Runtime wants the file of external data to exist, though it never opens it for a value it is given.
            tensor.external_data[0].CopyFrom(onnx.StringStringEntryProto(key="location", value=_NO_FILE.name))
        else:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(dtype), name))
    return lowered, values


def _find_mappable(graph: onnx.GraphProto) -> set[str]:
    """Weights that ONNX Runtime takes as they lie: those of a few operators whose weights are large. Others its optimizers
    rewrite (convolutions into a layout of their own), and some do not know that a value was given."""
    mappable = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in _MAPPABLE_OPERATORS:
            mappable.difference_update(node.input)
        for subgraph in iter_subgraphs(node):
            mappable.difference_update(_iter_names(subgraph))
    return mappable


def _iter_names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        for subgraph in iter_subgraphs(node):
            yield from _iter_names(subgraph)


def _inline(model: bytes, weights: Weights) -> onnx.ModelProto:
    """The model with its weights inside."""
    whole = onnx.load_model_from_string(model)
    for tensor in whole.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return whole


def build_graph(program: Program, weights: Weights, options: GraphOptions, numerics: Numerics | None) -> Graph:
    """The graph of a MAIN program with the device's weights; LoadError when nothing here can compute it."""
    model, values = lower_program(program, weights, numerics)
    return make_graph(model, values, options, f"{program.index} ({program.name})")


def make_graph(model: bytes, weights: Weights, options: GraphOptions, label: str) -> Graph:
    """The same for a graph that is lowered already; `label` names the program in messages. LoadTimeoutError after too long."""
    try:
        return OrtGraph(model, weights, options)
    except LoadTimeoutError as error:
        raise LoadTimeoutError(f"program {label}: {error}") from error
    except ort_errors.NotImplemented as error:
        _log.warning("program %s runs on the slow onnx reference: %s", label, error)
        return ReferenceGraph(_inline(model, weights))
    except ORT_ERRORS as error:
        if not weights:
            raise LoadError(f"ONNX Runtime cannot load program {label}: {error}") from error
        _log.info("program %s takes a copy of its weights: %s", label, error)
        return make_graph(_inline(model, weights).SerializeToString(), {}, options, label)


def _session_options(weights: Mapping[str, onnxruntime.OrtValue], options: GraphOptions) -> onnxruntime.SessionOptions:
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = options.num_threads
    # Fatal: errors are raised, and that a run was ended is no error at exit.
    session.log_severity_level = 4
    # Worker threads keep ONNX Runtime's default: they spin for some 50 ms after a run and then sleep, so that a run in a series
    # finds them awake. Stopping them with the run costs up to a sixth of the speed, never letting them spin up to half.
    if not options.prepack:
        session.add_session_config_entry("session.disable_prepacking", "1")
    session.add_session_config_entry("session.model_external_initializers_file_folder_path", str(_NO_FILE.parent))
    for name, value in weights.items():
        session.add_initializer(name, value)
    return session


def _is_variable(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)
