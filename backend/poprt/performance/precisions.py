"""Precision of a compiled model, as profiles and the commands' output name it."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnxgraph import attribute, find_inputs
from simipu.numerics import QUARTERS


def describe_arithmetic(precision: str, partials_type: str) -> str:
    """Return the precision with the type of partial sums; fp32 has float partials only."""
    return precision if precision == "fp32" else f"{precision}, {partials_type} partials"


def find_precision(model: onnx.ModelProto, asked: str | None = None) -> str:
    """Return the precision of a converted graph by its weights, or by its inputs if there are none.

    Precision fp32, if it was `asked` for, keeps the model's own types, which may be half. Any other
    is what was asked for.
    """
    if asked not in (None, "fp32"):
        return asked
    types = {tensor.data_type for tensor in model.graph.initializer}
    if types & QUARTERS.keys():
        casts = (node for node in model.graph.node if node.op_type == "Cast")
        narrows = any(attribute(node, "to") in QUARTERS for node in casts)
        return "fp8" if narrows else "fp8_weight"
    if not types & {TensorProto.FLOAT, TensorProto.FLOAT16}:
        types = {value.type.tensor_type.elem_type for value in find_inputs(model.graph)}
    return "fp16" if TensorProto.FLOAT16 in types else "fp32"
