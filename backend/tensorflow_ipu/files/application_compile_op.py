"""Application compile: an operation that compiles a function for the IPU into a file."""

from __future__ import annotations

import dataclasses
import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.files.executable_description import UNHASHED
from tensorflow_ipu.plan import Dequeue, Enqueue, Plan, Segment, Slot

_UNSUPPORTED_TYPES: Final = (tf.float64, tf.complex64, tf.complex128, tf.string)


def experimental_application_compile_op(
    func: Callable[..., Any],
    inputs: Sequence[Any] | None = None,
    output_path: str | os.PathLike[str] | None = None,
    freeze_variables: bool = False,
    name: str | None = None,
) -> Any:
    """Return an operation that compiles a function for the IPU, without a device.

    Args:
        func: The function, called as `func(*inputs)`.
        inputs: Its inputs. Constants are compiled in; others have to be given to the executable.
        output_path: Path of the file; None takes a temporary one.
        freeze_variables: Whether values of variables, when the operation runs, are compiled in as
            constants. Else the executable has to be given them.
        name: Name of the operation.

    Returns:
        A string tensor with the path of the file.

    Raises:
        TypeError: If `func` needs other inputs.
    """
    name = name or "application_compile"
    if output_path is None:
        output_path = tempfile.mkstemp(prefix=name, suffix=".poplar_exec")[1]
    if inputs is None:
        inputs = []
    listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    _check_arguments(func, listed)
    with tf.name_scope(name), tf.device("/device:CPU:0"):
        tensors = [tf.convert_to_tensor(value) for value in listed]
        compiler = _FunctionCompiler(func, tensors, Path(output_path), freeze_variables, name)
        return compiler.make_operation(name)


