"""What the chip's half precision does to values, written as a graph that ONNX Runtime computes exactly so.

ONNX Runtime's CPU kernels keep fp32 between the operators of an fp16 graph, which hides overflow and rounding. So a graph
in the chip's types is lowered to one that computes in fp32 and rounds every half result: a pair of Casts after each
operator that makes new values. Inside an operator the arithmetic is fp32 (the chip's float partials). No cycles here.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EXACT_OPERATORS = frozenset(
    "Abs Ceil Clip Concat Constant ConstantOfShape DepthToSpace Dropout Expand Flatten Floor Gather GatherElements "
    "GatherND GlobalMaxPool Identity If Max MaxPool Min Neg Pad ReduceMax ReduceMin Relu Reshape Round ScatterElements "
    "ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where".split()
)
"""Operators that only move or choose among values: halves in, halves out, nothing to round."""


def lower(model: onnx.ModelProto) -> onnx.ModelProto:
    """The fp32 graph that computes what `model` computes in half, bit for bit after each operator's fp32 result.

    Graph inputs and outputs keep their names and types. A model without half tensors comes back as it is. Half
    initializers without data (device variables) become fp32 ones: whoever feeds them widens them.
    """
    halves = _find_halves(onnx.shape_inference.infer_shapes(model).graph)
    if not halves:
        return model
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    _lower_graph(lowered.graph, halves, borders=True)
    return lowered


def _find_halves(graph: onnx.GraphProto) -> set[str]:
    """Names of all half tensors of a graph and its subgraphs."""
    values = [*graph.input, *graph.output, *graph.value_info]
    halves = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT16}
    halves.update(tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT16)
    for node in graph.node:
        if node.op_type == "Constant" and any(a.t.data_type == TensorProto.FLOAT16 for a in node.attribute):
            halves.update(node.output)
        for subgraph in iter_subgraphs(node):
            halves |= _find_halves(subgraph)
    return halves


def iter_subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _lower_graph(graph: onnx.GraphProto, halves: set[str], *, borders: bool) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    nodes: list[onnx.NodeProto] = []
    if borders:
        wide_inputs = {v.name: f"{v.name}/wide" for v in graph.input if v.name in halves}
        wide_outputs = {v.name: f"{v.name}/wide" for v in graph.output if v.name in halves}
        nodes += [_cast(name, wide, TensorProto.FLOAT) for name, wide in wide_inputs.items()]
        renames = {**wide_inputs, **wide_outputs}
        _rename_uses(graph, renames)
        halves = halves | set(renames.values())
    else:
        _widen_values([*graph.input, *graph.output])
    del graph.value_info[:]
    for node in graph.node:
        nodes += _lower_node(node, halves)
    if borders:
        nodes += [_cast(wide, name, TensorProto.FLOAT16) for name, wide in wide_outputs.items()]
    del graph.node[:]
    graph.node.extend(nodes)


def _rename_uses(graph: onnx.GraphProto, renames: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renames.get(name, name) for name in node.input]
        node.output[:] = [renames.get(name, name) for name in node.output]
        for subgraph in iter_subgraphs(node):
            _rename_uses(subgraph, renames)


def _lower_node(node: onnx.NodeProto, halves: set[str]) -> list[onnx.NodeProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
    for subgraph in iter_subgraphs(node):
        _lower_graph(subgraph, halves, borders=False)
    if node.op_type == "Cast":
        return _lower_cast(node, halves)
    results = [name for name in node.output if name in halves]
    if node.op_type in EXACT_OPERATORS or not results:
        return [node]
    node.output[:] = [f"{name}/exact" if name in halves else name for name in node.output]
    return [node, *(rounding for name in results for rounding in _round(f"{name}/exact", name))]


def _lower_cast(node: onnx.NodeProto, halves: set[str]) -> list[onnx.NodeProto]:
    if node.output[0] in halves:
        return _round(node.input[0], node.output[0])
    to = next(attribute.i for attribute in node.attribute if attribute.name == "to")
    if to == TensorProto.FLOAT and node.input[0] in halves:
        return [helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)]
    return [node]


def _round(source: str, result: str) -> list[onnx.NodeProto]:
    """Round to half (nearest even, overflow to infinity) and widen again."""
    half = f"{result}/half"
    return [_cast(source, half, TensorProto.FLOAT16), _cast(half, result, TensorProto.FLOAT)]


def _cast(source: str, result: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type != TensorProto.FLOAT16:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.data_type = TensorProto.FLOAT
        return
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _widen_values(values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
