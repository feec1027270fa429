"""Passes that find GELUs and layer norms written out by exporters and replace them by the chip's
operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    CHIP_DOMAIN,
    FLOAT_TYPES,
    LARGE,
    GraphEditor,
    GraphView,
    Tape,
    attribute,
    has_data,
    read_array,
)
from onnxgraph.expansions import TANH_CUBE, TANH_FACTOR
from onnxgraph.opsets import GROUP_NORMALIZATION_SCALES_CHANNELS, REDUCTIONS_TAKE_AXES

from poprt.rewrite.base import Stage, register
from poprt.rewrite.patterns import AnyOf, Match, Once, Op, Pattern, Times, Var
from poprt.rewrite.rules import GraphRule


def _write_out(function: Pattern) -> Pattern:
    """Return the pattern x / 2 (1 + f) of a GELU, where `function` is f."""
    return Times(0.5, Once(Once(function) + 1.0), _X)


_X = Var("x")
_TANH_GELU = _write_out(
    Op("Tanh", Times(TANH_FACTOR, _X + Times(TANH_CUBE, _X, _X, _X)))
    | Op("Tanh", Times(TANH_FACTOR, Times(TANH_CUBE, _X, _X) + 1.0, _X))
)
_ERF_GELU = _write_out(Op("Erf", Times(math.sqrt(0.5), _X)))


class _GeluPass(GraphRule):
    """Base class for both forms of GELU, written out or the standard's operator."""

    op_types = frozenset(("Div", "Gelu", "Mul"))
    pattern: ClassVar[Pattern]
    attributes: ClassVar[dict[str, str]] = {}
    """Attributes of the chip's operator."""

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the first match of the types and shapes that the chip's operator takes."""
        shape = view.shape(node.output[0])
        for match in self.pattern.match(node.output[0], Match(view)):
            x = match["x"]
            if view.type(x) in FLOAT_TYPES and shape is not None and shape == view.shape(x):
                op = view.start(node, "gelu")
                gelu = op.chip("Gelu", x, **self.attributes)
                view.replace(node, op.finish(gelu, node.output))
                return


@register("gelu_pattern", stage=Stage.PATTERNS, default=True)
class GeluPattern(_GeluPass):
    """Give GELUs in the tanh form, written out or the standard's, the chip's Gelu, which computes
    that form."""

    required = frozenset(("Gelu", "Tanh"))
    pattern = _TANH_GELU | Op("Gelu", _X, approximate=b"tanh")


@register("erf_gelu_pattern", stage=Stage.PATTERNS, option="enable_erf_gelu")
class ErfGeluPattern(_GeluPass):
    """Give GELUs in the exact form, of the error function, written out or the standard's, the
    chip's Gelu.

    The chip has the tanh form only; here the answer stays the exact form's, which the attribute
    `approximate` (none) says.
    """

    required = frozenset(("Erf", "Gelu"))
    pattern = _ERF_GELU | Op("Gelu", _X, approximate=b"none") | Op("Gelu", _X, approximate=None)
    attributes: ClassVar[dict[str, str]] = {"approximate": "none"}


_GROUP_NORM, _FAST_NORM = "GroupNormalization", "FastNorm"
_ROWS_AND_CHANNELS = 2
"""Rank at which a group norm with one group is a layer norm."""


@dataclass(frozen=True, slots=True)
class _LayerNorm:
    """Layer norm over the last axis of `source`; "" for a missing scale or bias."""

    source: str
    epsilon: float
    end: onnx.NodeProto
    """Node that makes its result."""
    scale: str = ""
    bias: str = ""


