"""The operators in Python, under the names of Graphcore's
`tensorflow.python.ipu.embedded_runtime`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NoReturn

from model_runtime import DataDesc

from poplar_serving.description import ModelDescription, read_description
from poplar_serving.errors import ExportError
from poplar_serving.library import import_tensorflow, load_library

TIMEOUT_US = 5000
"""Default of `timeout_us` of Graphcore's operator ApplicationRuntime."""
CONVERT = "cast or reshape it, for example in a preprocessing_step"


class RuntimeContext:
    """An engine that was started; made by `embedded_runtime_start`."""

    def __init__(self, name: str, signature: ModelDescription, start_output: Any) -> None:
        self._name = name
        self._signature = signature
        self._start_output = start_output

    def start_output(self) -> Any:
        """Return the anchor: an int32 scalar tensor."""
        return self._start_output

    def name(self) -> str:
        """Return the engine's name."""
        return self._name

    def signature(self) -> ModelDescription:
        """Return the inputs and outputs of a call. In the real API this is a protobuf message of
        Graphcore's TensorFlow."""
        return self._signature

    def output_types(self) -> list[Any]:
        """Return the TensorFlow types of the outputs."""
        tensorflow = import_tensorflow()
        return [tensorflow.as_dtype(tensor.numpy_data_type()) for tensor in self._signature.outputs]


def embedded_runtime_start(
    executable_file: Any,
    inputs: Sequence[Any],
    name: str,
    timeout: int | None = None,
    signature: ModelDescription | None = None,
) -> RuntimeContext:
    """Start the engine `name` of a PopEF file, in a child process that all calls of that name
    share.

    `executable_file`: the path, as a string or a tensor whose value is known here. `inputs`: none,
    because the weights are in the file. `timeout`: how many microseconds a batch waits for those of
    the other replicas, if the model has several, before it is computed without them; default 5000.
    `signature` (not in the real function): that of the file, if it is known already, so that the
    tensor's value need not be known. Raises ExportError.
    """
    if len(inputs):
        raise ExportError(
            f"engine {name!r}: expected no inputs, found {len(inputs)}; the weights of a model are "
            "in its PopEF file"
        )
    tensorflow = import_tensorflow()
    file = tensorflow.convert_to_tensor(executable_file, dtype=tensorflow.string)
    if signature is None:
        signature = read_description(_find_path(tensorflow, file, name))
    anchor = load_library().application_runtime(
        inputs=[], filename=file, engine_name=name, timeout_us=timeout or TIMEOUT_US
    )
    return RuntimeContext(name, signature, anchor)


def embedded_runtime_call(inputs: Sequence[Any], context: RuntimeContext) -> list[Any]:
    """Run one batch, and return the output tensors in the order of the file.

    `inputs` has a tensor of the compiled shape and type for each input of the file, in its order.
    Raises ExportError for others, as far as they are known here. The operator rejects the rest when
    it runs.
    """
    tensorflow = import_tensorflow()
    tensors = [tensorflow.convert_to_tensor(source) for source in inputs]
    check_tensors(f"engine {context.name()!r}: input", tensors, context.signature().inputs)
    outputs = load_library().application_call(
        infeeds=tensors,
        anchor=context.start_output(),
        outfeed_types=context.output_types(),
        engine_name=context.name(),
    )
    return [
        tensorflow.ensure_shape(tensor, described.shape)
        for tensor, described in zip(outputs, context.signature().outputs, strict=True)
    ]


def embedded_runtime_start_and_call(
    executable_file: Any, startup_inputs: Sequence[Any], call_inputs: Sequence[Any], name: str
) -> tuple[list[Any], RuntimeContext]:
    """Start an engine and run one batch; return the outputs and the engine."""
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context


def embedded_runtime_stop(context: RuntimeContext) -> NoReturn:
    """Raise NotImplementedError, as the real function does: an engine ends with the graphs that use
    it."""
    raise NotImplementedError(
        f"engine {context.name()!r}: engines cannot be stopped; an engine ends with the graphs "
        "that use it"
    )


def check_tensors(
    place: str, tensors: Sequence[Any], expected: Sequence[DataDesc], remedy: str = CONVERT
) -> None:
    """Raise ExportError if tensors, or TensorSpecs, are not those of a model. `place` describes
    them, and `remedy` says what to do. Unknown dimensions are accepted."""
    tensorflow = import_tensorflow()
    if len(tensors) != len(expected):
        names = ", ".join(tensor.name for tensor in expected)
        raise ExportError(f"{place}s: expected {len(expected)} ({names}), found {len(tensors)}")
    for number, (given_tensor, expected_info) in enumerate(zip(tensors, expected, strict=True)):
        dtype = tensorflow.as_dtype(expected_info.numpy_data_type())
        if given_tensor.dtype != dtype or not given_tensor.shape.is_compatible_with(
            expected_info.shape
        ):
            raise ExportError(
                f"{place} {number} ({expected_info.name!r}): expected {dtype.name} of shape "
                f"{expected_info.shape}, found {given_tensor.dtype.name} of shape "
                f"{given_tensor.shape}; {remedy}"
            )


def _find_path(tensorflow: Any, file: Any, name: str) -> str:
    value = tensorflow.get_static_value(file)
    if value is None:
        raise ExportError(
            f"engine {name!r}: executable_file: expected a path that is known when the graph is "
            f"built, found {file}; give the path as a string"
        )
    return os.fsdecode(value.item() if hasattr(value, "item") else value)
