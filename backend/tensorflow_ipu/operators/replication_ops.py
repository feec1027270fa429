"""Number of a replica."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.markers import REPLICA_INDEX, chip_operator
from tensorflow_ipu.operators import collectives
from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def replication_index(name: str | None = None) -> Any:
    """Return the number of the replica.

    Args:
        name: Name of the operation.

    Returns:
        A scalar in int32.
    """
    label = name or "ReplicationIndex"
    return chip_operator(REPLICA_INDEX, [], [(tf.int32, [])], label=label)[0]


@on_ipu
def normalise(x: Any) -> Any:
    """Divide a tensor by the number of replicas.

    Args:
        x: Tensor in float.

    Returns:
        A tensor of the type and shape of `x`.
    """
    x = tf.convert_to_tensor(x)
    count = collectives.all_reduce(tf.ones([], x.dtype), "ADD")
    return x / count
