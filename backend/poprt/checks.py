"""What the IPU cannot run is refused here, by the name of the node."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from simipu import CompileError
from simipu.numerics import iter_subgraphs
from simipu.shapes import infer_shapes

_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in "FLOAT FLOAT16 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 BOOL".split()
)
"""INT64 stays inside graphs only, for shapes and indices; inputs and outputs become INT32 (the chip has no 64 bit)."""


def check_operators(graph: onnx.GraphProto) -> None:
    """Raise CompileError at the first operator that is not of the ONNX standard."""
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
            operator = f"{node.domain or 'ai.onnx'}.{node.op_type}"
            raise CompileError(
                f"node {describe(node)}: operator {operator} is not supported on the IPU; only operators of the "
                "standard domain ai.onnx are"
            )
        for subgraph in iter_subgraphs(node):
            check_operators(subgraph)


def check_static(model: onnx.ModelProto) -> None:
    """Raise CompileError at the first tensor whose type the chip lacks or whose shape is known at run time only."""
    try:
        graph = infer_shapes(model, strict=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise CompileError(f"shape inference failed: {' '.join(str(error).split())}") from error
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    for value in graph.input:
        _check_type(f"input {value.name!r}", value.type)
    for node in graph.node:
        for name in node.output:
            if name:
                _check_result(node, name, known.get(name))


def _check_result(node: onnx.NodeProto, name: str, value: onnx.ValueInfoProto | None) -> None:
    if value is None:
        raise CompileError(f"node {describe(node)}: the shape of its output {name!r} cannot be inferred")
    _check_type(f"node {describe(node)}: output {name!r}", value.type)
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise CompileError(
            f"node {describe(node)}: the shape of its output {name!r} depends on the data and is known at run time only; "
            "the IPU runs static graphs only"
        )


def _check_type(what: str, found: onnx.TypeProto) -> None:
    if not found.HasField("tensor_type"):
        raise CompileError(f"{what} is a {found.WhichOneof('value')}; the IPU has tensors only")
    data_type = found.tensor_type.elem_type
    if data_type not in _TYPES:
        raise CompileError(
            f"{what} has type {TensorProto.DataType.Name(data_type)}, which the IPU lacks; it has "
            f"{', '.join(sorted(TensorProto.DataType.Name(t) for t in _TYPES))}. Cast it before exporting the model"
        )


def describe(node: onnx.NodeProto) -> str:
    """A node as its author knows it: its name, or what it makes where it has none."""
    return f"{node.name or '(making ' + node.output[0] + ')'!r} ({node.op_type})" if node.output else repr(node.name)
