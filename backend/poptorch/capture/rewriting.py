"""Rewrites of a captured model: names, constant results, and poprt's conversion around weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import numpy_helper
from onnxgraph import (
    drop_initializers,
    drop_unread_nodes,
    iter_graphs,
    iter_nodes,
    iter_reads,
    keep_outputs,
    used_names,
)
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
    # As inputs, weights are no constants to poprt, which folds those.
    for name, tensor in moved.items():
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        )
    drop_initializers(model.graph, moved.keys())
    try:
        # Fast norms are PopRT's own operators, too.
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
        inner = onnx.GraphProto(node=[node])
        draws = any(operator_of(inner_node).draws(inner_node) for inner_node in iter_nodes(inner))
        if varying & set(iter_reads(node)) or draws or has_collectives(inner):
            varying.update(node.output)
    constant = [name for name in dict.fromkeys(outputs) if name not in varying]
    if not constant:
        return {}
    extracted = _extract(model, constant)
    session = onnxruntime.InferenceSession(
        extracted.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip(constant, session.run(constant, {}), strict=True))


def _extract(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a model that computes the outputs."""
    graph = model.graph
    part = onnx.GraphProto(name="constants", node=graph.node, output=graph.output)
    keep_outputs(part, outputs)
    drop_unread_nodes(part)
    names = used_names(part)
    part.initializer.extend(tensor for tensor in graph.initializer if tensor.name in names)
    return onnx.helper.make_model(
        part,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        functions=model.functions,
    )
