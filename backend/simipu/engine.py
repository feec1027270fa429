"""Runs the programs of an executable: pulls input streams, computes, pushes output streams.

The engine sees rows, never requests: who connects a stream decides whose rows they are. One thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from simipu.device import Device
from simipu.errors import LoadError, RunError
from simipu.executable import Direction, Executable, Program, ProgramKind, Stream
from simipu.numerics import lower

Array = npt.NDArray[Any]
ReadCallback = Callable[[int], Array]
"""Given the most rows the batch has place for, returns 1 to that many rows: an array of shape (rows, *row shape)."""
WriteCallback = Callable[[Array], None]
"""Takes the computed rows, shape (rows, *row shape); the array is the callee's to keep."""

ORT_ERRORS = (
    ort_errors.EPFail,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.RuntimeException,
)
"""What ONNX Runtime raises for a graph or data that it cannot compute; its classes have no base of their own."""

_log = logging.getLogger("simipu")
onnxruntime.disable_telemetry_events()


class Engine:
    """Holds an executable on a device and runs its programs.

    Rows: where all streams of a MAIN program share their leading dimension, that is the compiled batch and a row is
    what follows it; otherwise the program has a batch of one, whose only row is the whole tensor. Fewer rows than the
    batch are computed alone where the program is row independent, else padded with zeros as the real runtime does.

    `num_threads` is the number of threads one operator may use; 0 leaves it to ONNX Runtime (all cores).
    """

    def __init__(self, executable: Executable, device: Device, *, num_threads: int = 0) -> None:
        device.check_fits(executable)
        self.executable = executable
        self.device = device
        self._num_threads = num_threads
        self._reads: dict[str, ReadCallback] = {}
        self._writes: dict[str, WriteCallback] = {}
        self._variables: dict[str, Array] = {}
        self._mains: dict[int, _LoadedMain] = {}

    def connect_input(self, handle: str, callback: ReadCallback) -> None:
        """Have the input stream `handle` filled by `callback`; a later call replaces an earlier one."""
        self._reads[self._check_handle(handle, Direction.HOST_TO_DEVICE)] = callback

    def connect_output(self, handle: str, callback: WriteCallback) -> None:
        """Have the output stream `handle` drained by `callback`; an unconnected output is dropped."""
        self._writes[self._check_handle(handle, Direction.DEVICE_TO_HOST)] = callback

    def load(self, index: int) -> None:
        """Build the MAIN program `index`, so that its first run is as fast as the next.

        Needs the device variables that its LOAD program brings. Raises LoadError when the graph cannot be built.
        """
        program = self.executable.program(index)
        self._mains[index] = _LoadedMain(program, self._variables, self._num_threads)

    def run(self, index: int) -> int:
        """Run program `index` once and return how many rows it computed (0 for a LOAD or SAVE program).

        Raises RunError for a stream that is not connected or delivers a wrong shape or dtype, and for values that an
        operator refuses, such as an index outside its table.
        """
        program = self.executable.program(index)
        if program.kind is ProgramKind.LOAD:
            self._run_load(program)
            return 0
        if program.kind is ProgramKind.SAVE:
            self._run_save(program)
            return 0
        if index not in self._mains:
            self.load(index)
        return self._mains[index].run(self._reads, self._writes)

    def _check_handle(self, handle: str, direction: Direction) -> str:
        known = {s.handle for p in self.executable.programs for s in p.streams if s.direction is direction}
        if handle not in known:
            raise RunError(
                f"executable {self.executable.name!r} has no {direction.name.lower()} stream {handle!r}; "
                f"it has {', '.join(sorted(known)) or 'none'}"
            )
        return handle

    def _run_load(self, program: Program) -> None:
        for stream in program.streams:
            value = _read(stream, self._reads, 1)
            _check(stream, value, (1, *stream.shape))
            self._variables[stream.tensor] = value[0]
        self._mains.clear()

    def _run_save(self, program: Program) -> None:
        for stream in program.streams:
            if stream.handle in self._writes:
                self._writes[stream.handle](self._variables[stream.tensor][None])


