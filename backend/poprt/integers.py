"""int64 inputs and outputs become int32, as in the real tool: the IPU has no 64-bit integers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper
from onnxgraph import iter_bodies

_NARROWED: dict[int, int] = {TensorProto.INT64: TensorProto.INT32, TensorProto.UINT64: TensorProto.UINT32}


def int64_to_int32(model: onnx.ModelProto) -> None:
    """Narrow the 64-bit integers at the borders of `model`, in place; inside, the graph keeps its types."""
    graph = model.graph
    widen = [_border(value) for value in graph.input if value.type.tensor_type.elem_type in _NARROWED]
    narrow = [_border(value) for value in graph.output if value.type.tensor_type.elem_type in _NARROWED]
    inner = {name: f"{name}/int64" for name, _ in (*widen, *narrow)}
    _rename(graph, inner)
    # An output that nothing computes: it was folded to a constant.
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    # An output that is an input is narrow already.
    narrow = [(name, wide) for name, wide in narrow if (name, wide) not in widen]
    nodes = [
        helper.make_node("Cast", [name], [inner[name]], name=f"{name}/widen", to=wide) for name, wide in widen
    ]
    nodes += graph.node
    nodes += [
        helper.make_node("Cast", [inner[name]], [name], name=f"{name}/narrow", to=_NARROWED[wide])
        for name, wide in narrow
    ]
    del graph.node[:]
    graph.node.extend(nodes)


def _border(value: onnx.ValueInfoProto) -> tuple[str, int]:
    """Narrow one input or output; its name and the type it had."""
    wide = value.type.tensor_type.elem_type
    value.type.tensor_type.elem_type = _NARROWED[wide]
    return value.name, wide


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename what nodes take and make, those of bodies too, which see the tensors around them."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in iter_bodies(node):
            _rename(body, names)
            for value in body.output:
                value.name = names.get(value.name, value.name)
