"""float_to_half and half_to_float: a graph brought to half, as the chip computes it (precision fp16), and
back to float."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto
from onnxgraph import (
    drop_weights,
    find_opset,
    infer_shapes,
    iter_bodies,
    make_cast,
    replace_nodes,
    used_names,
)
from onnxgraph.edit import forget_values
from onnxgraph.weights import retype
from simipu import CompileError


def float_to_half(
    model: onnx.ModelProto, skip_op_types: Collection[str] = (), skip_op_names: Collection[str] = ()
) -> None:
    """Turn inputs, outputs, weights and operators of `model` to half, in place.

    Operators of `skip_op_types` (fp16_skip_op_types), nodes of `skip_op_names` and operators that have no
    half variant stay in float, between casts; what one of them hands to another stays in float on the way.
    Finite weights beyond the range of half become its largest number, so that a mask of -FLT_MAX does not
    become -inf.
    """
    version = find_opset(model)
    unknown = sorted(set(skip_op_names) - set(_iter_node_names(model.graph)))
    if unknown:
        raise CompileError(
            f"fp16_skip_op_names: the model has no node {unknown[0]!r} (unnamed ones are called by their "
            "output)"
        )
    skipped = _Conversion(_find_floats(infer_shapes(model).graph), version, skip_op_types, skip_op_names)
    _convert_graph(model.graph, skipped, {})


def _iter_node_names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.name
        for subgraph in iter_bodies(node):
            yield from _iter_node_names(subgraph)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """What is known of the whole model: the names of its float tensors, its opset, operators and nodes that
    stay in float."""

    floats: set[str]
    version: int
    skip_op_types: Collection[str]
    skip_op_names: Collection[str]

    def keeps(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> bool:
        """Whether a node stays in float."""
        return node.op_type in self.skip_op_types or node.name in self.skip_op_names or not _has_half(schema)


def _convert_graph(graph: onnx.GraphProto, conversion: _Conversion, in_float: dict[str, str]) -> None:
    """A graph, or one inside a node of it. `in_float` maps half tensors that can be seen here to their float
    twins."""
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    kept = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.TensorProto] = []
    for node in graph.node:
        for subgraph in iter_bodies(node):
            _convert_graph(subgraph, conversion, dict(in_float))
        nodes += _convert(node, conversion, kept, added, in_float)
    for tensor in kept.values():
        retype(tensor, TensorProto.FLOAT16)
    forget_values(graph)
    replace_nodes(graph, nodes)
    graph.initializer.extend(added)
    drop_weights(graph, used_names(graph))


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether a model computes in half already."""
    return TensorProto.FLOAT16 in _types(model.graph)


def is_half(model: onnx.ModelProto) -> bool:
    """Whether it does so throughout, without floats beside the halves."""
    return has_halves(model) and TensorProto.FLOAT not in _types(model.graph)


def _types(graph: onnx.GraphProto) -> set[int]:
    """Element types of the inputs, weights and casts."""
    types = {value.type.tensor_type.elem_type for value in graph.input} | {
        t.data_type for t in graph.initializer
    }
    return types | {
        attribute.i for node in graph.node if node.op_type == "Cast" for attribute in node.attribute
    }


def half_to_float(model: onnx.ModelProto) -> None:
    """Turn a model in half into one in float, in place; `float_to_half` turns it back.

    ONNX Runtime, which folds constants, has few operators in half on the CPU: it would take the others apart
    and put casts around them.
    """
    _widen_graph(model.graph)
    forget_values(model.graph)


def _widen_graph(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
            _widen(attribute.t)
        for subgraph in iter_bodies(node):
            _widen_graph(subgraph)


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        retype(tensor, TensorProto.FLOAT)


def _find_floats(graph: onnx.GraphProto) -> set[str]:
    values = (*graph.input, *graph.value_info, *graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats |= {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    return floats.union(*(_find_floats(subgraph) for node in graph.node for subgraph in iter_bodies(node)))


def _convert(
    node: onnx.NodeProto,
    conversion: _Conversion,
    weights: dict[str, onnx.TensorProto],
    added: list[onnx.TensorProto],
    float_names: dict[str, str],
) -> list[onnx.NodeProto]:
    """The nodes that take a node's place. `float_names` maps a half tensor to its float twin, where there is
    one."""
    if node.op_type == "Cast":
        _retype_attribute(node, "to")
        return [node]
    schema = onnx.defs.get_schema(node.op_type, conversion.version)
    in_float = conversion.keeps(node, schema)
    before = []
    for index, name in enumerate(node.input):
        if name not in conversion.floats or not (in_float or _wants_float(schema, index)):
            continue
        if name not in float_names:
            float_names[name] = f"{name}/float"
            if name in weights:
                added.append(_renamed(weights[name], float_names[name]))
            else:
                before.append(make_cast(name, float_names[name], TensorProto.FLOAT))
        node.input[index] = float_names[name]
    if not in_float:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                retype(attribute.t, TensorProto.FLOAT16)
        _retype_attribute(node, "dtype")
        return [*before, node]
    after = []
    for index, name in enumerate(node.output):
        if name in conversion.floats:
            node.output[index] = float_names[name] = f"{name}/float"
            after.append(make_cast(float_names[name], name, TensorProto.FLOAT16))
    return [*before, node, *after]


def _retype_attribute(node: onnx.NodeProto, name: str) -> None:
    for attribute in node.attribute:
        if attribute.name == name and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16


def _has_half(schema: onnx.defs.OpSchema) -> bool:
    """Whether any input or output may be half; operators without float operands say yes and are left
    alone."""
    allowed = [parameter.types for parameter in (*schema.inputs, *schema.outputs)]
    takes_float = any("tensor(float)" in types for types in allowed)
    return not takes_float or any("tensor(float16)" in types for types in allowed)


def _wants_float(schema: onnx.defs.OpSchema, index: int) -> bool:
    """Whether that input must be float32 even in a half graph, as the scales of Resize must."""
    parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
    return "tensor(float16)" not in parameter.types and "tensor(float)" in parameter.types


def _renamed(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy
