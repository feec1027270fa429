"""Collectives between replicas, as nodes of PopART's domain.

One replica is traced. The lowering of PopART joins the replicas at these nodes; where a computation
runs as one replica they return its own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator

PREFIX: Final = "COLLECTIVE_OP_"
_OPERATORS: Final[Mapping[str, int]] = {
    "ADD": 0,
    "MEAN": 1,
    "MUL": 2,
    "MIN": 3,
    "MAX": 4,
    "LOGICAL_AND": 3,
    "LOGICAL_OR": 4,
    "SQUARE_ADD": 7,
    "LOCAL": 8,
}
"""PopART's number of a reduction; the logical ones are those of ones and zeros."""
_LOGICAL = ("LOGICAL_AND", "LOGICAL_OR")
_CONSECUTIVE = 1
"""Kind of PopART's groups whose replicas follow each other."""


def reduce_operator(op: str) -> str:
    """Return the short name of a reduction.

    Args:
        op: Name as COLLECTIVE_OP_ADD.

    Returns:
        The name without prefix.

    Raises:
        ValueError: If there is no such reduction.
    """
    name = op.removeprefix(PREFIX)
    if name not in _OPERATORS or not op.startswith(PREFIX):
        known = ", ".join(f"{PREFIX}{name}" for name in _OPERATORS)
        raise ValueError(f"Unknown collective operator {op!r}, expected one of {known}")
    return name


def all_reduce(x: Any, op: str, group_size: int | None = None, label: str | None = None) -> Any:
    """Reduce a tensor over the replicas of each group.

    Args:
        x: Tensor of each replica.
        op: Short name of the reduction.
        group_size: Number of neighbours of a group; None or 0 means all replicas.
        label: Name of the node.

    Returns:
        The reduced tensor.
    """
    return _collective("ReplicatedAllReduce", x, x.shape, op, group_size, label)


def reduce_scatter(x: Any, op: str, size: int, label: str | None = None) -> Any:
    """Reduce a row over the replicas of each group, which get a part each.

    Args:
        x: Row of each replica.
        op: Short name of the reduction.
        size: Number of replicas of a group.
        label: Name of the node.

    Returns:
        The replica's part.
    """
    shape = [-(-x.shape[0] // size)]
    return _collective("ReplicatedReduceScatter", x, shape, op, size, label)


def all_gather(x: Any, size: int, label: str | None = None) -> Any:
    """Return the tensors of all replicas of a group.

    Args:
        x: Tensor of each replica.
        size: Number of replicas of a group.
        label: Name of the node.

    Returns:
        The tensors, with an axis of the replicas in front.
    """
    shape = [size * x.shape.num_elements()]
    attributes = _groups(size)
    flat = chip_operator("ReplicatedAllGather", [x], [(x.dtype, shape)], attributes, label=label)
    return tf.reshape(flat[0], [size, *x.shape])


def _collective(name: str, x: Any, shape: Any, op: str, size: int | None, label: str | None) -> Any:
    source = tf.cast(tf.not_equal(x, 0), x.dtype) if op in _LOGICAL else x
    attributes = {"__collectiveOperator": _OPERATORS[op], **_groups(size)}
    return chip_operator(name, [source], [(x.dtype, shape)], attributes, label=label)[0]


def _groups(size: int | None) -> dict[str, Any]:
    return {"__collectiveCommGroup": [_CONSECUTIVE, size]} if size else {}
