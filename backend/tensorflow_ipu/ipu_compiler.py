"""`ipu_compiler.compile`: one computation for the IPU out of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

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
    arguments = [] if inputs is None else inputs
    arguments = list(arguments) if isinstance(arguments, (list, tuple)) else [arguments]
    tensors = [tf.convert_to_tensor(value) for value in tf.nest.flatten(arguments)]
    structure: list[Any] = []

    def run(*values: Any) -> list[Any]:
        result = computation(*tf.nest.pack_sequence_as(arguments, list(values)))
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
    results = launch(made, tensors, captured)
    return _pack(structure[0], results, results[0].op if results else None)


def find_ordinal() -> int:
    """Return the number of the IPU device that the current scope names, else 0."""
    from tensorflow.python.distribute import device_util

    spec = tf.DeviceSpec.from_string(device_util.current() or "")
    return int(spec.device_index or 0) if spec.device_type == "IPU" else 0


def _pack(result: Any, tensors: list[tf.Tensor], operation: Any) -> Any:
    if result is None or isinstance(result, tf.Operation):
        return operation
    if tf.is_tensor(result) or not isinstance(result, (list, tuple, dict)):
        return [tensors[0]]
    flat = tf.nest.flatten(result, expand_composites=True)
    if all(value is None or isinstance(value, tf.Operation) for value in flat):
        return operation
    remaining = iter(tensors)
    if isinstance(result, (list, tuple)) and not hasattr(result, "_fields"):
        kept = [value for value in result if not isinstance(value, tf.Operation)]
        return [_take(remaining, value) for value in kept]
    return _take(remaining, result)


def _take(tensors: Iterator[tf.Tensor], structure: Any) -> Any:
    return tf.nest.map_structure(lambda _: next(tensors), structure, expand_composites=True)
