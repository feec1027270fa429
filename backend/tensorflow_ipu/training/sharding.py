"""Shards: the IPU of the device that an operator is placed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2

from tensorflow_ipu.placement import SHARD

_XLA_SHARDING: Final = "_XlaSharding"
"""XLA's attribute, which other code may set."""


def get_sharding(op: tf.Operation) -> list[int] | None:
    """Return the shards of an operator.

    Args:
        op: The operator.

    Returns:
        Their numbers; None if it has none.
    """
    if has_attr(op, SHARD):
        return [int(op.get_attr(SHARD))]
    if not has_attr(op, _XLA_SHARDING):
        return None
    sharding = xla_data_pb2.OpSharding.FromString(op.get_attr(_XLA_SHARDING))
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


def get_shard_from_colocation(op: tf.Operation) -> list[int] | None:
    """Return the shards of an operator's neighbours.

    Args:
        op: The operator.

    Returns:
        Those of an operator that it is placed with, or of one of its inputs; None if none has any.
    """
    neighbour = _find_neighbour(op)
    return None if neighbour is None else get_sharding(neighbour)


def _find_neighbour(operation: tf.Operation) -> tf.Operation | None:
    """Return an operator with a shard that another one is placed with, or that it reads."""
    graph = operation.graph
    names = [group.decode().removeprefix("loc:@") for group in operation.colocation_groups()]
    placed = [graph.as_graph_element(name) for name in names if _has_operation(graph, name)]
    candidates = [*placed, *(tensor.op for tensor in operation.inputs)]
    return next((neighbour for neighbour in candidates if get_sharding(neighbour)), None)


def _has_operation(graph: tf.Graph, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def propagate_sharding(g: tf.Graph) -> None:
    """Give the shards of operators to those that are placed with them.

    Args:
        g: The graph.
    """
    changes = True
    while changes:
        changes = False
        for operation in g.get_operations():
            if get_sharding(operation) is not None or not has_attr(operation, "_class"):
                continue
            neighbour = _find_neighbour(operation)
            if neighbour is None:
                continue
            name = SHARD if has_attr(neighbour, SHARD) else _XLA_SHARDING
            operation._set_attr(name, neighbour.node_def.attr[name])  # noqa: SLF001
            changes = True


def enable_sharded_gradient_tape() -> None:
    """Do nothing: gradients, which would have their forward operators' shards, are not computed."""
