"""Upgrade of models of opsets 1 to 6 to opset 7, the oldest for which ONNX Runtime has kernels.

In opsets before 7 an attribute says that an operand is broadcast, along axes that begin at `axis`.
A PRelu has one slope for each channel. Later opsets align the last axes, as numpy does.
Where sizes agree, a node of the old form would be computed along the wrong axis, so its operand
gets axes of one element. LEGACY_RULES has the rules for nodes with another form in opset 7. The
converter of onnx does the same, but puts the axes of an operand in the wrong place.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    STANDARD_DOMAINS,
    GraphView,
    Results,
    Site,
    Tape,
    UnknownFactError,
    attribute,
    find_opset,
    find_value,
    iter_nodes,
)
from onnxgraph.opsets import RESIZE_SCALES_FROM_MIDDLES
from simipu import CompileError

from poprt.passes.opsets.older_forms import NoOlderFormError, Older, Rule, rule
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import describe_node
from poprt.rewrite.rules import NodeRule

OLDEST_KEPT = 7
"""Oldest opset that is not upgraded; models of older opsets are upgraded to this one."""
_OF_OLD = ("axis", "broadcast", "consumed_inputs", "is_test", "output_sequence")
_FROM_FIRST = {"coordinate_transformation_mode": "asymmetric"}
"""Attribute of a Resize that scales from the first element."""
_CHANNELS = 2
"""Maximum rank at which channels are the last axis."""

LEGACY_RULES: dict[str, Rule] = {}
"""Rules by operator; a rule returns the nodes that replace one. Nodes of other operators only lose
attributes about memory use."""


@register(
    "upgrade_legacy_opset",
    stage=Stage.INTERFACE,
    default=True,
    is_ours=True,
    depend="admit",
    before="convert_version",
)
class UpgradeLegacyOpset(Pass):
    """Write a model of an opset before 7 in opset 7: operands that are broadcast along an axis get
    the axes that they lack."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Upgrade the model. Raise CompileError for a node without a newer form, and for one whose
        rank is not known."""
        if find_opset(model, OLDEST_KEPT) >= OLDEST_KEPT:
            return model
        model = _NewerForms(find_opset(model, 1)).run(model)
        for entry in model.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = OLDEST_KEPT
        # The ranks of a node's results may be known only when the nodes before it are aligned.
        while unaligned := _count_unaligned(model):
            model = _AlignedOperands().run(model)
            if _count_unaligned(model) == unaligned:
                node = next(node for node in iter_nodes(model.graph) if _is_unaligned(node))
                raise CompileError(
                    f"node {describe_node(node)}: it broadcasts as in opsets before {OLDEST_KEPT}, "
                    f"and the number of dimensions of {node.input[0]!r} or {node.input[1]!r} is "
                    "not known; give the inputs' with --input_shape, or export the model with "
                    f"opset {OLDEST_KEPT} or newer"
                )
        return model


def _is_unaligned(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS and attribute(node, "broadcast", 0) != 0


def _count_unaligned(model: onnx.ModelProto) -> int:
    return sum(_is_unaligned(node) for node in iter_nodes(model.graph))


class _NewerForms(NodeRule):
    """Rule that writes nodes in the forms of opset 7. Nodes with an operand to align keep
    `broadcast` for now."""

    name = "upgrade_legacy_opset"
    needs_shapes = False
    op_types = frozenset()

    def __init__(self, source: int) -> None:
        self._source, self.opset = source, OLDEST_KEPT

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is of the standard."""
        return node.domain in STANDARD_DOMAINS

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the nodes that the operator's rule makes."""
        older = Older(site.node, site.facts, op, self._source, OLDEST_KEPT)
        node = site.node
        try:
            if node.op_type in LEGACY_RULES:
                return LEGACY_RULES[node.op_type](op, older)
        except UnknownFactError as error:
            raise CompileError(
                f"node {describe_node(node)} of opset {self._source} has no form in opset "
                f"{OLDEST_KEPT}: {error}"
            ) from None
        is_old = older.get("consumed_inputs") is not None
        return older.without(["consumed_inputs"]) if is_old else None


class _AlignedOperands(NodeRule):
    """Rule that gives operands the missing axes of one element, where ranks are known."""

    name = "upgrade_legacy_opset"
    op_types = frozenset()

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether the node's second operand is broadcast by an attribute."""
        return _is_unaligned(node)

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Add the axes behind the operand's own, which begin at `axis`; without `axis` they are the
        last."""
        node, view = site.node, site.facts
        rank, own = view.rank(node.input[0]), view.rank(node.input[1])
        if rank is None or own is None:
            return None
        axis = site.get("axis")
        if node.op_type == "PRelu":
            axis = (
                1 if own == 1 and rank > _CHANNELS and view.shape(node.input[1]) != (1,) else None
            )
        elif axis is not None:
            # New axes in front of the operand's own would be broadcast, too.
            axis = axis + rank if axis < 0 else axis
        missing = 0 if axis is None or not own else rank - axis - own
        if missing < 0:
            raise ValueError(f"an operand of {own} dimensions at axis {axis} of {rank}")
        operand = site.input(1)
        if missing:
            operand = op.Unsqueeze(operand, axes=list(range(own, own + missing)))
        return op.copy(node, [site.x, operand], _OF_OLD)


class KeepHardmaxes(NodeRule):
    """Rule for Hardmax before opset 13, which takes its axis and all axes behind it as one.

    The converter of onnx handles Softmax and LogSoftmax only.
    """

    name = "convert_version"
    op_types = frozenset(("Hardmax",))
    needs_shapes = False

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return a Hardmax of a matrix, between a Flatten and a Reshape to the original shape."""
        shape = op.Shape(site.x)
        matrix = op.Flatten(site.x, axis=site.get("axis", 1))
        return op.Reshape(op.Hardmax(matrix, axis=1), shape)


