"""Reductions over replicas of which each replica gets a part."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators import collectives
from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def reduce_scatter(
    x: Any, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None
) -> Any:
    """Reduce rows over the replicas, which get an equal part each; zeros fill up the last one.

    Args:
        x: Row, or a structure of them.
        replication_factor: Number of replicas.
        op: Reduction: COLLECTIVE_OP_ADD, _MUL, _MIN, _MAX, _LOGICAL_AND, _LOGICAL_OR,
            _SQUARE_ADD, _LOCAL or _MEAN.
        name: Name of the operation.

    Returns:
        The replica's part of each: one tensor, or a list of more.

    Raises:
        ValueError: If a tensor is no row, or there is no such reduction.
    """
    rows = [tf.convert_to_tensor(value) for value in tf.nest.flatten(x)]
    for row in rows:
        row.shape.assert_has_rank(1)
    kind = collectives.reduce_operator(op)
    label = name or "IpuReduceScatter"
    parts = [collectives.reduce_scatter(row, kind, replication_factor, label) for row in rows]
    return parts[0] if len(parts) == 1 else parts
