"""Places of operators: the IPU of a replica, and the stage of a pipeline."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

SHARD: Final = "_ipu_shard"
"""Attribute with the number of an operator's IPU, as text."""
STAGE: Final = "_ipu_stage"
"""Attribute with the number of an operator's pipeline stage, as text."""
OUTSIDE: Final = "_ipu_outside"
"""Attribute of operations that the host computes within a computation."""


def find_places(graph: tf.Graph) -> dict[str, tuple[int, int | None]]:
    """Return the IPU and the pipeline stage of tensors whose operators are placed.

    Args:
        graph: The graph of a segment.

    Returns:
        Places by the names of the tensors.
    """
    places: dict[str, tuple[int, int | None]] = {}
    for operation in graph.get_operations():
        attributes = operation.node_def.attr
        if SHARD not in attributes:
            continue
        stage = _read(attributes, STAGE) if STAGE in attributes else None
        place = (_read(attributes, SHARD), stage)
        places.update((tensor.name, place) for tensor in operation.outputs)
    return places


def _read(attributes: Any, name: str) -> int:
    return int(attributes[name].s.decode())
