"""Nodes of Keras models' graphs, in one view for Keras 3 and tf_keras.

A node is one call of a layer. Keras 3 calls the layer `operation` and keeps `arguments`; tf_keras
calls it `layer` and keeps `call_args` and `call_kwargs`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def node_operation(node: Any) -> Any:
    """Return the layer, or the operation of Keras 3, that the node calls."""
    return node.operation if hasattr(node, "operation") else node.layer


def node_arguments(node: Any) -> tuple[Any, Any]:
    """Return the positional and the keyword arguments of the call, with symbolic tensors."""
    if hasattr(node, "arguments"):
        return node.arguments.args, node.arguments.kwargs
    return node.call_args, node.call_kwargs


def node_inputs(node: Any) -> list[Any]:
    """Return the symbolic tensors among the arguments."""
    if hasattr(node, "operation"):
        return list(node.input_tensors)
    return list(node.keras_inputs)


def node_outputs(node: Any) -> list[Any]:
    """Return the symbolic tensors of the result, flat."""
    return list(tf.nest.flatten(node.outputs))


def list_calls(network: Any) -> list[Any]:
    """Return the nodes of a functional network in an order in which they can be executed.

    Args:
        network: A functional model. Nodes of input layers are left out.
    """
    available = {id(tensor) for tensor in network.inputs}
    calls = []
    for depth in sorted(network._nodes_by_depth, reverse=True):
        for node in network._nodes_by_depth[depth]:
            if node.is_input or any(id(tensor) not in available for tensor in node_inputs(node)):
                continue
            available.update(id(tensor) for tensor in node_outputs(node))
            calls.append(node)
    return calls


def node_index(node: Any) -> int:
    """Return which of the layer's calls the node is."""
    index: int = node_operation(node)._inbound_nodes.index(node)
    return index
