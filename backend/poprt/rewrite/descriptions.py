"""Nodes and values of a graph in words, for messages."""

from __future__ import annotations

import onnx


def describe_node(node: onnx.NodeProto) -> str:
    """Return a description of a node: its name, or its first output if it has no name."""
    return (
        f"{node.name or '(making ' + node.output[0] + ')'!r} ({node.op_type})"
        if node.output
        else repr(node.name)
    )


def describe_shape(value: onnx.ValueInfoProto) -> str:
    """Return the shape as the model declares it: `[batch, 3, ?, 224]`."""
    dims = value.type.tensor_type.shape.dim
    sizes = (d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in dims)
    return f"[{', '.join(sizes)}]"