class _LoadedMain:
    """A MAIN program ready to run: its streams sorted out once, its graph in ONNX Runtime."""

    def __init__(self, program: Program, variables: dict[str, Array], num_threads: int) -> None:
        self.inputs = [s for s in program.streams if s.direction is Direction.HOST_TO_DEVICE]
        self.outputs = [s for s in program.streams if s.direction is Direction.DEVICE_TO_HOST]
        self.batch_size = batch_size(program)
        self.row_independent = program.row_independent
        self._name = program.name
        self._names = [stream.tensor for stream in self.outputs]
        self._graph = _build(program, variables, num_threads)

    def run(self, reads: dict[str, ReadCallback], writes: dict[str, WriteCallback]) -> int:
        rows, feeds = self._pull(reads)
        try:
            results = self._graph.run(self._names, feeds)
        except ORT_ERRORS as error:
            raise RunError(f"program {self._name!r}: {error}") from error
        for stream, result in zip(self.outputs, results, strict=True):
            write = writes.get(stream.handle)
            if write is not None:
                write(result[None] if not self.batch_size else result if len(result) == rows else result[:rows])
        return rows

    def _pull(self, reads: dict[str, ReadCallback]) -> tuple[int, dict[str, Array]]:
        rows = 0
        feeds = {}
        for stream in self.inputs:
            value = _read(stream, reads, self.batch_size or 1)
            if rows and len(value) != rows:
                raise RunError(
                    f"stream {stream.handle!r} delivered {len(value)} rows, the streams before it {rows}; enqueue the same "
                    "number of rows to every input"
                )
            rows = len(value)
            feeds[stream.tensor] = self._shape(stream, value, rows)
        return rows, feeds

    def _shape(self, stream: Stream, value: Array, rows: int) -> Array:
        if not self.batch_size:
            _check(stream, value, (1, *stream.shape))
            return np.asarray(value[0])
        _check(stream, value, (rows, *stream.shape[1:]))
        if rows == self.batch_size or self.row_independent:
            return value
        padded = np.zeros(stream.shape, stream.dtype)
        padded[:rows] = value
        return padded


def batch_size(program: Program) -> int:
    """The compiled batch of a MAIN program: the leading dimension that all its streams share, or 0 if they do not."""
    leading = {stream.shape[:1] for stream in program.streams}
    if len(leading) != 1:
        return 0
    (shape,) = leading
    return shape[0] if shape else 0


def _read(stream: Stream, reads: dict[str, ReadCallback], most: int) -> Array:
    try:
        callback = reads[stream.handle]
    except KeyError:
        raise RunError(f"input stream {stream.handle!r} (tensor {stream.tensor!r}) is not connected") from None
    return callback(most)


def _check(stream: Stream, value: Array, shape: tuple[int, ...]) -> None:
    if value.shape != shape or value.dtype != stream.dtype:
        raise RunError(
            f"stream {stream.handle!r}: expected {stream.dtype.name} of shape {shape}, "
            f"found {value.dtype.name} of shape {value.shape}"
        )


def _build(program: Program, variables: dict[str, Array], num_threads: int) -> Any:
    """Something whose run(names, feeds) returns the outputs: ONNX Runtime, or the onnx reference where it has no kernel."""
    try:
        model = onnx.load_model_from_string(program.graph)
    except DecodeError as error:
        raise LoadError(f"the graph of program {program.index} ({program.name}) is damaged: {error}") from error
    missing = [t.name for t in model.graph.initializer if _is_variable(t) and t.name not in variables]
    if missing:
        raise LoadError(
            f"program {program.index} ({program.name}) needs the weights {', '.join(missing[:5])} on the device; "
            "run the load program with the weights' tensor data first"
        )
    lowered = lower(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3
    # Idle worker threads must not take the cores from the server and the other instances.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    weights = {t.name: _as_value(t, variables[t.name]) for t in lowered.graph.initializer if _is_variable(t)}
    if weights:
        options.add_external_initializers(
            list(weights), [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        )
    try:
        return onnxruntime.InferenceSession(lowered.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ort_errors.NotImplemented as error:
        _log.warning("program %s runs on the slow onnx reference: %s", program.name, error)
        return ReferenceEvaluator(_with_weights(lowered, weights))
    except ORT_ERRORS as error:
        raise LoadError(f"ONNX Runtime cannot load program {program.index} ({program.name}): {error}") from error


def _is_variable(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _as_value(tensor: onnx.TensorProto, value: Array) -> Array:
    """A variable in the type of the lowered graph: halves widened, everything else as it is."""
    return np.ascontiguousarray(value, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _with_weights(model: onnx.ModelProto, weights: dict[str, Array]) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    return model
