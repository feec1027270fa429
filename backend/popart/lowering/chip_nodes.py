"""Lowering of single nodes of PopART's domain in a model that another frontend has written.

Such a model is of a newer opset than PopART's, and its other nodes are the compiler's: only the
nodes of PopART's domain are lowered, each as a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    CHIP_DOMAIN,
    drop_opset,
    infer_shapes,
    iter_bodies,
    iter_nodes,
    replace_nodes,
)

from popart.errors import popart_exception
from popart.lowering.whole_model import NEWEST_OPSET, LoweringOptions, lower

_UNSIGNED = {"CtcBeamSearchDecoder": ((1,), (1, 2))}
"""Operators with unsigned inputs and outputs: their places. Frontends may lack such types, so the
tensors are cast there; this is no fact about the operator, which has these types only."""


def lower_chip_nodes(model: onnx.ModelProto, options: LoweringOptions | None = None) -> None:
    """Replace the nodes of PopART's domain by what PopART lowers them to.

    Args:
        model: The model, which is changed.
        options: Options of the lowering; None means the defaults.

    Raises:
        popart_exception: If PopART refuses a node.
    """
    lowered: set[str] = set()
    remaining, pass_number = _count_nodes(model, lowered), 0
    if not remaining:
        return
    while remaining:
        # Types behind a node of this domain are known only once it is lowered.
        inferred = infer_shapes(model).graph
        prefix = f"{pass_number}/" if pass_number else ""
        _lower_graph(model.graph, inferred, {}, prefix, model.graph, options, lowered)
        before, remaining = remaining, _count_nodes(model, lowered)
        pass_number += 1
        if remaining == before:
            names = [node.name for node in iter_nodes(model.graph) if _is_open(node, lowered)]
            raise popart_exception(f"node {names[0]!r}: the types of its inputs are not known")
    drop_opset(model, CHIP_DOMAIN)


def _count_nodes(model: onnx.ModelProto, lowered: set[str]) -> int:
    return sum(_is_open(node, lowered) for node in iter_nodes(model.graph))


def _is_open(node: onnx.NodeProto, lowered: set[str]) -> bool:
    """Return whether a node is still to be lowered. `lowered` has the outputs of nodes that stay in
    this domain, as group norms do: the chip has them."""
    return node.domain == CHIP_DOMAIN and node.output[0] not in lowered


def _lower_graph(
    graph: onnx.GraphProto,
    inferred: onnx.GraphProto,
    outer_types: Mapping[str, onnx.TypeProto],
    prefix: str,
    main: onnx.GraphProto,
    options: LoweringOptions | None,
    lowered: set[str],
) -> None:
    """Replace the nodes of a graph and of its bodies whose inputs have known types; `inferred` is
    the graph with types, and `main` the graph that gets the initializers."""
    types = {
        **outer_types,
        **{
            tensor.name: helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            for tensor in graph.initializer
        },
        **{
            value.name: value.type
            for value in (*inferred.input, *inferred.value_info, *inferred.output)
        },
        **{
            tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            for tensor in inferred.initializer
        },
    }
    nodes: list[onnx.NodeProto] = []
    for index, (node, typed) in enumerate(zip(graph.node, inferred.node, strict=True)):
        place = f"{prefix}{node.op_type}/{index}/"
        if _is_open(node, lowered) and not all(map(types.__contains__, node.input)):
            nodes.append(node)
            continue
        if _is_open(node, lowered):
            part = _lower(node, types, place, options)
            nodes.extend(part.node)
            lowered.update(inner.output[0] for inner in part.node if inner.domain == CHIP_DOMAIN)
            main.initializer.extend(part.initializer)
            continue
        for number, (body, typed_body) in enumerate(
            zip(iter_bodies(node), iter_bodies(typed), strict=True)
        ):
            _lower_graph(body, typed_body, types, f"{place}{number}/", main, options, lowered)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _lower(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    prefix: str,
    options: LoweringOptions | None,
) -> onnx.GraphProto:
    """Return the nodes that compute a node, between casts where types are unsigned."""
    unsigned, results = _UNSIGNED.get(node.op_type, ((), ()))
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.input[:] = [f"{prefix}in{place}" for place in range(len(node.input))]
    inner.output[:] = [f"{prefix}out{place}" for place in range(len(node.output))]
    inputs = [
        helper.make_tensor_value_info(
            name,
            TensorProto.UINT32
            if place in unsigned
            else types[node.input[place]].tensor_type.elem_type,
            [dim.dim_value for dim in types[node.input[place]].tensor_type.shape.dim],
        )
        for place, name in enumerate(inner.input)
    ]
    alone = helper.make_model(
        helper.make_graph([inner], "node", inputs, []),
        opset_imports=[helper.make_opsetid("", NEWEST_OPSET), helper.make_opsetid(CHIP_DOMAIN, 1)],
    )
    model = lower(alone, list(inner.output), options=options).model
    lowered = onnx.compose.add_prefix(
        model, prefix, rename_inputs=False, rename_outputs=False
    ).graph
    casts = [
        helper.make_node("Cast", [outer], [name], to=value.type.tensor_type.elem_type)
        for outer, name, value in zip(node.input, inner.input, inputs, strict=True)
    ]
    for place, (name, outer) in enumerate(zip(inner.output, node.output, strict=True)):
        node_type, to = ("Cast", TensorProto.INT32) if place in results else ("Identity", None)
        lowered.node.append(helper.make_node(node_type, [name], [outer], to=to))
    replace_nodes(lowered, [*casts, *lowered.node])
    return lowered
