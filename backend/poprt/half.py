"""float_to_half: a float32 graph becomes one in half, as the chip computes it (precision fp16)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import CompileError
from simipu.numerics import iter_subgraphs
from simipu.shapes import infer_shapes

HALF_MAX = 65_504.0


def float_to_half(model: onnx.ModelProto, skip_op_types: Collection[str] = ()) -> None:
    """Turn inputs, outputs, weights and operators of `model` to half, in place.

    Operators of `skip_op_types` (fp16_skip_op_types) and those that have no half variant stay in float, between casts;
    what one of them hands to another stays in float on the way.
    Finite weights beyond the range of half become its largest number, so that a mask of -FLT_MAX does not become -inf.
    """
    floats = _find_floats(model)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    kept = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.TensorProto] = []
    in_float: dict[str, str] = {}
    version = next(entry.version for entry in model.opset_import if not entry.domain)
    for node in graph.node:
        if any(True for _ in iter_subgraphs(node)):
            raise CompileError(
                f"node {node.name!r} ({node.op_type}): control flow is not supported with precision fp16; use fp32"
            )
        nodes += _convert(node, floats, kept, added, in_float, version, node.op_type in skip_op_types)
    for tensor in kept.values():
        tensor.CopyFrom(narrow(tensor))
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(added)
    _drop_unused(graph)


def _find_floats(model: onnx.ModelProto) -> set[str]:
    graph = infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return floats | {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}


def narrow(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The same tensor in half: nearest, finite values clamped to the finite range."""
    value = numpy_helper.to_array(tensor)
    clamped = np.where(np.isfinite(value), np.clip(value, -HALF_MAX, HALF_MAX), value)
    return numpy_helper.from_array(clamped.astype(np.float16), tensor.name)


def _convert(
    node: onnx.NodeProto,
    floats: set[str],
    weights: dict[str, onnx.TensorProto],
    added: list[onnx.TensorProto],
    float_names: dict[str, str],
    version: int,
    skip: bool,
) -> list[onnx.NodeProto]:
    """The nodes that take a node's place. `float_names` maps a half tensor to its float twin, where there is one."""
    if node.op_type == "Cast":
        _retype_attribute(node, "to")
        return [node]
    schema = onnx.defs.get_schema(node.op_type, version)
    in_float = skip or not _has_half(schema)
    before = []
    for index, name in enumerate(node.input):
        if name not in floats or not (in_float or _wants_float(schema, index)):
            continue
        if name not in float_names:
            float_names[name] = f"{name}/float"
            if name in weights:
                added.append(_renamed(weights[name], float_names[name]))
            else:
                before.append(_cast(name, float_names[name], TensorProto.FLOAT))
        node.input[index] = float_names[name]
    if not in_float:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(narrow(attribute.t))
        _retype_attribute(node, "dtype")
        return [*before, node]
    after = []
    for index, name in enumerate(node.output):
        if name in floats:
            node.output[index] = float_names[name] = f"{name}/float"
            after.append(_cast(float_names[name], name, TensorProto.FLOAT16))
    return [*before, node, *after]


def _cast(source: str, result: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to)


def _retype_attribute(node: onnx.NodeProto, name: str) -> None:
    for attribute in node.attribute:
        if attribute.name == name and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16


def _has_half(schema: onnx.defs.OpSchema) -> bool:
    """Whether any input or output may be half; operators without float operands say yes and are left alone."""
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


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    unique = {tensor.name: tensor for tensor in graph.initializer if tensor.name in used}
    kept = list(unique.values())
    del graph.initializer[:]
    graph.initializer.extend(kept)
