"""Types and shapes of a single node's results, for a builder that is asked for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping

import onnx
import onnxgraph

from popart.opsets import DEFAULT_VERSION, ONNX_DOMAIN

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
    for name in dict.fromkeys(_iter_reads(node)):
        if name in constants:
            model.graph.initializer.append(constants[name])
            model.graph.initializer[-1].name = name
        if name in types:
            model.graph.input.add(name=name, type=types[name])
    inferred = onnxgraph.infer_shapes(model)
    return {
        each.name: each.type
        for each in inferred.graph.value_info
        if each.name in node.output and is_known(each.type)
    }


def is_known(kind: onnx.TypeProto) -> bool:
    """Return whether a type says what the elements are."""
    return bool(kind.tensor_type.elem_type) or kind.HasField("sequence_type")


def keep_constant(
    constants: MutableMapping[str, onnx.TensorProto], name: str, tensor: onnx.TensorProto
) -> None:
    """Keep a constant if a shape may depend on it."""
    if math.prod(tensor.dims) <= _MAX_CONSTANT and not tensor.external_data:
        constants[name] = tensor


def _iter_reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _iter_reads(inner)
