"""Passes that remove nodes which return an input unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnxgraph import GraphEditor, attribute, is_untrained
from onnxgraph.opsets import DROPOUT_NEVER_TRAINS, DROPOUT_TAKES_MODE, PAD_TAKES_SIZES
from simipu.operators import names_where, operator_of

from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import GraphRule


class _Bypass(GraphRule):
    """Base class of passes that remove nodes whose result equals one of their inputs."""

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the input that a node returns unchanged, or None if it computes something."""
        raise NotImplementedError

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Bypass the node, unless its other results are read."""
        if node.input and not any(view.is_read(name) for name in node.output[1:] if name):
            source = self.passes_on(node, view)
            if source:
                view.bypass(node, source)


@register("eliminate_identity", stage=Stage.FOLDING, default=True)
class EliminateIdentity(_Bypass):
    """Drop Identity, and Dropout where it does not train.

    One stays that gives an input or a constant the name of an output.
    """

    op_types = frozenset({"Identity", "Dropout"})
    needs_shapes = False

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the data input, if the node passes it on."""
        if node.op_type == "Dropout" and not _is_idle(node, view):
            return None
        return node.input[0]


def _is_idle(node: onnx.NodeProto, view: GraphEditor) -> bool:
    if view.opset < DROPOUT_TAKES_MODE:
        return view.opset >= DROPOUT_NEVER_TRAINS or bool(attribute(node, "is_test", 0))
    if len(node.input) < 3 or not node.input[2]:  # noqa: PLR2004  data, ratio, training_mode
        return True
    trains = view.value(node.input[2])
    return trains is not None and not trains.any()


@register("eliminate_nop_cast", stage=Stage.FOLDING, default=True)
class EliminateNopCast(_Bypass):
    """Drop a Cast to the type that there is."""

    op_types = frozenset({"Cast"})

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the input of a Cast to its own type."""
        return node.input[0] if view.type(node.input[0]) == attribute(node, "to", 0) != 0 else None


@register("eliminate_nop_arithmetic", stage=Stage.FOLDING, default=True)
class EliminateNopArithmetic(_Bypass):
    """Drop x + 0, x - 0, x * 1 and x / 1, where the shape stays. (Of -0 + 0 the sign is lost.) A
    bias or a scale that is not trained yet stays."""

    op_types = names_where(lambda entry: entry.neutral is not None)

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the other operand, if one is neutral and the shape stays."""
        operator = operator_of(node)
        if operator.neutral is None:
            return None
        for place in (1, 0) if operator.commutes else (1,):
            other = node.input[1 - place]
            if _is_full(view, node.input[place], operator.neutral) and keeps_shape(
                node, other, view
            ):
                return other
        return None


@register("eliminate_nop_where", stage=Stage.FOLDING, default=True, is_ours=True)
class EliminateNopWhere(_Bypass):
    """Drop a Where that gives one operand everywhere, where the shape stays: a constant says so, or
    both operands are one."""

    op_types = frozenset({"Where"})

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the operand that is taken everywhere."""
        condition, one, other = node.input
        chosen = view.value(condition)
        if one != other and (chosen is None or not chosen.size or chosen.any() != chosen.all()):
            return None
        source = one if one == other or (chosen is not None and chosen.all()) else other
        return source if keeps_shape(node, source, view) else None


def _is_full(view: GraphEditor, name: str, number: int) -> bool:
    value = view.value(name)
    if value is None or value.dtype.kind not in "fiu" or is_untrained(value):
        return False
    return bool(np.all(value == number))


def keeps_shape(node: onnx.NodeProto, source: str, view: GraphEditor) -> bool:
    """Return whether the first result of a node is known to have the shape of `source`."""
    shape = view.shape(node.output[0])
    return shape is not None and shape == view.shape(source)


class _ShapeBypass(_Bypass):
    """Base class of passes that remove nodes which keep the shape of their input."""

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the input of a node that keeps its shape."""
        return node.input[0] if keeps_shape(node, node.input[0], view) else None


@register("eliminate_nop_expand", stage=Stage.FOLDING, default=True)
class EliminateNopExpand(_ShapeBypass):
    """Drop an Expand to the shape that there is."""

    op_types = frozenset({"Expand"})


@register("eliminate_nop_flatten", stage=Stage.FOLDING, default=True)
class EliminateNopFlatten(_ShapeBypass):
    """Drop a Flatten of what is flat."""

    op_types = frozenset({"Flatten"})


@register("eliminate_nop_reshape", stage=Stage.FOLDING, default=True)
class EliminateNopReshape(_ShapeBypass):
    """Drop a Reshape to the shape that there is."""

    op_types = frozenset({"Reshape"})


@register("eliminate_nop_pad", stage=Stage.FOLDING, default=True)
class EliminateNopPad(_Bypass):
    """Drop a Pad of zero elements at each end."""

    op_types = frozenset({"Pad"})
    needs_shapes = False

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the input of a Pad of zero elements."""
        return node.input[0] if _pads(node, view) == {0} else None


def _pads(node: onnx.NodeProto, view: GraphEditor) -> set[int]:
    pads: Sequence[int] | None
    if view.opset >= PAD_TAKES_SIZES:
        pads = view.numbers(node.input[1])
    else:
        pads = attribute(node, "pads", attribute(node, "paddings"))
    return set(pads or ())


@register("eliminate_nop_transpose", stage=Stage.FOLDING, default=True)
class EliminateNopTranspose(_Bypass):
    """Drop a Transpose that leaves the axes in their order."""

    op_types = frozenset({"Transpose"})

    def passes_on(self, node: onnx.NodeProto, view: GraphEditor) -> str | None:
        """Return the input of a Transpose that keeps the order of axes."""
        order = permutation(node, view)
        return node.input[0] if order is not None and order == sorted(order) else None


def permutation(node: onnx.NodeProto, view: GraphEditor) -> list[int] | None:
    """Return the order of axes that a Transpose makes. Without one in the node it is the reverse,
    if the rank is known, else None."""
    order = attribute(node, "perm")
    if order is not None:
        return list(order)
    rank = view.rank(node.input[0])
    return None if rank is None else list(reversed(range(rank)))