@register("layer_norm_pattern", stage=Stage.PATTERNS, default=True)
class LayerNormPattern(GraphRule):
    """Give layer norms over the last axis, written out or in the standard's LayerNormalization,
    PopART's GroupNormalization with one group.

    That takes rows and channels: other ranks are reshaped to them and back. A model costs the same
    in whichever opset it spells its norms. Group norms as torch exports them, an
    InstanceNormalization of groups between Reshapes, become one operator with their scale and bias,
    too (whether the real pass looks for these is not public).
    """

    op_types = frozenset(("Add", "Div", "InstanceNormalization", "LayerNormalization", "Mul"))
    required = frozenset(("InstanceNormalization", "LayerNormalization", "Pow", "Sqrt"))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the norm at the standard's operator, at the operator that norms groups, or at
        the end of the formula."""
        if node.op_type == "InstanceNormalization":
            _fuse_groups(node, view)
            return
        read = _read_operator if node.op_type == "LayerNormalization" else _read_formula
        norm = read(node, view)
        if norm is not None:
            _put_group_norm(norm, view)


def _read_operator(node: onnx.NodeProto, view: GraphEditor) -> _LayerNorm | None:
    shape = view.shape(node.input[0])
    last = len(shape) - 1 if shape else 0
    if not shape or attribute(node, "axis", -1) not in (-1, last) or any(node.output[1:]):
        return None
    scale, bias = node.input[1], next(iter(node.input[2:]), "")
    if any(name and not _is_along(name, shape, view) for name in (scale, bias)):
        return None
    return _LayerNorm(node.input[0], attribute(node, "epsilon", 1e-5), node, scale, bias)


def _is_over_last(view: GraphView, mean: str) -> bool:
    """Return whether a reduction is over the last axis only, and keeps it."""
    node = view.maker(mean)
    shape = view.shape(node.input[0]) if node is not None else None
    if node is None or not shape or not attribute(node, "keepdims", 1):
        return False
    axes = attribute(node, "axes")
    if axes is None and view.opset >= REDUCTIONS_TAKE_AXES and len(node.input) > 1:
        axes = view.numbers(node.input[1])
    return axes is not None and list(axes) in ([-1], [len(shape) - 1])


def _mean(of: Pattern) -> Pattern:
    return Op("ReduceMean", of, check=_is_over_last)


def _square(of: Pattern) -> Pattern:
    return Op("Mul", of, of) | Op("Pow", of, 2.0)


_SCALE, _BIAS = Var("scale"), Var("bias")
_DISTANCE = _X - _mean(_X)
_DIFFERENCE = _mean(_square(_X)) - _square(_mean(_X))
_VARIANCE = AnyOf(
    _mean(_square(_DISTANCE)),
    _DIFFERENCE,
    # Rounding may make the difference negative.
    Op("Max", _DIFFERENCE, 0.0) | Op("Max", 0.0, _DIFFERENCE) | Op("Relu", _DIFFERENCE),
)
_SHIFTED = _VARIANCE + Var("epsilon", lambda view, name: view.number(name) is not None)
_DEVIATION = Op("Sqrt", _SHIFTED) | Op("Pow", _SHIFTED, 0.5)
_INVERSE = Op("Pow", _SHIFTED, -0.5) | Op("Reciprocal", _DEVIATION) | 1.0 / _DEVIATION
_FACTOR = Once(Op("Reciprocal", Once(_DEVIATION))) * _SCALE
_FORMULA = AnyOf(
    _DISTANCE / _DEVIATION,
    _INVERSE * _DISTANCE,
    Once(_INVERSE * _SCALE) * _DISTANCE,
    # TensorFlow's form.
    Once(_FACTOR * _X) + (_BIAS - Once(_FACTOR * _mean(_X))),
)
"""Formulas of a layer norm, whose scale and bias may follow."""


def _read_formula(end: onnx.NodeProto, view: GraphEditor) -> _LayerNorm | None:
    """Return the norm of the formula that ends at a node, and of the scale and bias behind it."""
    match = _FORMULA.find(end.output[0], view)
    shape = view.shape(match["x"]) if match is not None else None
    if match is None or not shape:
        return None
    scale, bias = match["scale"], match["bias"]
    if not all(_is_along(name, shape, view) for name in (scale, bias) if name):
        return None
    if not scale:
        end, scale = _read_along(end, "Mul", shape, view)
    if not bias:
        end, bias = _read_along(end, "Add", shape, view)
    return _LayerNorm(match["x"], view.number(match["epsilon"]) or 0.0, end, scale, bias)


def _read_along(
    end: onnx.NodeProto, op_type: str, shape: tuple[int, ...], view: GraphEditor, axis: int = -1
) -> tuple[onnx.NodeProto, str]:
    """Return the node that reads the result of `end`, and its operand along an axis. Return `end`
    and "" if there is none."""
    reader = view.reader(end.output[0], op_type)
    if reader is not None:
        other = reader.input[1 - list(reader.input).index(end.output[0])]
        if other != end.output[0] and _is_along_axis(other, shape, axis, view):
            return reader, other
    return end, ""


def _is_along(name: str, shape: tuple[int, ...], view: GraphEditor) -> bool:
    """Return whether a tensor has one element for each of the last axis, and no others."""
    return _is_along_axis(name, shape, -1, view)


def _is_along_axis(name: str, shape: tuple[int, ...], axis: int, view: GraphEditor) -> bool:
    """Return whether a tensor has one element for each along one axis, and no others. The axis is
    counted from the last as -1."""
    weight_shape = view.shape(name)
    if not weight_shape or not -axis <= len(weight_shape) <= len(shape):
        return False
    others = weight_shape[:axis] + weight_shape[len(weight_shape) + axis + 1 :]
    return weight_shape[axis] == shape[axis] and all(size == 1 for size in others)


def _put_group_norm(found: _LayerNorm, view: GraphEditor) -> None:
    """Replace a norm by a group norm. Reshapes leave the first size open (-1), so that rows stay
    rows for any batch."""
    shape, result = view.shape(found.source), found.end.output[0]
    is_float = view.type(found.source) in (TensorProto.FLOAT, TensorProto.FLOAT16)
    if not shape or 0 in shape or not is_float or shape[-1] > LARGE:
        return
    op, dtype, channels = view.start(found.end, "norm"), view.dtype(found.source), shape[-1]
    scale, bias = _weights(found.scale, found.bias, channels, dtype, op, view)
    is_flat = len(shape) == _ROWS_AND_CHANNELS
    source, normed = found.source, result
    if not is_flat:
        source, normed = op.add("Reshape", source, op.ints([-1, channels])), op.new_name()
    op.chip_as(normed, _GROUP_NORM, source, scale, bias, epsilon=found.epsilon, num_groups=1)
    norm = op.nodes[-1]
    if not is_flat:
        op.add_as(result, "Reshape", normed, op.ints([-1, *shape[1:]]))
    view.replace(found.end, op.nodes)
    if found.end.name and not is_flat:
        norm.name, op.nodes[-1].name = found.end.name, f"{result}/Reshape"


def _fuse_groups(node: onnx.NodeProto, view: GraphEditor) -> None:
    """Replace a Reshape to groups, their norm, a Reshape back, and the scale and bias of channels
    (axis 1)."""
    source, end = _find_ends(node, view)
    shape, groups = view.shape(source), (view.shape(node.input[0]) or (0, 0))[1]
    scale, bias = (view.value(name) for name in node.input[1:])
    is_plain = scale is not None and bias is not None and (scale == 1).all() and not bias.any()
    if end is node or not shape or not is_plain or shape[1] % groups:
        return
    axis = 1 - len(shape)
    end, scale_name = _read_along(end, "Mul", shape, view, axis)
    end, bias_name = _read_along(end, "Add", shape, view, axis)
    op = view.start(end, "norm")
    weights = _weights(scale_name, bias_name, shape[1], view.dtype(source), op, view)
    epsilon = attribute(node, "epsilon", 1e-5)
    op.chip_as(end.output[0], _GROUP_NORM, source, *weights, epsilon=epsilon, num_groups=groups)
    view.replace(end, op.nodes)


@register(
    "replace_group_norm", stage=Stage.FOLDING, default=True, is_ours=True, before="constant_folding"
)
class ReplaceGroupNorm(GraphRule):
    """Give the standard's GroupNormalization PopART's, before it is taken apart: ONNX Runtime has
    no kernel of it. Scales and biases of groups, as opsets below 21 have them, become such of
    channels."""

    op_types = frozenset((_GROUP_NORM,))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the node if its channels are known."""
        info = view.find(node.input[0])
        sizes = [dim.dim_value for dim in info.shape.dim] if info is not None else []
        channels = sizes[1] if len(sizes) >= _ROWS_AND_CHANNELS else 0
        groups = attribute(node, "num_groups", 0)
        if not channels or groups < 1 or channels % groups:
            return
        op = view.start(node, "norm")
        weights = node.input[1:]
        if view.opset < GROUP_NORMALIZATION_SCALES_CHANNELS:
            weights = [_widen(name, groups, channels, op, view) for name in weights]
        epsilon = attribute(node, "epsilon", 1e-5)
        op.chip_as(
            node.output[0], _GROUP_NORM, node.input[0], *weights, epsilon=epsilon, num_groups=groups
        )
        view.replace(node, op.nodes)


