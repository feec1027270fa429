"""Passes that find the layer norms which exporters write out, and give them the chip's operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import attribute
from onnxgraph.weights import LARGE
from simipu.operators import CHIP_DOMAIN

from poprt.passes.base_pass import Stage, register
from poprt.passes.patterns import PatternPass, Scope, is_operator

_GROUP_NORM, _FAST_NORM = "GroupNormalization", "FastNorm"
_ROWS_AND_CHANNELS = 2
"""The rank at which a group norm with one group is a layer norm."""
_HAS_AXES_AS_INPUT = 18
"""The opset from which ReduceMean takes its axes as an input."""


@dataclass(frozen=True, slots=True)
class _Norm:
    """A layer norm over the last axis of `source`; a scale or bias of "" is none."""

    source: str
    epsilon: float
    end: onnx.NodeProto
    """The node that makes its result."""
    scale: str = ""
    bias: str = ""


@register("layer_norm_pattern", stage=Stage.PATTERNS, default=True)
class LayerNormPattern(PatternPass):
    """Give layer norms over the last axis, written out or in the standard's LayerNormalization, PopART's
    GroupNormalization with one group.

    That takes rows and channels: other ranks are reshaped to them and back. A model costs the same in
    whichever opset it spells its norms.
    """

    op_types = frozenset(("LayerNormalization", "Sqrt"))

    def look(self, node: onnx.NodeProto, scope: Scope) -> None:
        """At the standard's operator, or at the deviation in the formula."""
        found = _read_operator(node, scope) if node.op_type != "Sqrt" else _read_formula(node, scope)
        if found is not None:
            _put_group_norm(found, scope)


def _read_operator(node: onnx.NodeProto, scope: Scope) -> _Norm | None:
    shape = scope.shape(node.input[0])
    last = len(shape) - 1 if shape else 0
    if not shape or attribute(node, "axis", -1) not in (-1, last) or any(node.output[1:]):
        return None
    scale, bias = node.input[1], next(iter(node.input[2:]), "")
    if any(name and not _is_along(name, shape, scope) for name in (scale, bias)):
        return None
    return _Norm(node.input[0], attribute(node, "epsilon", 1e-5), node, scale, bias)


def _read_formula(root: onnx.NodeProto, scope: Scope) -> _Norm | None:
    """The formula around the square root of variance and epsilon."""
    added = scope.maker(root.input[0], "Add")
    if added is None:
        return None
    sides = [(name, other) for name, other in _pairs(added) if scope.number(other) is not None]
    if not sides:
        return None
    variance, epsilon = sides[0][0], scope.number(sides[0][1])
    source = _find_source(variance, scope)
    shape = scope.shape(source) if source else None
    if source is None or not shape or epsilon is None:
        return None
    divided = _read_division(root, source, epsilon, scope)
    if divided is None:
        return _read_folded(root, source, epsilon, scope)
    return _take_scale_and_bias(divided, shape, scope)


def _pairs(node: onnx.NodeProto) -> list[tuple[str, str]]:
    """The operands of a node with two, either first."""
    left, right = node.input
    return [(left, right), (right, left)]


def _find_source(variance: str, scope: Scope) -> str | None:
    """What the mean of squared distances from the mean is the variance of."""
    mean_square = scope.maker(_skip_casts(variance, scope), "ReduceMean")
    if mean_square is None or not _is_over_last(mean_square, scope):
        return None
    distance = _read_square(_skip_casts(mean_square.input[0], scope), scope)
    node = scope.maker(_skip_casts(distance, scope), "Sub") if distance else None
    return node.input[0] if node is not None and _is_distance(node, node.input[0], scope) else None


def _skip_casts(name: str, scope: Scope) -> str:
    """Exporters of half models widen what is squared; in a model in float that does nothing."""
    node = scope.maker(name, "Cast")
    is_idle = node is not None and scope.type(node.input[0]) == scope.type(name) != 0
    return node.input[0] if node is not None and is_idle else name


