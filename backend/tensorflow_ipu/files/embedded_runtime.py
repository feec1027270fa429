"""Embedded runtime: calls of a compiled executable within a TensorFlow graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tensorflow_ipu.files.application_runtime import (
    DEFAULT_TIMEOUT_US,
    application_call,
    application_runtime,
)
from tensorflow_ipu.files.executable_message import decode_message
from tensorflow_ipu.files.popef_files import Streams, read_first_blob, read_streams
from tensorflow_ipu.messages import poplar_executable_pb2 as pb

_TYPES = {2: tf.int8, 4: tf.int32, 6: tf.uint8, 10: tf.float16, 11: tf.float32}
"""Types of TensorFlow by XLA's PrimitiveType: those that the operators accept."""


class EmbeddedRuntimeError(Exception):
    """Inputs that are not those of the executable."""


class RuntimeContext:
    """An engine: a running executable.

    Do not construct it: `embedded_runtime_start` and `embedded_runtime_start_and_call` return it.
    """

    def __init__(
        self,
        name: str,
        executable_file: Any,
        executable_proto: pb.PoplarExecutableProto,
        start_output: Any,
        streams: Streams | None = None,
    ) -> None:
        self._name = name
        self._executable_file = executable_file
        self._executable_proto = executable_proto
        self._start_output = start_output
        self._streams = streams

    def start_output(self) -> Any:
        """Return the tensor of the operation that starts the engine."""
        return self._start_output

    def name(self) -> str:
        """Return the name of the engine."""
        return self._name

    def signature(self) -> pb.Signature:
        """Return the message of the executable's inputs and outputs."""
        return self._executable_proto.embedded_runtime_config.signature

    def output_types(self) -> list[Any]:
        """Return the TensorFlow types of the outputs."""
        return [_find_type(output) for output in self.signature().streamed_outputs]

    def streams(self) -> Streams:
        """Return what a run of the executable exchanges with the host (our addition)."""
        if self._streams is None:
            self._streams = read_streams(_find_path(self._executable_file))
        return self._streams


def _find_type(tensor: pb.Input | pb.Output) -> Any:
    if tensor.shape.element_type not in _TYPES:
        raise EmbeddedRuntimeError(
            f"'{tensor.name}': expected one of the types "
            f"{', '.join(dtype.name for dtype in _TYPES.values())}, found XLA's type "
            f"{tensor.shape.element_type}, which the embedded runtime does not have"
        )
    return _TYPES[tensor.shape.element_type]


def _find_opaque_blob(filename_tensor: Any) -> bytes:
    """Return the first opaque blob of a file, whose path is a tensor or text."""
    return read_first_blob(_find_path(filename_tensor))


def _find_path(filename: Any) -> str:
    if tf.is_tensor(filename):
        value = tf.get_static_value(filename)
        if value is None:
            with tf.device("CPU"), tf.compat.v1.Session(graph=filename.graph) as session:
                value = session.run(filename)
        filename = value.item() if hasattr(value, "item") else value
    return os.fsdecode(filename)


def embedded_runtime_start(
    executable_file: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    name: str,
    timeout: int | None = None,
) -> RuntimeContext:
    """Start an engine that runs an executable.

    Args:
        executable_file: Path of the executable's file, as text or a string tensor.
        inputs: Values of variables and arguments that the file does not hold: a list, a tuple, or a
            dictionary by XLA's names, such as `XLA_Args/d1/bias`.
        name: Name of the engine.
        timeout: How long a pipelined model waits for the next batch before it continues without
            it, in microseconds; 5000 by default.

    Returns:
        The context that `embedded_runtime_call` takes.

    Raises:
        EmbeddedRuntimeError: If the inputs are not those of the executable.
        ExecutableFileError: If the file is no executable of TensorFlow for the IPU.
    """
    path = _find_path(executable_file)
    message = decode_message(read_first_blob(path), path)
    expected = message.embedded_runtime_config.signature.inputs
    values = _list_inputs(inputs, expected)
    _check_count("Embedded application runtime", values, expected)
    for place, (value, entry) in enumerate(zip(values, expected, strict=True)):
        _check_tensor(place, value, entry, EmbeddedRuntimeError)
    in_order = [None] * len(values)
    for value, entry in zip(values, expected, strict=True):
        in_order[entry.argument] = value
    anchor = application_runtime(
        inputs=in_order,
        filename=executable_file,
        engine_name=name,
        timeout_us=timeout or DEFAULT_TIMEOUT_US,
    )
    return RuntimeContext(name, executable_file, message, anchor, read_streams(path))


