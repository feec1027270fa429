"""Exchanges between all replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators import collectives
from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Split a tensor, send part i to replica i, and join what the replicas sent.

    Args:
        x: Tensor in float16, float32 or int32.
        split_dimension: Axis that is split; the number of replicas divides its size.
        concat_dimension: Axis along which the received parts are joined.
        replication_factor: Number of replicas.
        name: Name of the operation.

    Returns:
        The joined parts.
    """
    x = tf.convert_to_tensor(x)
    parts = tf.stack(tf.split(x, replication_factor, axis=split_dimension))
    label = name or "IpuAllToAll"
    received = chip_operator("ReplicatedAllToAll", [parts], [(x.dtype, parts.shape)], label=label)
    return tf.concat(tf.unstack(received[0]), axis=concat_dimension)


@on_ipu
def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """Return the tensors of all replicas.

    Args:
        x: Tensor, or a structure of them.
        replication_factor: Number of replicas.
        name: Name of the operation.

    Returns:
        The tensors with an axis of the replicas in front: one tensor, or a list of more.
    """
    flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(x)]
    label = name or "IpuAllGather"
    gathered = [collectives.all_gather(value, replication_factor, label) for value in flat]
    return gathered[0] if len(gathered) == 1 else gathered
