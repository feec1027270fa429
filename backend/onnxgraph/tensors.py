"""Iteration over all tensors of a model, and their sizes. Their values: `weights`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from onnxgraph.errors import GraphError

FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Types of the floats that models are computed in."""
MAX_DEPTH = 16
"""Maximum depth of graphs inside nodes; a known model has 3."""


def iter_tensors(graph: onnx.GraphProto, depth: int = 0) -> Iterator[tuple[TensorProto, bool]]:
    """Yield every tensor of a graph, and whether it is an initializer of the main graph."""
    if depth > MAX_DEPTH:
        raise GraphError(f"graphs stand inside nodes more than {MAX_DEPTH} deep")
    yield from ((tensor, depth == 0) for tensor in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from ((tensor, False) for tensor in (sparse.values, sparse.indices))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t, False
            yield from ((tensor, False) for tensor in attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (
                    (tensor, False)
                    for tensor in (sparse.values, sparse.indices)
                    if tensor.data_type
                )
            for inner in (attribute.g, *attribute.graphs):
                yield from iter_tensors(inner, depth + 1)


def element_bytes(data_type: int) -> int:
    """Return the bytes of an element in files; older versions of onnx know some types as float
    only."""
    name = TensorProto.DataType.Name(data_type)
    narrow = 1 if name.startswith("FLOAT8") else 2 if name == "BFLOAT16" else 0
    return narrow or int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def count_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's raw data by its type and shape; -1 for an invalid type or
    shape."""
    sized = (
        tensor.data_type in helper.get_all_tensor_dtypes()
        and tensor.data_type != TensorProto.STRING
    )
    if not sized or min(tensor.dims, default=0) < 0:
        return -1
    return math.prod(tensor.dims) * element_bytes(tensor.data_type)


def is_packed(data_type: int) -> bool:
    """Return whether several elements share a byte."""
    return "INT4" in TensorProto.DataType.Name(data_type) or "FLOAT4" in TensorProto.DataType.Name(
        data_type
    )
