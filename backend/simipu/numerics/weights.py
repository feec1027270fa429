"""Readers of weights, and the widening of weights that no node reads in their narrow type."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import attribute, iter_bodies

from simipu.numerics.kernels import Codes
from simipu.numerics.quarter import QUARTERS, QuarterFormat, decode


def iter_reads(graph: onnx.GraphProto) -> Iterator[tuple[str, int, onnx.NodeProto]]:
    """Yield the tensors that nodes of a graph read, with the input's index and the node; the index
    is -1 inside a body."""
    for node in graph.node:
        yield from ((name, place, node) for place, name in enumerate(node.input))
        for body in iter_bodies(node):
            yield from ((name, -1, inner) for name, _, inner in iter_reads(body))
            yield from ((value.name, -1, node) for value in body.output)


def find_codes(
    graph: onnx.GraphProto,
    quarters: Mapping[str, QuarterFormat],
    takes: Callable[[onnx.NodeProto, int], bool],
) -> dict[str, Codes]:
    """Return the 8-bit weights of a graph that only its products read, by the name of the widened
    half. `takes` says whether a node accepts codes at an input."""
    stored = {tensor.name for tensor in graph.initializer if tensor.name in quarters}
    casts = [node for node in graph.node if node.op_type == "Cast" and node.input[0] in stored]
    given = {value.name for value in graph.output}
    wide = {node.output[0]: node for node in casts if node.output[0] not in given}
    lost = {node.input[0] for node in casts if node.output[0] not in wide}
    for name, place, node in iter_reads(graph):
        if name in wide and not takes(node, place):
            lost.add(wide.pop(name).input[0])
        if name in stored and node.op_type != "Cast":
            lost.add(name)
    return {
        name: Codes(node.input[0], quarters[node.input[0]], attribute(node, "scale", 0))
        for name, node in wide.items()
        if node.input[0] not in lost
    }


def widen_tensors(graph: onnx.GraphProto, given: Container[str] = ()) -> None:
    """Widen the initializers of a graph to float, except `given` ones; see `widen_tensor`."""
    for tensor in graph.initializer:
        if tensor.name not in given:
            widen_tensor(tensor)


def widen_tensor(tensor: onnx.TensorProto) -> None:
    """Widen a half or an 8-bit tensor to float, in place; other tensors stay."""
    quarter = QUARTERS.get(tensor.data_type)
    if quarter is None and tensor.data_type != TensorProto.FLOAT16:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        # A weight without data: the caller feeds it as floats, see `lower`.
        tensor.data_type = TensorProto.FLOAT
        return
    if quarter is None:
        value = numpy_helper.to_array(tensor).astype(np.float32)
    else:
        value = decode(np.frombuffer(tensor.raw_data, np.uint8), quarter).reshape(tensor.dims)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