def _check_arguments(func: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Check the number of inputs, with the text that Python has for a call."""
    try:
        signature = inspect.signature(getattr(func, "python_function", func))
    except (TypeError, ValueError):
        return
    positional = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    missing = [repr(parameter) for parameter in positional[len(inputs) :]]
    if missing:
        listed = " and ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
        label = getattr(func, "__name__", "function")
        raise TypeError(
            f"{label}() missing {len(missing)} required positional argument"
            f"{'s' if len(missing) > 1 else ''}: {listed}"
        )


class _FunctionCompiler:
    """A traced function, and the operation that compiles it."""

    def __init__(
        self,
        func: Callable[..., Any],
        tensors: Sequence[Any],
        path: Path,
        freeze_variables: bool,
        name: str,
    ) -> None:
        from tensorflow_ipu.ipu_compiler import find_ordinal
        from tensorflow_ipu.launching import make_computation, trace

        def run(*values: Any) -> Any:
            result = func(*values)
            if isinstance(result, tf.Operation):
                return None
            kept = [
                value
                for value in tf.nest.flatten(result, expand_composites=True)
                if value is not None and not isinstance(value, tf.Operation)
            ]
            return [tf.convert_to_tensor(value) for value in kept] or None

        graph = trace(run, tensors, name)
        self._path = path
        self._computation, captured = make_computation(graph, find_ordinal())
        self._computation.freeze_variables = freeze_variables
        self._values, self._handles = _split(self._computation, [*tensors, *captured])
        for number, value in enumerate(self._values):
            if tf.get_static_value(value) is not None:
                self._computation.fix_input(number)
        self._unsupported = _find_unsupported(graph)

    def make_operation(self, name: str) -> Any:
        """Return the operation; in eager mode it is done."""
        keys = list(self._handles)
        reads = []
        if self._computation.freeze_variables:
            reads = [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=key.dtype)
                for key, handle in self._handles.items()
            ]

        def run(*arrays: Array) -> bytes:
            values = [np.asarray(array) for array in arrays[: len(self._values)]]
            weights = dict(zip((key.name for key in keys), arrays[len(self._values) :]))  # noqa: B905
            self._write(values, weights)
            return os.fsencode(self._path)

        if tf.executing_eagerly():
            path = run(*(value.numpy() for value in [*self._values, *reads]))
            return tf.constant(path)
        result = tf.numpy_function(run, [*self._values, *reads], tf.string, name=name)
        return tf.ensure_shape(result, [])

    def _write(self, values: Sequence[Array], weights: Mapping[str, Array]) -> None:
        from tensorflow_ipu.execution import VariableValues

        if self._unsupported:
            raise _unsupported(self._unsupported)
        known = {key.name: _make_zeros(key) for key in self._handles} | dict(weights)
        planned = self._computation.find_plan(list(values), VariableValues(known))
        try:
            segment = _find_segment(planned.plan)
            write_segment(planned, segment, known, self._path)
        except IpuError as error:
            raise _unsupported(str(error)) from error
        except OSError as error:
            raise tf.errors.InternalError(
                None, None, f"Failed to open file for writing: {self._path}: {error.strerror}"
            ) from error


def _unsupported(what: str) -> Exception:
    fault: Exception = tf.errors.InvalidArgumentError(
        None,
        None,
        f"Detected unsupported operations when trying to compile graph on XLA_IPU_JIT: {what}",
    )
    return fault


def _split(computation: Any, arguments: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """Return the values of inputs that are no variables, and the handle of each variable."""
    values, handles = [], {}
    for item, value in zip(computation.inputs, arguments, strict=True):
        if item.variable is None:
            values.append(value)
        else:
            handles[item.variable] = getattr(value, "handle", value)
    return values, handles


def _make_zeros(key: Any) -> Array:
    """Return a stand-in of a variable: its shape and type matter only."""
    shape = [size or 0 for size in key.shape.as_list()]
    return np.zeros(shape, key.dtype.as_numpy_dtype)


def _find_unsupported(graph: Any) -> str:
    """Return the operator and type that no IPU has; "" if there is none."""
    for operation in graph.get_operations():
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor.dtype in _UNSUPPORTED_TYPES:
                return f"{operation.type} of {tensor.dtype.name} ({operation.name})"
    return ""


def _find_segment(plan: Plan) -> Segment:
    """Return the segment that a file holds.

    Raises:
        FailedPreconditionError: If the IPU computes nothing.
        IpuError: If several segments exchange tensors with feeds.
    """
    segments = [segment for segment in plan.iter_segments() if not segment.on_host]
    computing = [segment for segment in segments if not segment.is_trivial()]
    fed = {
        slot.number
        for item in plan.iter_items()
        if isinstance(item, (Dequeue, Enqueue))
        for slot in item.slots
    }
    exchanging = [segment for segment in computing if _numbers(segment) & fed]
    if len(exchanging) > 1:
        raise IpuError(
            f"{len(exchanging)} parts of the computation exchange tensors with feeds, with what "
            "the host does between them: a PopEF file here holds one of them"
        )
    if exchanging or computing:
        return (exchanging or computing)[-1]
    if fed:
        # Scalars that each run exchanges are computed like all others.
        return next(segment for segment in segments if _numbers(segment) & fed)
    graphs = [segment.graph for segment in segments]
    raise tf.errors.FailedPreconditionError(None, None, _describe_trivial(graphs))


def _numbers(segment: Segment) -> set[int]:
    ends = [*segment.inputs, *segment.outputs]
    return {end.number for end, _ in ends if isinstance(end, Slot)}


def _describe_trivial(graphs: Sequence[Any]) -> str:
    types = {operation.type for graph in graphs for operation in graph.get_operations()}
    if types <= {"Const", "NoOp"}:
        return "Cannot serialize a constant graph"
    if types <= {"Const", "NoOp", "Placeholder", "Identity", "EnsureShape"}:
        return "Cannot serialize a graph in which all outputs are inputs"
    return "Cannot serialize a scalar elementwise graph"


def write_segment(planned: Any, segment: Segment, values: Mapping[str, Array], path: Path) -> None:
    """Compile a segment of a computation, and write its file.

    Args:
        planned: The computation.
        segment: The segment.
        values: Values of the variables by name.
        path: Path of the file.

    Raises:
        IpuError: If it cannot be compiled.
        OSError: If the file cannot be written.
    """
    from tensorflow_ipu.compilation import SegmentModel, compile_stored
    from tensorflow_ipu.files.popef_files import write_executable

    model = SegmentModel.make(planned, segment)
    weights = {name: values[name] for name in model.weights}
    stored = compile_stored(planned, model, weights)
    description = dataclasses.replace(stored.description, name=UNHASHED)
    write_executable(dataclasses.replace(stored, description=description), path)
