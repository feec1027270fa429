"""Operators of popops: collectives, slices, updates."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators import (
    all_to_all_op,
    cross_replica_ops,
    embedding_ops,
    image_ops,
    reduce_scatter_op,
)
from tensorflow_ipu.operators.placement import on_ipu


def ipu_all_gather(inputs: Any, replication_factor: int, name: str | None = None) -> list[Any]:
    """Return a list of the tensors of all replicas, for each input."""
    gathered = all_to_all_op.all_gather(inputs, replication_factor, name)
    return gathered if isinstance(gathered, list) else [gathered]


def ipu_all_to_all(
    input: Any,
    split_dimension: int,
    concat_dimension: int,
    number_of_replicas: int,
    name: str | None = None,
) -> Any:
    """Split a tensor, send part i to replica i, and join what the replicas sent."""
    return all_to_all_op.all_to_all(
        input, split_dimension, concat_dimension, number_of_replicas, name
    )


def ipu_cross_replica_sum(input: Any, replica_group_size: int = 0, name: str | None = None) -> Any:
    """Sum a tensor over the replicas."""
    return cross_replica_ops.cross_replica_sum(input, replica_group_size, name)


def ipu_cross_replica_mean(input: Any, replica_group_size: int = 0, name: str | None = None) -> Any:
    """Return the mean of a tensor over the replicas."""
    return cross_replica_ops.cross_replica_mean(input, replica_group_size, name)


def ipu_reduce_scatter(
    inputs: Any, op: str, replication_factor: int, name: str | None = None
) -> list[Any]:
    """Reduce rows over the replicas, which get an equal part each."""
    parts = reduce_scatter_op.reduce_scatter(inputs, replication_factor, op, name)
    return parts if isinstance(parts, list) else [parts]


def ipu_multi_slice(
    input: Any, indices: Any, indices_are_sorted: bool = False, name: str | None = None
) -> Any:
    """Look up rows of a table."""
    table, ids = tf.convert_to_tensor(input), tf.convert_to_tensor(indices)
    return embedding_ops.embedding_lookup(table, ids, 1, indices_are_sorted, name)


@on_ipu
def ipu_multi_update_add(
    input: Any,
    indices: Any,
    updates: Any,
    scale: Any,
    indices_are_sorted: bool = False,
    name: str | None = None,
) -> Any:
    """Add scaled rows to rows of a table; the same row may be named more than once."""
    del indices_are_sorted
    table = tf.convert_to_tensor(input)
    ids = tf.reshape(tf.convert_to_tensor(indices), [-1])
    rows = tf.reshape(tf.convert_to_tensor(updates, dtype=table.dtype), [-1, table.shape[1]])
    members = tf.cast(tf.equal(tf.range(table.shape[0])[:, None], ids[None, :]), table.dtype)
    factor = tf.cast(scale, table.dtype)
    return tf.add(table, tf.matmul(members, rows * factor), name=name)


def normalise_image(
    image: Any,
    channel_offsets: Any,
    channel_scales: Any,
    scale: float,
    name: str | None = None,
) -> Any:
    """Compute (image * scale - offset) * channel scale, and add a channel of zeros."""
    return image_ops.normalise_image(image, channel_offsets, channel_scales, scale, name)
