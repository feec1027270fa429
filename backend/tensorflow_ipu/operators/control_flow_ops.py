"""Barriers, which order what runs on the real chip."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Return tensors that are there when all of them are computed.

    Args:
        tensors: Tensors in any structure.
        insert_barrier_for_gradients: Accepted; inference has no gradients.
        name: Name of the operation.

    Returns:
        The tensors in the same structure.
    """
    del insert_barrier_for_gradients
    flat = [tf.identity(tensor, name=name or "IpuBarrier") for tensor in tf.nest.flatten(tensors)]
    return tf.nest.pack_sequence_as(tensors, flat)
