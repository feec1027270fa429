"""Reductions over all replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators import collectives
from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def cross_replica_sum(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Sum a tensor over the replicas.

    Args:
        x: Tensor in float16, float32 or int32.
        replica_group_size: Number of neighbours that are summed; None means all replicas.
        name: Name of the operation.

    Returns:
        The sum.
    """
    x = tf.convert_to_tensor(x)
    return collectives.all_reduce(x, "ADD", replica_group_size, name or "IpuCrossReplicaSum")


@on_ipu
def cross_replica_mean(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Return the mean of a tensor over the replicas.

    Args:
        x: Tensor in float16, float32 or int32.
        replica_group_size: Number of neighbours whose mean it is; None means all replicas.
        name: Name of the operation.

    Returns:
        The mean.
    """
    x = tf.convert_to_tensor(x)
    return collectives.all_reduce(x, "MEAN", replica_group_size, name or "IpuCrossReplicaMean")


@on_ipu
def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Declare that tensors are equal in all replicas.

    Args:
        tensors: Tensors in any structure.
        inplace: Accepted; no copy is needed here.

    Returns:
        The tensors in the same structure.
    """
    del inplace
    flat = tf.nest.flatten(tensors, expand_composites=True)
    same = [tf.identity(tensor, name="IpuAssumeEqualAcrossReplicas") for tensor in flat]
    return tf.nest.pack_sequence_as(tensors, same, expand_composites=True)