class KeepResizes(NodeRule):
    """Rule for Resizes that the converter of onnx made from an Upsample, or a Resize of opset 10.

    Those scale from the first element. Without an attribute for that, newer ones scale from the
    middles of elements. The nearest element was the one before, and the one behind on axes that
    shrink.
    """

    name = "convert_version"
    op_types = frozenset(("Resize",))
    needs_shapes = False

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the Resize with explicit attributes, or two nodes if some axes grow and others
        shrink."""
        node = site.node
        if site.get("coordinate_transformation_mode") is not None:
            return None
        if site.get("mode", "nearest") != "nearest":
            return op.copy(node, **_FROM_FIRST)
        scales = find_value(site.facts, node.input[2])
        if scales is None:
            raise CompileError(
                f"node {describe_node(node)}: the nearest element in opset "
                f"{RESIZE_SCALES_FROM_MIDDLES} depends on its scales, and {node.input[2]!r} is "
                "computed; keep the model's opset, or export it with a newer one"
            )
        if not (scales > 1).any() or not (scales < 1).any():
            mode = "ceil" if (scales < 1).any() else "floor"
            return op.copy(node, **_FROM_FIRST, nearest_mode=mode)
        grown = op.constant(np.maximum(scales, 1))
        (larger,) = op.copy(
            node, [site.x, node.input[1], grown], **_FROM_FIRST, nearest_mode="floor"
        )
        op.nodes[-1].name = f"{larger}/Resize"
        shrunk = op.constant(np.minimum(scales, 1))
        return op.copy(node, [larger, node.input[1], shrunk], **_FROM_FIRST, nearest_mode="ceil")


_rule = partial(rule, rules=LEGACY_RULES)


@_rule("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor")
def broadcast(_op: Tape, node: Older) -> Results | None:
    """Remove the attributes of a node whose operand is not broadcast, as it has the same shape.
    Slopes of a PRelu are broadcast by default."""
    if node.node.op_type == "PRelu":
        return node.without(_OF_OLD, broadcast=1)
    return node.without(["consumed_inputs"] if node.get("broadcast", 0) else _OF_OLD)


@_rule("Gemm", "GRU", "LSTM", "RNN")
def forget(_op: Tape, node: Older) -> Results | None:
    """Remove attributes that no longer have an effect."""
    return node.without(_OF_OLD)


@_rule("BatchNormalization", "Dropout")
def infer_only(_op: Tape, node: Older) -> Results | None:
    """Remove the attribute for inference: training was the default."""
    results = [name for name in node.node.output[1:] if name]
    if not node.get("is_test", 0) and (
        node.node.op_type == "BatchNormalization" or node.get("ratio", 0.5)
    ):
        raise NoOlderFormError("it trains, as it lacks is_test=1; export the model for inference")
    if results and node.node.op_type == "BatchNormalization":
        raise NoOlderFormError(f"it makes {results[0]!r}, which is for training only")
    return node.without(_OF_OLD)


@_rule("Cast")
def cast(_op: Tape, node: Older) -> Results | None:
    """Convert the type from a string."""
    kind = node.get("to")
    if not isinstance(kind, str):
        return None
    if kind.upper() not in dict(TensorProto.DataType.items()):
        raise NoOlderFormError(f"it has to={kind!r}, which is no type")
    return node.without([], to=TensorProto.DataType.Value(kind.upper()))


@_rule("Concat")
def concat(_op: Tape, node: Older) -> Results | None:
    """Write the axis out: it had a default."""
    return node.without([], axis=node.get("axis", 1))


@_rule("LpPool", "GlobalLpPool")
def pool(_op: Tape, node: Older) -> Results | None:
    """Convert the norm to an integer; it was a float."""
    order = node.get("p", 2)
    if order != int(order):
        raise NoOlderFormError(f"it has p={order}; newer opsets have whole numbers only")
    return node.without([], p=int(order))


@_rule("Pad")
def pad(_op: Tape, node: Older) -> Results | None:
    """Rename the attribute of the pads."""
    pads = node.get("paddings")
    return None if pads is None else node.without(["paddings"], pads=list(pads))


@_rule("Reshape")
def reshape(op: Tape, node: Older) -> Results | None:
    """Convert the shape from an attribute to an input."""
    if node.name(1):
        return None
    if node.get("shape") is None:
        raise NoOlderFormError("it has no shape")
    shape = op.ints(list(node.get("shape")))
    return node.without(["shape", "consumed_inputs"], [node.name(0), shape])


@_rule("Split")
def split(_op: Tape, node: Older) -> Results | None:
    """Convert the sizes from an input to an attribute."""
    sizes = node.constant(1, "sizes")
    if sizes is None:
        return None
    return node.without([], [node.name(0)], split=[int(size) for size in sizes.ravel()])


@_rule("Tile")
def tile(_op: Tape, node: Older) -> Results | None:
    """Keep the node, but reject the old form, which repeats one axis."""
    if not node.name(2):
        return None
    raise NoOlderFormError(
        "it repeats one axis, as in opsets before 6; export the model with a newer opset"
    )


@_rule("Upsample")
def upsample(_op: Tape, node: Older) -> Results | None:
    """Write the two scales of planes as four."""
    if node.get("scales") is not None:
        return None
    scales = [1.0, 1.0, node.get("height_scale", 1.0), node.get("width_scale", 1.0)]
    return node.without(["height_scale", "width_scale"], scales=[float(scale) for scale in scales])
