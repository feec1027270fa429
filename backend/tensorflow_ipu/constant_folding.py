"""Values of operators whose inputs are constants.

TensorFlow computes them, operator by operator in eager mode, in the thread that asks. A session
would wait for threads that all sessions share, and those may all wait for the compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from popef._tools.arrays import Array

_KEPT: Final = frozenset(("PyFunc", "Placeholder", "PlaceholderWithDefault", "If", "While"))
_PREFIXES: Final = ("Random", "Stateful", "Stateless", "TensorList", "Truncated", "Multinomial")
_MAX_ELEMENTS: Final = 1_000_000
"""Maximum size of a value that is computed of smaller ones, such as a large Fill."""


def compute_operation(operation: tf.Operation, arrays: Sequence[Array]) -> list[Array]:
    """Return the results of an operator of constants.

    Args:
        operation: The operation.
        arrays: Its inputs.

    Returns:
        Its outputs.
    """
    attributes = [
        part
        for name in operation.node_def.attr
        if not name.startswith("_")
        for part in (name, operation.get_attr(name))
    ]
    with context.eager_mode(), tf.device("/device:CPU:0"):
        inputs = [tf.constant(array) for array in arrays]
        results = execute.execute(
            operation.type.encode(),
            len(operation.outputs),
            inputs,
            tuple(attributes),
            context.context(),
        )
        return [np.asarray(result.numpy()) for result in results]


def find_constants(
    graph: tf.Graph, _: Mapping[str, Any] | None, outputs: Iterable[str]
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the values of operators of constants in a graph, in place of tf2onnx's function.

    Args:
        graph: The graph.
        outputs: Names of its outputs, which stay operators.

    Returns:
        Values and types by the names of tensors.
    """
    values: dict[str, Array] = {}
    found: dict[str, tf.Tensor] = {}
    kept = set(outputs)
    for operation in graph.get_operations():
        if len(operation.outputs) != 1:
            continue
        output = operation.outputs[0]
        if operation.type == "Const":
            values[output.name] = np.asarray(tf.make_ndarray(operation.get_attr("value")))
            continue
        arrays = [values.get(tensor.name) for tensor in operation.inputs]
        if output.name in kept or not _may_fold(operation, arrays):
            continue
        try:
            result = compute_operation(operation, [array for array in arrays if array is not None])
        except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
            continue
        values[output.name], found[output.name] = result[0], output
    folded = {name: values[name] for name in found}
    return folded, {name: tensor.dtype for name, tensor in found.items()}


def _may_fold(operation: tf.Operation, arrays: Sequence[Array | None]) -> bool:
    if not arrays or any(array is None for array in arrays):
        return False
    if operation.type in _KEPT or operation.type.startswith(_PREFIXES):
        return False
    output = operation.outputs[0]
    if operation.op_def.is_stateful or output.dtype in (tf.variant, tf.resource, tf.string):
        return False
    shape = output.shape
    size = prod(shape) if shape.is_fully_defined() else 0
    return size < _MAX_ELEMENTS or any(array is not None and array.size >= size for array in arrays)


_MAX_DEPTH: Final = 64


def static_value(tensor: tf.Tensor, depth: int = 0) -> Array | None:
    """Return the value of a tensor that only constants and known shapes decide, or None.

    Args:
        tensor: Tensor of a graph.
        depth: Number of operators between it and the tensor that was asked for.

    Returns:
        The value.
    """
    value = tf.get_static_value(tensor)
    operation = tensor.op
    if value is not None or depth > _MAX_DEPTH or operation.type in _KEPT:
        return value if value is None else np.asarray(value)
    arrays = [static_value(source, depth + 1) for source in operation.inputs]
    if not _may_fold(operation, arrays):
        return None
    try:
        results = compute_operation(operation, [array for array in arrays if array is not None])
    except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
        return None
    return np.asarray(results[tensor.value_index])
