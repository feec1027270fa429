"""Pass that writes results without elements as constants: there is nothing to compute, and ONNX
Runtime's kernels reject many empty operands, or end the process."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import GraphView, Results, Site, Tape, Value, attribute, iter_bodies
from simipu.operators import Family, operator_of

from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import NodeRule

_SCALES, _SIZES = 2, 3
"""Inputs of a Resize from opset 11 on, of which it has one."""
_FIRST_SCALES = 1
"""Input of an Upsample, and of a Resize of opset 10, that is its scales."""


@register(
    "settle_nothing", stage=Stage.INTERFACE, default=True, is_ours=True, before="constant_folding"
)
class SettleNothing(NodeRule):
    """Write results without elements as constants. Operators that move elements, or compute each
    for itself, stay: they compute nothing of nothing, and rows stay rows."""

    op_types = frozenset()
    prefix = "nothing"

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether the pass looks at a node."""
        if node.domain or any(iter_bodies(node)) or node.op_type in ("Constant", "ConstantOfShape"):
            return False
        entry = operator_of(node)
        return not (entry.is_elementwise or entry.keeps_elements or entry.is_view)

    def _infer(self, model: onnx.ModelProto) -> onnx.GraphProto:
        """Infer the shapes, those of outputs anew: their nodes may have been settled since."""
        declared = [copy.deepcopy(value) for value in model.graph.output]
        inputs = {value.name for value in model.graph.input}
        for value in model.graph.output:
            if value.name not in inputs:
                value.type.tensor_type.ClearField("shape")
        model_known = super()._infer(model)
        for value, original, inferred in zip(
            model.graph.output, declared, model_known.output, strict=True
        ):
            has_shape = inferred.type.tensor_type.HasField("shape")
            value.CopyFrom(inferred if has_shape else original)
        return model_known

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return constants, if all results are empty."""
        view, find_fault = site.facts, operator_of(site.node).fault
        if find_fault and find_fault(site.node, [view.shape(name) for name in site.node.input]):
            return None  # admission names it
        results: list[Value | None] = []
        for name in site.node.output:
            shape = _find_shape(site.node, name, view) if name else (0,)
            kind = view.type(name) if name else TensorProto.FLOAT
            if shape is None or 0 not in shape or kind in (0, TensorProto.STRING):
                return None
            zeros = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))
            results.append(op.constant(zeros, zeros.dtype) if name else None)
        return results


def _find_shape(node: onnx.NodeProto, name: str, view: GraphView) -> Sequence[int] | None:
    """Return the shape of a result. Shape inference finds none for a Resize to a size of 0, nor
    for a GroupNormalization of nothing."""
    shape, source = view.shape(name), view.shape(node.input[0]) if node.input else None
    if shape is not None or source is None:
        return shape
    if operator_of(node).family is Family.NORM:
        return source if name == node.output[0] else None
    return _find_resized(node, source, view) if node.op_type in ("Resize", "Upsample") else None


def _find_resized(
    node: onnx.NodeProto, source: Sequence[int], view: GraphView
) -> Sequence[int] | None:
    """Return the shape of the result of a Resize or an Upsample from its sizes or scales."""
    axes = [axis % len(source) for axis in attribute(node, "axes") or range(len(source))]
    result = list(source)
    is_first = len(node.input) == _FIRST_SCALES + 1
    scales = _read(node, _FIRST_SCALES if is_first else _SCALES, view)
    sizes = _read(node, _SIZES, view)
    numbers = sizes if sizes is not None else scales
    is_stretched = attribute(node, "keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if numbers is None or len(numbers) != len(axes) or not (sizes is None or is_stretched):
        return None
    for axis, number in zip(axes, numbers, strict=True):
        result[axis] = math.floor(number if sizes is not None else source[axis] * number)
    return result


def _read(node: onnx.NodeProto, place: int, view: GraphView) -> Sequence[float] | None:
    """Return the numbers of a constant input, or None if it is missing, empty, or computed."""
    value = view.value(node.input[place]) if place < len(node.input) else None
    return value.tolist() if value is not None and value.size else None
