"""Values of a traced graph, as far as a plan has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu.plan import Segment, Slot, VariableKey

COUNTER_TYPES: Final = (tf.int32, tf.int64, tf.bool)
_DROPPED_ATTRIBUTES: Final = ("_class", "_XlaMustCompile", "_xla_inferred_shapes", "_output_shapes")


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the traced graph, as far as the plan has it."""

    tensor: tf.Tensor | None = None
    """The tensor in the graph of `segment`, or in one of its inner graphs."""
    segment: Segment | None = None
    slot: Slot | None = None
    constant: tf.Operation | Array | None = None
    """Operation Const, or an array, that can be copied into any graph."""
    counts: bool = False
    """Whether it is a whole number that only loops and other such numbers made."""


class Variable:
    """A resource of the traced graph."""

    def __init__(self, key: VariableKey, constant: Array | None = None) -> None:
        """Bind a variable.

        Args:
            key: The variable.
            constant: Value that is compiled in; operators need it when they are compiled.
        """
        self.key, self.constant = key, constant


Bound = Value | Variable


def input_value(number: int, dtype: tf.DType, shape: Any) -> Value:
    """Return the value of an input of a computation, of a known type and shape."""
    slot = Slot(number, dtype, tf.TensorShape(shape))
    return Value(slot=slot, counts=is_counter(slot))


def is_counter(slot: Slot) -> bool:
    return slot.dtype in COUNTER_TYPES and slot.shape.rank == 0


def copy_operation(
    graph: tf.Graph, operation: tf.Operation, inputs: Sequence[tf.Tensor], keep: bool = False
) -> tf.Operation:
    """Add a copy of an operation to a graph."""
    attributes: Mapping[str, Any] = operation.node_def.attr
    return graph.create_op(
        operation.type,
        list(inputs),
        [tensor.dtype for tensor in operation.outputs],
        name=operation.name.rsplit("/", 1)[-1] if keep else operation.name,
        attrs={
            name: value for name, value in attributes.items() if name not in _DROPPED_ATTRIBUTES
        },
    )


def fold_shape(operation: tf.Operation, values: Sequence[Bound]) -> Array | None:
    """Return the value of an operator that asks for a known shape, or None."""
    if operation.type not in ("Shape", "Rank", "Size"):
        return None
    value = values[0]
    assert isinstance(value, Value)
    if value.constant is not None:
        shape = tf.TensorShape(constant_array(value.constant).shape)
    elif value.slot is not None:
        shape = value.slot.shape
    else:
        assert value.tensor is not None
        shape = value.tensor.shape
    dtype = operation.outputs[0].dtype.as_numpy_dtype
    if operation.type == "Rank":
        return None if shape.rank is None else np.array(shape.rank, dtype)
    if not shape.is_fully_defined():
        return None
    if operation.type == "Size":
        return np.array(shape.num_elements(), dtype)
    return np.array(shape.as_list(), dtype)


def is_scalar_constant(value: Value) -> bool:
    if isinstance(value.constant, tf.Operation):
        tensor = value.constant.outputs[0]
        return tensor.shape.rank == 0 and tensor.dtype in COUNTER_TYPES
    return value.constant is not None and value.constant.ndim == 0


def constant_array(constant: tf.Operation | Array) -> Array:
    if isinstance(constant, tf.Operation):
        return np.asarray(tf.make_ndarray(constant.get_attr("value")))
    return constant
