"""Passes that replace an operator by others that are cheaper on the chip, or that its compiler
supports. Each class describes its replacement. `workarounds` has Einsum and NonZero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper
from onnxgraph import (
    GraphView,
    Results,
    Site,
    Tape,
    Value,
    attribute,
    change_values,
    expansions,
    iter_nodes,
    register_change,
)
from onnxgraph.opsets import BATCH_NORMALIZATION_IS_PER_CHANNEL, CLIP_TAKES_BOUNDS

from popef._tools.arrays import Array
from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import NodeRule

_HALF = np.finfo(np.float16)
_SQUARE = 2
_LARGEST_POWER = 4
"""Maximum exponent for which products are cheaper than a power; it takes two products, larger ones
more."""
_HALF_PRECISIONS = ("fp16", "fp8", "fp8_weight")


@register("replace_bn_with_mul_add", stage=Stage.PATTERNS)
class ReplaceBnWithMulAdd(NodeRule):
    """BatchNormalization of constants, in inference, becomes a Mul and an Add."""

    op_types = frozenset(("BatchNormalization",))
    prefix = "bn"

    def replace(self, _op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace a BatchNormalization. The constants are computed in double and rounded once."""
        node, view = site.node, site.facts
        rank = view.rank(node.input[0])
        values = [view.value(name) for name in node.input[1:5]]
        trains = attribute(node, "training_mode", 0) or len(list(filter(None, node.output))) > 1
        if trains or rank is None or view.opset < BATCH_NORMALIZATION_IS_PER_CHANNEL:
            return None
        if not view.is_float(node.input[0]) or any(value is None for value in values):
            return None
        scale, bias, mean, variance = (np.asarray(value, np.float64) for value in values)
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        shape = [-1] + [1] * (rank - 2)
        return site.x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


@register("replace_castlike", stage=Stage.FOLDING, default=True)
class ReplaceCastlike(NodeRule):
    """CastLike becomes a Cast, where the type is known."""

    op_types = frozenset(("CastLike",))
    prefix = "cast"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the CastLike. The Cast keeps its attributes, above all `saturate`."""
        to = site.facts.type(site.node.input[1])
        if not to:
            return None
        attributes = {
            entry.name: helper.get_attribute_value(entry) for entry in site.node.attribute
        }
        return op.Cast(site.x, to=to, **attributes)


@register("replace_gather_with_reshape", stage=Stage.FOLDING, default=True, is_ours=True)
class ReplaceGatherWithReshape(NodeRule):
    """Replace a Gather that selects all elements in order by a Reshape, because exporters write
    masks this way, and rows that are selected by number could not be proven independent."""

    op_types = frozenset(("Gather",))
    prefix = "reshape"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the Gather if its indices are 0, 1, 2, ... to the size of the axis. Empty tensors
        stay, because a 0 in a Reshape means another size."""
        data, indices = site.node.input
        shape, picked = site.facts.shape(data), site.facts.shape(indices)
        if not shape or picked is None or 0 in shape:
            return None
        axis = int(site.get("axis", 0)) % len(shape)
        size = shape[axis]
        order = site.facts.value(indices, most=size) if math.prod(picked) == size else None
        if order is None or not np.array_equal(order.reshape(-1), np.arange(size)):
            return None
        return op.Reshape(data, op.ints([*shape[:axis], *picked, *shape[axis + 1 :]]))


