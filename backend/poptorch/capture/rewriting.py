"""Rewrites of a captured model: names, constant results, and poprt's conversion around weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import numpy_helper
from onnxgraph import iter_graphs
from popart.lowering import has_collectives
from poprt import Converter
from simipu import CompileError
from simipu.operators import operator_of

from poptorch.errors import Error

_POPRT_ONLY = ["replace_where_with_wherev2"]
"""Passes that write operators which PopRT has and PopTorch's compiler does not."""


def convert_around_weights(model: onnx.ModelProto, weights: Collection[str]) -> onnx.ModelProto:
    """Return a model as poprt converts it, whose weights keep their names and values.

    Constants are folded and types become those of the IPU. A weight is never folded into another
    value, because a module may replace it later.

    Args:
        model: The model, which is changed.
        weights: Names of its initializers that are weights; the others are constants.

    Returns:
        The converted model.

    Raises:
        Error: If poprt rejects the model.
    """
    moved = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in weights}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    for name, tensor in moved.items():
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        )
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    try:
        converted: onnx.ModelProto = Converter(
            skip_passes=_POPRT_ONLY, disable_fast_norm=True, disable_progress_bar=True
        ).convert(model)
    except CompileError as error:
        raise Error(str(error)) from error
    graph = converted.graph
    for value in list(graph.input):
        if value.name in moved:
            graph.initializer.append(_cast(moved[value.name], value))
            graph.input.remove(value)
    return converted


def _cast(tensor: onnx.TensorProto, value: onnx.ValueInfoProto) -> onnx.TensorProto:
    """Return a weight in the type that the converted graph reads."""
    kind = value.type.tensor_type.elem_type
    if tensor.data_type == kind:
        return tensor
    array = numpy_helper.to_array(tensor).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return numpy_helper.from_array(array, tensor.name)


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors of a graph and of its bodies.

    Args:
        graph: The graph, which is changed.
        names: New names by old ones. Tensors that have a new name already are moved away.
    """
    inner_names = {name for node in graph.node for name in node.output} - names.keys()
    full = {name: f"{name}/inner" for name in inner_names & set(names.values())} | dict(names)
    for inner in iter_graphs(graph):
        for node in inner.node:
            node.input[:] = [full.get(name, name) for name in node.input]
            node.output[:] = [full.get(name, name) for name in node.output]
        values: list[Any] = [*inner.input, *inner.output, *inner.initializer, *inner.value_info]
        for value in values:
            value.name = full.get(value.name, value.name)


def find_constants(
    model: onnx.ModelProto, outputs: Sequence[str], weights: Collection[str]
) -> dict[str, Any]:
    """Return the values of outputs that depend on no input, no weight and no random number.

    Args:
        model: The model.
        outputs: Names of the outputs in question.
        weights: Names of the weights.
    """
    graph = model.graph
    varying = {value.name for value in graph.input} | set(weights)
    for node in graph.node:
        inner = [inner_node for body in iter_graphs_of(node) for inner_node in body.node]
        read = {name for inner_node in (node, *inner) for name in inner_node.input}
        draws = any(operator_of(inner_node).draws(inner_node) for inner_node in (node, *inner))
        exchanges = has_collectives(onnx.GraphProto(node=[node]))
        if read & varying or draws or exchanges:
            varying.update(node.output)
    constant = [name for name in dict.fromkeys(outputs) if name not in varying]
    if not constant:
        return {}
    extracted = _extract(model, constant)
    session = onnxruntime.InferenceSession(
        extracted.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip(constant, session.run(constant, {}), strict=True))


def iter_graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a node and those within."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            if body.node:
                graphs.extend(iter_graphs(body))
    return graphs


def _extract(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a model that computes the outputs."""
    graph = model.graph
    reads, nodes = set(outputs), []
    for node in reversed(graph.node):
        if reads & set(node.output):
            nodes.append(node)
            reads.update(node.input)
            reads.update(name for body in iter_graphs_of(node) for name in _reads(body))
    part = onnx.helper.make_graph(
        nodes[::-1],
        "constants",
        [],
        [value for value in graph.output if value.name in outputs],
        [tensor for tensor in graph.initializer if tensor.name in reads],
    )
    part_model = onnx.helper.make_model(part, opset_imports=model.opset_import)
    part_model.ir_version = model.ir_version
    part_model.functions.extend(model.functions)
    return part_model


def _reads(body: onnx.GraphProto) -> set[str]:
    return {name for node in body.node for name in node.input} | {
        value.name for value in body.output
    }