def _read_square(name: str, scope: Scope) -> str | None:
    node = scope.maker(name, "Pow", "Mul")
    if node is None:
        return None
    is_square = scope.number(node.input[1]) == 2 if node.op_type == "Pow" else len(set(node.input)) == 1  # noqa: PLR2004
    return node.input[0] if is_square else None


def _is_distance(node: onnx.NodeProto, source: str, scope: Scope) -> bool:
    """Whether a Sub takes the mean of `source` from it."""
    mean = scope.maker(node.input[1], "ReduceMean")
    if mean is None or node.input[0] != source:
        return False
    return _skip_casts(mean.input[0], scope) == _skip_casts(source, scope) and _is_over_last(mean, scope)


def _is_over_last(node: onnx.NodeProto, scope: Scope) -> bool:
    """Whether a reduction is over the last axis alone, and keeps it."""
    shape = scope.shape(node.input[0])
    if not shape or not attribute(node, "keepdims", 1):
        return False
    axes = attribute(node, "axes")
    if axes is None and scope.names.opset >= _HAS_AXES_AS_INPUT and len(node.input) > 1:
        axes = scope.numbers(node.input[1])
    return axes is not None and list(axes) in ([-1], [len(shape) - 1])


def _read_division(root: onnx.NodeProto, source: str, epsilon: float, scope: Scope) -> _Norm | None:
    """The node that divides the distance by the deviation."""
    deviation = _skip_forward(root.output[0], scope)
    for reader in scope.readers.get(deviation, {}).values():
        if is_operator(reader, "Div") and reader.input[1] == deviation:
            if _is_distance_of(reader.input[0], source, scope):
                return _Norm(source, epsilon, reader)
        elif is_operator(reader, "Reciprocal"):
            for product in scope.readers.get(reader.output[0], {}).values():
                if is_operator(product, "Mul") and any(
                    inverse == reader.output[0] and _is_distance_of(name, source, scope)
                    for name, inverse in _pairs(product)
                ):
                    return _Norm(source, epsilon, product)
    return None


def _skip_forward(name: str, scope: Scope) -> str:
    node = scope.reader(name, "Cast")
    is_idle = node is not None and scope.type(node.output[0]) == scope.type(name) != 0
    return node.output[0] if node is not None and is_idle else name


def _is_distance_of(name: str, source: str, scope: Scope) -> bool:
    node = scope.maker(_skip_casts(name, scope), "Sub")
    return node is not None and _is_distance(node, source, scope)


def _take_scale_and_bias(found: _Norm, shape: tuple[int, ...], scope: Scope) -> _Norm:
    """The same with the scale and the bias that follow, as far as nobody else reads what is before them."""
    scaled, scale = _read_along(found.end, "Mul", shape, scope)
    shifted, bias = _read_along(scaled, "Add", shape, scope)
    return _Norm(found.source, found.epsilon, shifted, scale, bias)


def _read_along(
    end: onnx.NodeProto, op_type: str, shape: tuple[int, ...], scope: Scope
) -> tuple[onnx.NodeProto, str]:
    """The node that reads what `end` makes, with its operand along the last axis; `end` itself without."""
    reader = scope.reader(end.output[0], op_type)
    if reader is not None:
        other = reader.input[1 - list(reader.input).index(end.output[0])]
        if other != end.output[0] and _is_along(other, shape, scope):
            return reader, other
    return end, ""


def _is_along(name: str, shape: tuple[int, ...], scope: Scope) -> bool:
    """Whether a tensor has an element for each of the last axis."""
    return scope.shape(name) == shape[-1:]