@register("replace_clip_empty_inputs", stage=Stage.FOLDING, default=True)
class ReplaceClipEmptyInputs(NodeRule):
    """Give a Clip without a lower bound the lowest value of its type, because there is no other
    form for it; one without an upper bound gets none."""

    op_types = frozenset(("Clip",))
    prefix = "clip"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the Clip. An integer without bounds becomes an Identity. For floats, infinities
        become the largest values, as the standard requires."""
        node, view = site.node, site.facts
        source, lower, upper = [*node.input, "", ""][:3]
        if len(node.input) == 1 + bool(lower) + bool(upper) and lower:
            return None
        if (len(node.input) == 1 and view.opset < CLIP_TAKES_BOUNDS) or not view.type(source):
            return None
        dtype = view.dtype(source)
        if not (lower or upper or dtype.kind == "f"):
            return op.Identity(source)
        if not lower:
            limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
            lower = op.constant(limits.min, dtype)
        return op.Clip(source, lower, *filter(None, [upper]))


@register("replace_div_with_mul", stage=Stage.PATTERNS, default=True)
class ReplaceDivWithMul(NodeRule):
    """Replace a division by a constant by a product with its reciprocal, which can differ by one
    rounding unless the constant is a power of two. Integers stay."""

    op_types = frozenset(("Div",))
    prefix = "reciprocal"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the division if the reciprocal is exact enough in half, since the graph may be
        converted to half."""
        divisor = site.facts.value(site.node.input[1])
        if divisor is None or not site.facts.is_float(site.node.input[1]) or not divisor.size:
            return None
        with np.errstate(all="ignore"):
            factor = 1 / divisor.astype(np.float64)
        if not _is_normal_in_half(factor):
            return None
        return op.Mul(site.x, op.constant(factor, divisor.dtype))


def _is_normal_in_half(values: Array) -> bool:
    """Return whether all values are normal numbers in half, with full precision."""
    size = np.abs(values)
    return bool(((size >= float(_HALF.tiny)) & (size <= float(_HALF.max))).all())


@register_change("transposed", undoes="transposed")
def transpose_values(values: Array) -> Array:
    """Return the transpose of a matrix."""
    return values.T


@register("replace_gemm_with_matmul", stage=Stage.PATTERNS)
class ReplaceGemmWithMatmul(NodeRule):
    """Gemm becomes a MatMul, with a Mul where it scales, and an Add.

    A weight that only one Gemm reads, and reads transposed, is stored the other way round.
    """

    op_types = frozenset(("Gemm",))
    prefix = "gemm"

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the Gemms. Readers of the weights are counted once for all."""
        counts: dict[str, int] = {}
        for node in iter_nodes(model.graph):
            for name in node.input:
                counts[name] = counts.get(name, 0) + 1
        names = {value.name for value in (*model.graph.output, *model.graph.input)}
        self._own = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if counts.get(tensor.name) == 1 and tensor.name not in names
        }
        return super().run(model)

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace a Gemm of floats; the IPU has no other."""
        node, view = site.node, site.facts
        if not view.is_float(node.output[0]) and not view.is_float(node.input[0]):
            return None
        dtype = view.dtype(node.input[0])
        left, right = (
            self._turn(op, node.input[place], bool(site.get(name, 0)))
            for place, name in ((0, "transA"), (1, "transB"))
        )
        result = op.MatMul(left, right)
        if (alpha := site.get("alpha", 1.0)) != 1:
            result = op.Mul(result, op.constant(alpha, dtype))
        bias = site.optional(2)
        if bias is not None and (beta := site.get("beta", 1.0)) != 0:
            scaled = bias if beta == 1 else op.Mul(bias, op.constant(beta, dtype))
            result = op.Add(result, scaled)
        return result

    def _turn(self, op: Tape, name: str, is_turned: bool) -> str:
        if not is_turned:
            return name
        tensor = self._own.get(name)
        if tensor is None:
            return op.add("Transpose", name, perm=[1, 0])
        change_values(tensor, "transposed", tensor.data_type, shape=tuple(tensor.dims)[::-1])
        return name


