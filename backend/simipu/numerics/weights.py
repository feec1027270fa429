"""Who takes a weight, and what becomes of one that nobody takes as narrow as it is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import iter_bodies

from simipu.numerics.quarter import QUARTERS, decode


def iter_reads(graph: onnx.GraphProto) -> Iterator[tuple[str, int, onnx.NodeProto]]:
    """What nodes of a graph take, and as which input; -1 where it is taken inside of a body."""
    for node in graph.node:
        yield from ((name, place, node) for place, name in enumerate(node.input))
        for body in iter_bodies(node):
            yield from ((name, -1, inner) for name, _, inner in iter_reads(body))
            yield from ((value.name, -1, node) for value in body.output)


def widen_tensor(tensor: onnx.TensorProto) -> None:
    """Make a half or an 8-bit tensor one of floats, in place; others stay."""
    quarter = QUARTERS.get(tensor.data_type)
    if quarter is None and tensor.data_type != TensorProto.FLOAT16:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        # A weight without data: who feeds it brings floats, see `lower`.
        tensor.data_type = TensorProto.FLOAT
        return
    if quarter is None:
        value = numpy_helper.to_array(tensor).astype(np.float32)
    else:
        value = decode(np.frombuffer(tensor.raw_data, np.uint8), quarter).reshape(tensor.dims)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