def _widen(name: str, groups: int, channels: int, made: Tape, view: GraphEditor) -> str:
    """Return the name of a tensor with the values of groups repeated for each channel."""
    value = view.value(name)
    if value is not None:
        return made.constant(np.repeat(value, channels // groups), view.dtype(name))
    column = made.add("Reshape", name, made.ints([groups, 1]))
    wide = made.add("Expand", column, made.ints([groups, channels // groups]))
    return made.add("Reshape", wide, made.ints([channels]))


def _weights(
    scale: str, bias: str, channels: int, dtype: np.dtype[Any], made: Tape, view: GraphEditor
) -> tuple[str, str]:
    """Return the scale and bias of a norm, with one element for each channel. Missing ones become
    ones and zeros."""
    scale = scale or made.constant(np.ones(channels), dtype)
    bias = bias or made.constant(np.zeros(channels), dtype)
    return _flatten(scale, made, view), _flatten(bias, made, view)


def _flatten(name: str, made: Tape, view: GraphEditor) -> str:
    """Return the name of a weight reshaped to one axis."""
    tensor = view.tensor(name)
    if len(view.shape(name) or (1,)) == 1:
        return name
    if tensor is None:
        return made.add("Reshape", name, made.ints([-1]))
    if not has_data(tensor):
        return view.names.hold_unread(f"{name}/flat", tensor.data_type, [math.prod(tensor.dims)])
    return made.constant(read_array(tensor).ravel(), view.dtype(name))


@register(
    "replace_groupnorm_with_fast_norm", stage=Stage.CHIP, default=True, unless="disable_fast_norm"
)
class ReplaceGroupNormWithFastNorm(GraphRule):
    """Give layer norms in half, which are group norms with one group, the chip's FastNorm. That
    norms the last axis whatever the rank: the Reshapes around them go."""

    op_types = frozenset((_GROUP_NORM,))
    domain = CHIP_DOMAIN

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace a norm of rows and channels in half without outputs for statistics."""
        shape = view.shape(node.input[0])
        is_half = view.type(node.input[0]) == TensorProto.FLOAT16
        is_layer = attribute(node, "num_groups", 1) == 1 and len(shape or ()) == _ROWS_AND_CHANNELS
        if shape is None or not is_half or not is_layer or any(node.output[1:]):
            return
        source, end = _find_ends(node, view)
        if (view.shape(source) or ())[-1:] != shape[-1:]:
            source, end = node.input[0], node
        op = view.start(end, "fast")
        op.chip_as(
            end.output[0],
            _FAST_NORM,
            source,
            *node.input[1:],
            epsilon=attribute(node, "epsilon", 1e-5),
            num_groups=1,
            stable_algo=int(attribute(node, "stable_algo", 0)),
        )
        norm, name = op.nodes[-1], node.name
        view.rewrite(end, op.nodes, [end])
        norm.name = name or norm.name


def _find_ends(node: onnx.NodeProto, view: GraphEditor) -> tuple[str, onnx.NodeProto]:
    """Return the source of a norm and its last node. Reshapes around it are skipped if one undoes
    the other."""
    before, after = view.maker(node.input[0], "Reshape"), view.reader(node.output[0], "Reshape")
    if before is None or after is None:
        return node.input[0], node
    shape = view.shape(before.input[0])
    if shape is None or shape != view.shape(after.output[0]):
        return node.input[0], node
    return before.input[0], after
