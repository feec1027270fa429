"""Shards: the IPU that an operator is placed on, as an attribute of XLA."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue

_SHARDING: Final = "_XlaSharding"


def get_sharding(op: tf.Operation) -> list[int] | None:
    """Return the shards of an operator.

    Args:
        op: The operator.

    Returns:
        Their numbers; None if it has none.
    """
    if not has_attr(op, _SHARDING):
        return None
    sharding = xla_data_pb2.OpSharding.FromString(op.get_attr(_SHARDING))
    return list(sharding.tile_assignment_devices)


def has_attr(o: tf.Operation, attr_name: str) -> bool:
    """Return whether an operator has an attribute.

    Args:
        o: The operator.
        attr_name: Name of the attribute.

    Returns:
        Whether it has it.
    """
    return attr_name in o.node_def.attr


def dependencies(roots: Iterable[Any]) -> set[tf.Operation]:
    """Return all operators that others depend on, and these.

    Args:
        roots: Operators or tensors.

    Returns:
        The operators.
    """
    waiting = [root if isinstance(root, tf.Operation) else root.op for root in roots]
    found: set[tf.Operation] = set()
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return found


def get_shard_from_colocation(op: tf.Operation) -> bytes | None:
    """Return the sharding of an operator's neighbours.

    Args:
        op: The operator.

    Returns:
        The attribute of an operator that it is placed with, or of one of its inputs; None if none
        has it.
    """
    for group in op.colocation_groups():
        try:
            neighbour = op.graph.get_operation_by_name(group.decode().removeprefix("loc:@"))
        except KeyError:
            continue
        if has_attr(neighbour, _SHARDING):
            return bytes(neighbour.get_attr(_SHARDING))
    for tensor in op.inputs:
        if has_attr(tensor.op, _SHARDING):
            return bytes(tensor.op.get_attr(_SHARDING))
    return None


def propagate_sharding(g: tf.Graph) -> None:
    """Give the shards of operators to those that are placed with them.

    Args:
        g: The graph.
    """
    changes = True
    while changes:
        changes = False
        for operation in g.get_operations():
            if has_attr(operation, _SHARDING) or not has_attr(operation, "_class"):
                continue
            sharding = get_shard_from_colocation(operation)
            if sharding is not None:
                operation._set_attr(_SHARDING, AttrValue(s=sharding))  # noqa: SLF001
                changes = True


def enable_sharded_gradient_tape() -> None:
    """Do nothing: gradients, which would have their forward operators' shards, are not computed."""