def _list_inputs(inputs: Any, expected: Sequence[pb.Input]) -> list[Any]:
    if isinstance(inputs, dict):
        for entry in expected:
            if inputs.get(entry.name) is None:
                raise EmbeddedRuntimeError(
                    f"Failed to find input tensor with name '{entry.name}' in input dictionary."
                )
        return [inputs[entry.name] for entry in expected]
    if not isinstance(inputs, (list, tuple)):
        raise EmbeddedRuntimeError("Expected the inputs to be a list.")
    return list(inputs)


def _check_count(what: str, values: Sequence[Any], expected: Sequence[Any]) -> None:
    if len(values) != len(expected):
        raise EmbeddedRuntimeError(
            f"{what} expects {len(expected)} inputs, but {len(values)} were provided."
        )


def _check_tensor(place: int, value: Any, entry: pb.Input, fault: type[Exception]) -> None:
    """Check shape and type of a tensor; another type is a `fault`."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = tf.convert_to_tensor(value)
    shape, expected = list(value.shape), list(entry.shape.dimensions)
    if shape != expected:
        raise EmbeddedRuntimeError(
            f"Mismatched input shape at position {place} ('{entry.name}'). Expected {expected}, "
            f"but input {place} has shape {shape}."
        )
    if _find_type(entry) != value.dtype:
        raise fault(
            f"Mismatched input dtype at position {place} ('{entry.name}'). Expected "
            f"{_find_type(entry)}, but input {place} has dtype {value.dtype}."
        )


def embedded_runtime_call(inputs: Sequence[Any], context: RuntimeContext) -> list[Any]:
    """Run one batch.

    Args:
        inputs: A tensor for each tensor of the infeeds.
        context: What `embedded_runtime_start` returned.

    Returns:
        A tensor for each tensor of the outfeeds.

    Raises:
        EmbeddedRuntimeError: If the number or a shape of the inputs is another one.
        TypeError: If the type of an input is another one.
    """
    expected = context.signature().streamed_inputs
    _check_count("Embedded application call", inputs, expected)
    for place, (value, entry) in enumerate(zip(inputs, expected, strict=True)):
        _check_tensor(place, value, entry, TypeError)
    streams = context.streams()
    outputs = application_call(
        infeeds=[
            tf.convert_to_tensor(value)
            for value, entry in zip(inputs, expected, strict=True)
            if entry.handle in streams.inputs
        ],
        anchor=context.start_output(),
        outfeed_types=list(map(tf.as_dtype, streams.outputs.values())),
        engine_name=context.name(),
    )
    # The executable also returns results of the computation.
    by_handle = dict(zip(streams.outputs, outputs, strict=True))
    return [by_handle[output.handle] for output in context.signature().streamed_outputs]


def embedded_runtime_stop(context: RuntimeContext) -> NoReturn:
    """Raise NotImplementedError: an engine ends with the graphs that use it.

    Args:
        context: What `embedded_runtime_start` returned.

    Raises:
        NotImplementedError: Always, as in the real library.
    """
    del context
    raise NotImplementedError("Embedded runtime doesn't support stopping an engine.")


def embedded_runtime_start_and_call(
    executable_file: Any,
    startup_inputs: Sequence[Any] | Mapping[str, Any],
    call_inputs: Sequence[Any],
    name: str,
) -> tuple[list[Any], RuntimeContext]:
    """Start an engine and run one batch.

    Args:
        executable_file: Path of the executable's file.
        startup_inputs: As `inputs` of `embedded_runtime_start`.
        call_inputs: As `inputs` of `embedded_runtime_call`.
        name: Name of the engine.

    Returns:
        The results of the batch, and the context.
    """
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context
