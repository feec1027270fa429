"""`ipu_compiler.compile`: one computation for the IPU out of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.compiler.xla import xla
from tensorflow.python.distribute import device_util

from tensorflow_ipu.graphs import iter_called
from tensorflow_ipu.launching import launch, make_computation, run_eagerly, trace


def compile(computation: Callable[..., Any], inputs: Any = None) -> Any:
    """Compile a function for the IPU, and add a node that runs it.

    Args:
        computation: Function of tensors that returns tensors, operations, or both, tensors first.
        inputs: Tensors, or a structure of them.

    Returns:
        None or operations become an operation; one tensor becomes a list of one; else the
        structure of what the function returned.

    Raises:
        Exception: If nothing is placed on an IPU.
        ValueError: For what a training loop returns.
    """
    if inputs is not None and not isinstance(inputs, Sequence):
        raise TypeError("inputs must be a list")
    arguments = list(inputs or [])
    tensors = [tf.convert_to_tensor(value) for value in tf.nest.flatten(arguments)]
    structure: list[Any] = []

    def run(*values: Any) -> list[Any]:
        result = computation(*tf.nest.pack_sequence_as(arguments, list(values)))
        _check_result(result)
        structure.append(result)
        flat = tf.nest.flatten(result, expand_composites=True)
        return [
            tf.convert_to_tensor(value)
            for value in flat
            if value is not None and not isinstance(value, tf.Operation)
        ]

    ordinal = find_ordinal()
    graph = trace(run, tensors, "ipu_computation")
    made, captured = make_computation(graph, ordinal, tensors)
    if tf.executing_eagerly():
        results = run_eagerly(made, tensors, captured)
        return _pack(structure[0], results, None)
    _check_placement(graph)
    results = launch(made, tensors, captured)
    return _pack(structure[0], results, results[0].op if results else None)


def find_ordinal() -> int:
    """Return the number of the IPU device that the current scope names, else 0."""
    spec = tf.DeviceSpec.from_string(device_util.current() or "")
    return int(spec.device_index or 0) if spec.device_type == "IPU" else 0


def _check_result(result: Any) -> None:
    """Raise ValueError for what a computation must not return."""
    values = tf.nest.flatten(result, expand_composites=True)
    if _has_estimator_spec(result):
        raise ValueError(
            "Your computation output contains an EstimatorSpec or IPUEstimatorSpec object. When "
            "you use an IPUEstimator, it already handles all the xla compilation and no manual "
            "call to compile() is needed."
        )
    operations = [isinstance(value, tf.Operation) for value in values]
    if not xla.is_flat(result):
        if any(operations):
            raise ValueError(
                "xla.compile does not support Operation as return value in non-flat output "
                "structure. You can set returned Operations as control dependencies of returned "
                "Tensors so Operations are triggered when Tensors are evaluated."
            )
    elif operations != sorted(operations):
        raise ValueError(
            "XLA computation function must return zero or more Tensor values followed by zero or "
            "more Operations."
        )


def _has_estimator_spec(value: Any) -> bool:
    if type(value).__name__.endswith("EstimatorSpec"):
        return True
    return isinstance(value, (list, tuple)) and any(map(_has_estimator_spec, value))


def _check_placement(graph: Any) -> None:
    """Raise Exception if no operation of a computation is placed on an IPU."""
    is_placed = _is_on_ipu(device_util.current()) or _has_placed(graph)
    if not is_placed and any(
        operation.type not in ("NoOp", "Placeholder") for operation in graph.get_operations()
    ):
        raise Exception(
            "A computation has been compiled, however it was not placed on an IPU device. This "
            "computation will not be executed on an IPU.\nTo execute it on an IPU use the "
            "`ipu_scope` from `tensorflow.python.ipu.scopes`, for example:\n\n"
            "  with ipu_scope('/device:IPU:0'):\n"
            "    result = ipu_compiler.compile(comp, inputs)"
        )


def _has_placed(graph: Any) -> bool:
    """Return whether an operation of a graph, or of a loop's body in it, is placed on an IPU."""
    return any(_is_on_ipu(operation.device) for operation in graph.get_operations()) or any(
        map(_has_placed, iter_called(graph))
    )


def _is_on_ipu(device: str | None) -> bool:
    return bool(tf.DeviceSpec.from_string(device or "").device_type == "IPU")


def _pack(result: Any, tensors: list[tf.Tensor], operation: Any) -> Any:
    """Return what `compile` does for a result of the computation and its tensors."""
    flat = tf.nest.flatten(result, expand_composites=True)
    count = sum(value is not None and not isinstance(value, tf.Operation) for value in flat)
    if not count:
        return operation
    return list(tensors[:count]) if xla.is_flat(result) else _take(iter(tensors), result)


def _take(tensors: Iterator[tf.Tensor], structure: Any) -> Any:
    return tf.nest.map_structure(lambda _: next(tensors), structure, expand_composites=True)
