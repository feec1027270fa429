"""Types and shapes of a single node's results, for a builder that is asked for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence

import onnx
import onnxgraph
from onnx import helper

from popart import graphcore
from popart.builder.opsets import DEFAULT_VERSION, ONNX_DOMAIN
from popart.errors import popart_exception
from popart.lowering import infer_tensors
from popart.tensorinfo import to_onnx_type

_MAX_CONSTANT = 256
"""Maximum number of elements of a constant that a shape is made of."""


def infer_node(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Return the types of a node's results that are known.

    Args:
        node: The node.
        opsets: Versions of the domains.
        types: Types of the tensors that it can read, by id.
        constants: Values of small constants, by id.

    Returns:
        Types by id.
    """
    model = onnx.ModelProto(ir_version=8)
    for domain, version in {ONNX_DOMAIN: DEFAULT_VERSION, **opsets}.items():
        model.opset_import.add(domain="" if domain == ONNX_DOMAIN else domain, version=version)
    model.graph.name = "node"
    model.graph.node.append(node)
    for name in dict.fromkeys(onnxgraph.iter_reads(node)):
        if name in constants:
            model.graph.initializer.append(constants[name])
            model.graph.initializer[-1].name = name
        if name in types:
            model.graph.input.add(name=name, type=types[name])
    if node.domain == graphcore.DOMAIN:
        return _infer_own(model)
    inferred = onnxgraph.infer_shapes(model)
    return {
        value.name: value.type
        for value in inferred.graph.value_info
        if value.name in node.output and is_known(value.type)
    }


def _infer_own(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of PopART's own operator: those of its lowering."""
    node = model.graph.node[0]
    if node.op_type in _BUILDER_SHAPES:
        return _infer_as_builder(model)
    try:
        tensors = infer_tensors(model)
    except popart_exception:  # raised again when a session is made
        return {}
    return {
        name: helper.make_tensor_type_proto(to_onnx_type(info.dataType()), info.shape())
        for name, info in tensors.items()
        if name in node.output
    }


def _infer_as_builder(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    node = model.graph.node[0]
    types = {value.name: value.type.tensor_type for value in model.graph.input}
    if not all(name in types for name in node.input):
        return {}
    shapes = [[dim.dim_value for dim in types[name].shape.dim] for name in node.input]
    shape = _BUILDER_SHAPES[node.op_type](node, shapes)
    kind = helper.make_tensor_type_proto(types[node.input[0]].elem_type, shape)
    return {node.output[0]: kind}


def _shape_subsample(node: onnx.NodeProto, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the sizes divided by the strides, rounded down; a session rounds up."""
    strides = onnxgraph.attribute(node, "strides")
    return [size // stride for size, stride in zip(shapes[0], strides, strict=False)]


def _shape_loss(node: onnx.NodeProto, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the labels' shape of a loss that is not reduced, whatever the probabilities' is."""
    unreduced = onnxgraph.attribute(node, "reduction") in ("None", b"None")
    return list(shapes[-1]) if unreduced else []


_BUILDER_SHAPES = {"Subsample": _shape_subsample, "Nll": _shape_loss}
"""Shapes of results that PopART's builder reports otherwise than its sessions."""


def is_known(kind: onnx.TypeProto) -> bool:
    """Return whether a type says what the elements are."""
    return bool(kind.tensor_type.elem_type) or kind.HasField("sequence_type")


def keep_constant(
    constants: MutableMapping[str, onnx.TensorProto], name: str, tensor: onnx.TensorProto
) -> None:
    """Keep a constant if a shape may depend on it."""
    if math.prod(tensor.dims) <= _MAX_CONSTANT and not tensor.external_data:
        constants[name] = tensor
