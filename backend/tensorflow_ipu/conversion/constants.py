"""Inputs of a graph that its operators need when they are compiled: axes, sizes, k."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu.conversion.onnx_models import iter_constant_inputs


def find_constant_placeholders(graph: tf.Graph) -> set[str]:
    """Return the names of the placeholders whose values operators need as constants.

    Args:
        graph: The graph of a segment.

    Returns:
        Names of tensors.
    """
    pending = [
        operation.inputs[place]
        for operation in graph.get_operations()
        for place in iter_constant_inputs(operation)
    ]
    found, seen = set(), set()
    while pending:
        tensor = pending.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.type == "Placeholder":
            found.add(tensor.name)
        elif tensor.op.type not in ("Shape", "Size", "Rank"):
            pending.extend(tensor.op.inputs)
    return found
