"""Operators on variables, as rules of the flattening: reads and writes become values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_ipu.flattening import Flattener

Rule = Callable[["Flattener", tf.Operation, Sequence[Any]], Sequence[Any]]


def _read(flattener: Flattener, _: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
    return [flattener.read(values[0])]


def _assign(flattener: Flattener, _: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
    flattener.write(values[0], values[1])
    return []


def _update(function: Callable[..., tf.Tensor]) -> Rule:
    """Return the rule of an operator that changes a variable by a function of its value."""

    def apply(flattener: Flattener, _: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
        variable, *others = values
        current = flattener.read(variable)
        flattener.write(variable, flattener.emit(function, current, *others))
        return []

    return apply


def _get(function: Callable[..., tf.Tensor]) -> Rule:
    """Return the rule of an operator that reads a part of a variable."""

    def apply(flattener: Flattener, _: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
        variable, *others = values
        return [flattener.emit(function, flattener.read(variable), *others)]

    return apply


def _gather(flattener: Flattener, operation: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
    dims = operation.get_attr("batch_dims")
    return [
        flattener.emit(
            lambda table, rows: tf.gather(table, rows, batch_dims=dims, axis=dims),
            flattener.read(values[0]),
            values[1],
        )
    ]


def _shape(_: Flattener, operation: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
    from tensorflow_ipu.values import Value

    dtype = operation.outputs[0].dtype.as_numpy_dtype
    return [Value(constant=np.array(values[0].key.shape.as_list(), dtype))]


def _is_initialized(_: Flattener, __: tf.Operation, ___: Sequence[Any]) -> Sequence[Any]:
    from tensorflow_ipu.values import Value

    return [Value(constant=np.array(True))]


def _nothing(_: Flattener, __: tf.Operation, ___: Sequence[Any]) -> Sequence[Any]:
    return []


def _rows(rows: tf.Tensor) -> tf.Tensor:
    return tf.expand_dims(rows, -1)


_WRITE_RULES: Final[dict[str, Rule]] = {
    "AssignVariableOp": _assign,
    "AssignAddVariableOp": _update(tf.add),
    "AssignSubVariableOp": _update(tf.subtract),
    "ResourceScatterUpdate": _update(
        lambda table, rows, values: tf.tensor_scatter_nd_update(
            table, _rows(rows), _spread(table, rows, values)
        )
    ),
    "ResourceScatterAdd": _update(
        lambda table, rows, values: tf.tensor_scatter_nd_add(
            table, _rows(rows), _spread(table, rows, values)
        )
    ),
    "ResourceScatterSub": _update(
        lambda table, rows, values: tf.tensor_scatter_nd_sub(
            table, _rows(rows), _spread(table, rows, values)
        )
    ),
    "ResourceScatterNdUpdate": _update(tf.tensor_scatter_nd_update),
    "ResourceScatterNdAdd": _update(tf.tensor_scatter_nd_add),
    "ResourceScatterNdSub": _update(tf.tensor_scatter_nd_sub),
}


def _spread(table: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return updates with a value for each row: one value may stand for all."""
    if values.shape.rank == 0:
        return tf.broadcast_to(values, tf.concat([tf.shape(rows), tf.shape(table)[1:]], 0))
    return values


WRITERS: Final = frozenset(_WRITE_RULES)
"""Operators that change a variable: the keys of their rules."""
RULES: Final[dict[str, Rule]] = {
    **_WRITE_RULES,
    "ReadVariableOp": _read,
    "ResourceGather": _gather,
    "ResourceGatherNd": _get(tf.gather_nd),
    "VariableShape": _shape,
    "VarIsInitializedOp": _is_initialized,
    "DestroyResourceOp": _nothing,
}
"""Rules by the operator's name in TensorFlow."""