def _read_folded(root: onnx.NodeProto, source: str, epsilon: float, scope: Scope) -> _Norm | None:
    """TensorFlow's form: x * m + (bias - mean * m), where m is the scale over the deviation."""
    inverse = scope.reader(root.output[0], "Reciprocal")
    scaled = scope.reader(inverse.output[0], "Mul") if inverse is not None else None
    shape = scope.shape(source)
    if inverse is None or scaled is None or not shape:
        return None
    scale = next(other for name, other in _pairs(scaled) if name == inverse.output[0])
    factor = scaled.output[0]
    products = list(scope.readers.get(factor, {}).values())
    if not all(is_operator(each, "Mul") for each in products):
        return None
    others = {next(o for name, o in _pairs(each) if name == factor): each for each in products}
    mean = next((name for name in others if _is_mean_of(name, source, scope)), None)
    if mean is None or source not in others:
        return None
    shift = scope.reader(others[mean].output[0], "Sub")
    end = scope.reader(others[source].output[0], "Add")
    if shift is None or end is None or set(end.input) != {others[source].output[0], shift.output[0]}:
        return None
    bias = shift.input[0]
    fits = shift.input[1] == others[mean].output[0] and _is_along(bias, shape, scope)
    return _Norm(source, epsilon, end, scale, bias) if fits and _is_along(scale, shape, scope) else None


def _is_mean_of(name: str, source: str, scope: Scope) -> bool:
    mean = scope.maker(name, "ReduceMean")
    return mean is not None and mean.input[0] == source and _is_over_last(mean, scope)


def _put_group_norm(found: _Norm, scope: Scope) -> None:
    """The first axis is left to be found out, so that rows stay rows for any batch."""
    shape, result = scope.shape(found.source), found.end.output[0]
    is_float = scope.type(found.source) in (TensorProto.FLOAT, TensorProto.FLOAT16)
    if not shape or 0 in shape or not is_float or shape[-1] > LARGE:
        return
    made, dtype, channels = scope.start(found.end, "norm"), scope.dtype(found.source), shape[-1]
    scale = found.scale or made.constant(np.ones(channels), dtype)
    bias = found.bias or made.constant(np.zeros(channels), dtype)
    is_flat = len(shape) == _ROWS_AND_CHANNELS
    source, normed = found.source, result
    if not is_flat:
        source, normed = made.add("Reshape", source, made.shape([-1, channels])), made.new_name()
    made.chip(normed, _GROUP_NORM, source, scale, bias, epsilon=found.epsilon, num_groups=1)
    norm = made.nodes[-1]
    if not is_flat:
        made.add_as(result, "Reshape", normed, made.shape([-1, *shape[1:]]))
    scope.replace(found.end, made.nodes)
    if found.end.name and not is_flat:
        norm.name, made.nodes[-1].name = found.end.name, f"{result}/Reshape"


@register("replace_groupnorm_with_fast_norm", stage=Stage.CHIP, default=True, unless="disable_fast_norm")
class ReplaceGroupNormWithFastNorm(PatternPass):
    """Give layer norms in half, which are group norms with one group, the chip's FastNorm. That norms the
    last axis whatever the rank: the Reshapes around them go."""

    op_types = frozenset((_GROUP_NORM,))
    domain = CHIP_DOMAIN

    def look(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Of rows and channels, whose statistics nobody asks for."""
        shape = scope.shape(node.input[0])
        is_half = scope.type(node.input[0]) == TensorProto.FLOAT16
        is_layer = attribute(node, "num_groups", 1) == 1 and len(shape or ()) == _ROWS_AND_CHANNELS
        if not is_half or not is_layer or any(node.output[1:]):
            return
        source, end = _find_reshapes(node, scope)
        made = scope.start(end, "fast")
        made.chip(
            end.output[0],
            _FAST_NORM,
            source,
            *node.input[1:],
            epsilon=attribute(node, "epsilon", 1e-5),
            num_groups=1,
            stable_algo=int(attribute(node, "stable_algo", 0)),
        )
        norm, name = made.nodes[-1], node.name
        scope.rewrite(end, made.nodes, [end])
        norm.name = name or norm.name


def _find_reshapes(node: onnx.NodeProto, scope: Scope) -> tuple[str, onnx.NodeProto]:
    """What a norm is of and the node that makes its result, without the Reshapes around it, if there are
    two that take each other back."""
    before, after = scope.maker(node.input[0], "Reshape"), scope.reader(node.output[0], "Reshape")
    if before is None or after is None:
        return node.input[0], node
    shape, result = scope.shape(before.input[0]), scope.shape(after.output[0])
    if shape is None or shape != result or shape[-1:] != (scope.shape(node.input[0]) or ())[-1:]:
        return node.input[0], node
    return before.input[0], after
