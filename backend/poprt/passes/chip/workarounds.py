"""Passes that replace forms which the chip's compiler does not support, though the standard allows
them: integers where it computes in floats, negative axes and indices, 64-bit indices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import attribute
from simipu.operators import names_where

from poprt.rewrite.base import Stage, register
from poprt.rewrite.patterns import Op, Var
from poprt.rewrite.rules import NodeRule
from poprt.rewrite.views import WHOLE, GraphView

_SETTINGS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSumSquare Resize".split()
)
"""Operators with one data input among those of floats only; their other inputs are axes, scales and
sizes, which keep their types."""

_WIDENED = frozenset(
    "Add Clip Div Greater Less Max Min Mul Neg ReduceMax ReduceMin ReduceProd ReduceSum Sub "
    "Sum".split()
)
"""Operators whose older versions support fewer integer types than their newest, or none."""
_COMPARING = frozenset(("Greater", "Less"))
"""Operators whose results are booleans, which are not cast back."""

_INDICES = (TensorProto.INT32, TensorProto.INT64)
_HOT = (TensorProto.FLOAT, TensorProto.FLOAT16)


@register(
    "widen_integers", stage=Stage.FOLDING, default=True, is_ours=True, before=("check_types",)
)
class WidenIntegers(NodeRule):
    """Whole numbers that an operator does not take in the model's opset are those of 32 bits in it,
    or, where it takes floats only, floats: the same as long as nothing has more than their 24 bits.

    PyTorch's exporter (a Clip of integers at opset 11) and published scripts (int8 at opset 11)
    write such nodes, though the standard has them later only.
    """

    op_types = _WIDENED

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node between Casts, if it needs a wider type."""
        given = view.type(node.input[0])
        wide = _find_wide(node.op_type, given, view.opset) if given in WHOLE else given
        if wide == given:
            return None
        is_reduced = node.op_type.startswith("Reduce")  # its second input is axes
        places = [0] if is_reduced else [place for place, name in enumerate(node.input) if name]
        return _compute_in(wide, node, places, None if node.op_type in _COMPARING else given, view)


def _compute_in(
    wide: int, node: onnx.NodeProto, places: Iterable[int], back: int | None, view: GraphView
) -> list[onnx.NodeProto]:
    """Return the node with those inputs cast to another type, and its result cast to `back`; None
    keeps the result."""
    chain = view.start(node, "wide")
    inputs = list(node.input)
    for place in places:
        inputs[place] = chain.add("Cast", inputs[place], to=wide)
    made = node.output[0] if back is None else chain.new_name()
    own = helper.make_node(node.op_type, inputs, [made], name=node.name)
    own.attribute.extend(node.attribute)
    chain.nodes.append(own)
    if back is not None:
        chain.add_as(node.output[0], "Cast", made, to=back)
    return chain.nodes


def _find_wide(op_type: str, given: int, opset: int) -> int:
    """Return the type in which an operator of an opset computes integers. It is their own type if
    the operator supports it, or if it supports no wider one."""
    try:
        types = onnx.defs.get_schema(op_type, opset).inputs[0].types
    except onnx.defs.SchemaError:
        return given  # unknown opset: check_opset reports it
    for wide in (given, TensorProto.INT32, TensorProto.FLOAT):
        if f"tensor({TensorProto.DataType.Name(wide).lower()})" in types:
            return wide
    return given


@register("float_ops_workaround", stage=Stage.PATTERNS)
class FloatOpsWorkaround(NodeRule):
    """Convert integers to float for operators that the chip computes in float, and convert the
    results back; this is exact for values of up to 24 bits."""

    op_types = names_where(lambda entry: entry.floats_only)

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node between Casts, if it reads integers."""
        result = view.type(node.output[0])
        count = 1 if node.op_type in _SETTINGS else len(node.input)
        wide = [place for place in range(count) if view.type(node.input[place]) in WHOLE]
        if not wide or 0 not in wide:
            return None
        return _compute_in(TensorProto.FLOAT, node, wide, result or view.type(node.input[0]), view)


_INDEX = Var("index")
_MOVED = Op("Where", Op("Less", _INDEX), Op("Add", _INDEX), _INDEX)
"""Indices that are moved already."""


@register("indices_workaround", stage=Stage.PATTERNS)
class IndicesWorkaround(NodeRule):
    """Convert indices of Gather and GatherElements to int32, counted from the front."""

    op_types = frozenset(("Gather", "GatherElements"))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with its indices changed. Constants are changed at once; for computed
        indices, nodes move the negative ones at run time."""
        data, indices = node.input
        shape, axis = view.shape(data), attribute(node, "axis", 0)
        if not shape or view.type(indices) not in _INDICES:
            return None
        size = shape[axis]
        if size > np.iinfo(np.int32).max:
            return None
        value = view.value(indices)
        chain = view.start(node, "indices")
        if value is not None:
            if value.dtype == np.int32 and (value >= 0).all():
                return None
            found = chain.constant(np.where(value < 0, value + size, value), np.int32)
        elif view.type(indices) == TensorProto.INT32 and _MOVED.find(indices, view) is not None:
            return None
        else:
            if view.type(indices) == TensorProto.INT64:
                indices = chain.add("Cast", indices, to=TensorProto.INT32)
            is_negative = chain.add("Less", indices, chain.constant(0, np.int32))
            found = chain.add(
                "Where",
                is_negative,
                chain.add("Add", indices, chain.constant(size, np.int32)),
                indices,
            )
        chain.add_as(node.output[0], node.op_type, data, found, axis=axis)
        return chain.end(node)


@register("onehot_workaround", stage=Stage.PATTERNS)
class OnehotWorkaround(NodeRule):
    """OneHot counts its axis from the front, and its depth is int32."""

    op_types = frozenset(("OneHot",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with its axis and depth changed. A depth of more than 31 bits stays: no
        chip has enough memory for the result."""
        rank, depth = view.rank(node.input[0]), view.value(node.input[1])
        axis = attribute(node, "axis", -1)
        is_wide = (
            depth is not None and depth.dtype != np.int32 and depth.max() <= np.iinfo(np.int32).max
        )
        # ONNX Runtime has kernels for these types only.
        is_wide &= view.type(node.input[0]) in _INDICES and view.type(node.input[2]) in _HOT
        if rank is None or not (axis < 0 or is_wide):
            return None
        chain = view.start(node, "depth")
        inputs = list(node.input)
        if is_wide and depth is not None:
            inputs[1] = chain.constant(depth, np.int32)
        chain.add_as(node.output[0], "OneHot", *inputs, axis=axis % (rank + 1))
        return chain.end(node)


@register("topk_workaround", stage=Stage.PATTERNS)
class TopkWorkaround(NodeRule):
    """TopK counts its axis from the front."""

    op_types = frozenset(("TopK",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with its axis counted from the front; the default is the last axis,
        -1."""
        rank, axis = view.rank(node.input[0]), attribute(node, "axis", -1)
        if not rank or axis >= 0:
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        del made.attribute[:]
        made.attribute.extend(each for each in node.attribute if each.name != "axis")
        made.attribute.append(helper.make_attribute("axis", axis % rank))
        return [made]