@register("replace_greater_or_equal", stage=Stage.PATTERNS)
class ReplaceGreaterOrEqual(NodeRule):
    """a >= b becomes Not(a < b), for compilers that have none. Of NaN it is true then, where it was
    not."""

    op_types = frozenset(("GreaterOrEqual",))
    prefix = "opposite"
    needs_shapes = False
    opposite = "Less"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the comparison, for any types."""
        return op.Not(op.add(self.opposite, *site.node.input))


@register("replace_less_or_equal", stage=Stage.PATTERNS)
class ReplaceLessOrEqual(ReplaceGreaterOrEqual):
    """a <= b becomes Not(a > b), which is Not(b < a). Of NaN it is true then, where it was not."""

    op_types = frozenset(("LessOrEqual",))
    opposite = "Greater"


@register(
    "replace_half_reducemean", stage=Stage.PRECISION, option="precision", values=_HALF_PRECISIONS
)
class ReplaceHalfReducemean(NodeRule):
    """Replace ReduceMean by a Mul and a ReduceSum: because the operands are scaled first, no sum
    exceeds the mean's operands."""

    op_types = frozenset(("ReduceMean",))
    prefix = "mean"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the mean if half represents the reciprocal of the number of elements with full
        precision."""
        node, view = site.node, site.facts
        shape, axes = view.shape(node.input[0]), self._find_axes(node, view)
        if shape is None or axes is None or not view.is_float(node.input[0]):
            return None
        count = math.prod(shape[axis] for axis in axes)
        if count < 1 or not _is_normal_in_half(np.array(1 / count)):
            return None
        return op.ReduceSum(site.x * (1 / count), axes=axes, keepdims=site.get("keepdims", 1))

    def _find_axes(self, node: onnx.NodeProto, view: GraphView) -> list[int] | None:
        rank = view.rank(node.input[0])
        axes = attribute(node, "axes")
        if len(node.input) > 1 and node.input[1]:
            axes = view.value(node.input[1])
            if axes is None:
                return None
        if rank is None or (attribute(node, "noop_with_empty_axes", 0) and not _has_any(axes)):
            return None
        return sorted({int(axis) % rank for axis in axes} if _has_any(axes) else range(rank))


def _has_any(values: Sequence[int] | Array | None) -> bool:
    return values is not None and len(values) > 0


@register("replace_hardswish", stage=Stage.PATTERNS)
class ReplaceHardswish(NodeRule):
    """HardSwish becomes x * HardSigmoid(x)."""

    op_types = frozenset(("HardSwish",))
    prefix = "hard_swish"
    needs_shapes = False

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace HardSwish by its standard definition."""
        return expansions.hard_swish(op, site)


@register("replace_pow", stage=Stage.PATTERNS)
class ReplacePow(NodeRule):
    """Powers with a constant exponent that is small and whole become products; 1/2 becomes Sqrt,
    and what is negative ends with Reciprocal.

    The square root of -inf is NaN, where its power is inf.
    """

    op_types = frozenset(("Pow",))
    prefix = "power"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the power if all elements have one exponent."""
        view, base = site.facts, site.node.input[0]
        exponent, rank = view.value(site.node.input[1]), view.rank(base)
        if exponent is None or exponent.size != 1 or rank is None or exponent.ndim > rank:
            return None
        size = abs(float(exponent.item()))
        is_inverse = float(exponent.item()) < 0
        if not view.type(base) or (not view.is_float(base) and (is_inverse or size % 1)):
            return None
        if size not in (0.5, *range(1, _LARGEST_POWER + 1)):
            return None
        power = _raise(op, site.x, size)
        if is_inverse:
            return op.Reciprocal(power)
        return op.Identity(power) if size == 1 else power


def _raise(op: Tape, base: Value, size: float) -> Value:
    """Return a power of the base: its square root, itself, or a product."""
    if size % 1:
        return op.Sqrt(base)
    if size == 1:
        return base
    square = base * base
    if size == _SQUARE:
        return square
    return square * (base if size < _LARGEST_POWER else square)


@register("replace_where_with_mul_add", stage=Stage.PATTERNS)
class ReplaceWhereWithMulAdd(NodeRule):
    """Where(c, a, b) of floats becomes c * a + (1 - c) * b. What is not chosen must be finite: a
    product with 0 does not forget NaN nor the infinities."""

    op_types = frozenset(("Where",))
    prefix = "mask"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Replace the Where, unless a constant is not finite. Computed values are assumed to be
        finite."""
        condition, *chosen = site.node.input
        values = [site.facts.value(name) for name in chosen]
        if not site.facts.is_float(chosen[0]):
            return None
        if any(value is not None and not np.isfinite(value).all() for value in values):
            return None
        mask = op.Cast(condition, to=site.facts.type(chosen[0]))
        return mask * chosen[0] + (1 - mask) * chosen[1]
