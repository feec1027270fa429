"""The check that each tensor of a model has a type of the chip and a shape that is known when the
model is compiled. Its errors name the inputs on whose values a shape depends."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnxgraph import find_inputs, infer_shapes
from simipu import CompileError
from simipu.numerics import QUARTERS
from simipu.operators import operator_of

from poprt.rewrite.base import ImmutablePass, Stage, register
from poprt.rewrite.explanations import (
    advise_to_fix,
    describe_inputs,
    describe_node,
    describe_shape,
    find_source_inputs,
    raise_for_branch,
)

_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in (
        "FLOAT FLOAT16 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 "
        "BOOL"
    ).split()
)
"""Element types that the IPU has. INT64 stays inside graphs only, for shapes and indices. Inputs
and outputs become INT32, because the chip has no 64-bit integers."""


@register("check_static", stage=Stage.CHECKS, is_ours=True)
class CheckStatic(ImmutablePass):
    """Reject tensors whose type the chip does not support, or whose shape is known at run time
    only; final_check only warns about them, because a model can be converted for inspection."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the tensors. Raise CompileError at the first invalid one."""
        try:
            graph = infer_shapes(model, strict=True).graph
        except onnx.shape_inference.InferenceError as error:
            raise_for_branch(model, _find_fault)
            raise CompileError(f"shape inference failed: {_one_line(error)}") from error
        values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
        for value in graph.input:
            _check_type(f"input {value.name!r}", value.type)
            _check_border("input", value)
            _check_fixed(value)
        for node in graph.node:
            for name in filter(None, node.output):
                _check_result(graph, node, name, values.get(name))
        for value in graph.output:
            _check_border("output", value)
        return model


def _check_fixed(value: onnx.ValueInfoProto) -> None:
    if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
        raise CompileError(
            f"input {value.name!r} has the variable shape {describe_shape(value)}; convert the "
            "model with poprt.Converter and fix it there by batch_size or input_shape"
        )


def _check_border(side: str, value: onnx.ValueInfoProto) -> None:
    kind = value.type.tensor_type.elem_type
    if kind in QUARTERS:
        raise CompileError(
            f"{side} {value.name!r} has type {TensorProto.DataType.Name(kind)}, which is for "
            "tensors inside of a model only; expected FLOAT or FLOAT16: put a Cast behind the "
            "input, or before the output"
        )


def _find_fault(model: onnx.ModelProto) -> str | None:
    try:
        infer_shapes(model, strict=True)
    except onnx.shape_inference.InferenceError as error:
        return _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_result(
    graph: onnx.GraphProto, node: onnx.NodeProto, name: str, value: onnx.ValueInfoProto | None
) -> None:
    if value is None:
        raise CompileError(
            f"node {describe_node(node)}: the shape of its output {name!r} cannot be inferred"
        )
    _check_type(f"node {describe_node(node)}: output {name!r}", value.type)
    tensor = value.type.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    if min(sizes, default=0) < 0:
        raise CompileError(
            f"node {describe_node(node)}: its output {_given_name(graph, name)!r} would have shape "
            f"{sizes}: its pads cut off more than there is; give the model a larger input "
            "(--input_shape)"
        )
    if not tensor.HasField("shape") or not all(
        dim.HasField("dim_value") for dim in tensor.shape.dim
    ):
        raise CompileError(
            f"node {describe_node(node)}: the shape of its output {_given_name(graph, name)!r} "
            f"depends on the data{_describe_cause(graph, node)}; the IPU runs static graphs "
            f"only{_advise(graph, node)}"
        )


def _find_causes(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[str]:
    """Return the computed tensors on whose values the shape of a node's result depends."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {
        name
        for constant_node in graph.node
        if constant_node.op_type == "Constant"
        for name in constant_node.output
    }
    places = [place for place in operator_of(node).shaped_by if place < len(node.input)]
    return [
        node.input[place]
        for place in places
        if node.input[place] and node.input[place] not in constants
    ]


def _find_causing_inputs(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[str]:
    causes = {
        name for cause in _find_causes(graph, node) for name in find_source_inputs(graph, cause)
    }
    return [value.name for value in find_inputs(graph) if value.name in causes]


def _describe_cause(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    causes = [_given_name(graph, cause) for cause in _find_causes(graph, node)]
    inputs = _find_causing_inputs(graph, node)
    if not causes:
        return " and is known at run time only"
    if set(causes) == set(inputs):
        return f": on the values of {describe_inputs(inputs)}, known at run time only"
    tensors = f"tensor{'s' if len(causes) > 1 else ''} {', '.join(map(repr, causes))}"
    origin = f", computed of {describe_inputs(inputs)} and" if inputs else ","
    return f": on the values of {tensors}{origin} known at run time only"


def _given_name(graph: onnx.GraphProto, name: str) -> str:
    """Return the name of a tensor in the original model. The pass int64_to_int32 gives tensors at
    the borders another name inside."""
    return (
        name.removesuffix("/int64")
        if name.removesuffix("/int64") in {v.name for v in (*graph.input, *graph.output)}
        else name
    )


def _advise(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    inputs = _find_causing_inputs(graph, node)
    if operator_of(node).counts_data:
        return ". Export the model with a result of fixed size, as a mask or the first k"
    return (
        f". If that is a setting, {advise_to_fix(inputs)}; else export the model with a fixed "
        "shape there"
        if inputs
        else ""
    )


def _check_type(what: str, found: onnx.TypeProto) -> None:
    if not found.HasField("tensor_type"):
        kind = str(found.WhichOneof("value")).removesuffix("_type")
        raise CompileError(
            f"{what} is a {kind} whose length or elements depend on the data; the IPU has tensors "
            "only: export the model with a fixed number of turns and positions"
        )
    data_type = found.tensor_type.elem_type
    if data_type not in _TYPES:
        raise CompileError(
            f"{what} has type {TensorProto.DataType.Name(data_type)}, which the IPU lacks; it has "
            f"{', '.join(sorted(TensorProto.DataType.Name(t) for t in _TYPES))}. Cast it before "
            "exporting the model"
        )
