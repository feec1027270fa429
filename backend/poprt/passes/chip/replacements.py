"""Passes that replace an operator by others that are cheaper on the chip, or that its compiler
supports. Each class describes its replacement. `contractions` has Einsum and NonZero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnxgraph import GraphView, NodeBuilder, attribute, change_values, iter_nodes, register_change
from onnxgraph.opsets import BATCH_NORMALIZATION_IS_PER_CHANNEL, CLIP_TAKES_BOUNDS

from popef._tools.arrays import Array
from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import NodeRule

_HALF = np.finfo(np.float16)
_SIX = 6
"""Divisor in HardSwish, which is x * min(max(x / 6 + 1/2, 0), 1)."""
_LARGEST_POWER = 4
"""Maximum exponent for which products are cheaper than a power; it takes two products, larger ones
more."""
_HALF_PRECISIONS = ("fp16", "fp8", "fp8_weight")


@register("replace_bn_with_mul_add", stage=Stage.PATTERNS)
class ReplaceBnWithMulAdd(NodeRule):
    """BatchNormalization of constants, in inference, becomes a Mul and an Add."""

    op_types = frozenset(("BatchNormalization",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace a BatchNormalization. The constants are computed in double and rounded once."""
        rank = view.rank(node.input[0])
        values = [view.value(name) for name in node.input[1:5]]
        trains = attribute(node, "training_mode", 0) or len(list(filter(None, node.output))) > 1
        if trains or rank is None or view.opset < BATCH_NORMALIZATION_IS_PER_CHANNEL:
            return None
        if not view.is_float(node.input[0]) or any(value is None for value in values):
            return None
        scale, bias, mean, variance = (np.asarray(value, np.float64) for value in values)
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        chain, dtype = view.start(node, "bn"), view.dtype(node.input[0])
        shape = [-1] + [1] * (rank - 2)
        product = chain.add("Mul", node.input[0], chain.constant(factor.reshape(shape), dtype))
        rest = chain.constant((bias - mean * factor).reshape(shape), dtype)
        chain.add_as(node.output[0], "Add", product, rest)
        return chain.end(node)


@register("replace_castlike", stage=Stage.FOLDING, default=True)
class ReplaceCastlike(NodeRule):
    """CastLike becomes a Cast, where the type is known."""

    op_types = frozenset(("CastLike",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the CastLike. The Cast keeps its attributes, above all `saturate`."""
        to = view.type(node.input[1])
        if not to:
            return None
        chain = view.start(node, "cast")
        chain.add_as(node.output[0], "Cast", node.input[0], to=to)
        chain.nodes[-1].attribute.extend(node.attribute)
        return chain.end(node)


@register("replace_gather_with_reshape", stage=Stage.FOLDING, default=True, is_ours=True)
class ReplaceGatherWithReshape(NodeRule):
    """Replace a Gather that selects all elements in order by a Reshape, because exporters write
    masks this way, and rows that are selected by number could not be proven independent."""

    op_types = frozenset(("Gather",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the Gather if its indices are 0, 1, 2, ... to the size of the axis. Empty tensors
        stay, because a 0 in a Reshape means another size."""
        data, indices = node.input
        shape, picked = view.shape(data), view.shape(indices)
        if not shape or picked is None or 0 in shape:
            return None
        axis = int(attribute(node, "axis", 0)) % len(shape)
        size = shape[axis]
        order = view.value(indices, most=size) if math.prod(picked) == size else None
        if order is None or not np.array_equal(order.reshape(-1), np.arange(size)):
            return None
        chain = view.start(node, "reshape")
        made = [*shape[:axis], *picked, *shape[axis + 1 :]]
        chain.add_as(node.output[0], "Reshape", data, chain.shape(made))
        return chain.end(node)


@register("replace_clip_empty_inputs", stage=Stage.FOLDING, default=True)
class ReplaceClipEmptyInputs(NodeRule):
    """Give a Clip without a lower bound the lowest value of its type, because there is no other
    form for it; one without an upper bound gets none."""

    op_types = frozenset(("Clip",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the Clip. An integer without bounds becomes an Identity. For floats, infinities
        become the largest values, as the standard requires."""
        given = [*node.input, "", ""][:3]
        has_lower, has_upper = bool(given[1]), bool(given[2])
        if len(node.input) == 1 + has_lower + has_upper and has_lower:
            return None
        if (len(node.input) == 1 and view.opset < CLIP_TAKES_BOUNDS) or not view.type(given[0]):
            return None
        chain = view.start(node, "clip")
        dtype = view.dtype(given[0])
        if not (has_lower or has_upper or dtype.kind == "f"):
            chain.add_as(node.output[0], "Identity", given[0])
            return chain.end(node)
        lower = given[1]
        if not has_lower:
            lower = chain.constant(
                (np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)).min, dtype
            )
        chain.add_as(node.output[0], "Clip", *filter(None, (given[0], lower, given[2])))
        return chain.end(node)


@register("replace_div_with_mul", stage=Stage.PATTERNS, default=True)
class ReplaceDivWithMul(NodeRule):
    """Replace a division by a constant by a product with its reciprocal, which can differ by one
    rounding unless the constant is a power of two. Integers stay."""

    op_types = frozenset(("Div",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the division if the reciprocal is exact enough in half, since the graph may be
        converted to half."""
        divisor = view.value(node.input[1])
        if divisor is None or not view.is_float(node.input[1]) or not divisor.size:
            return None
        with np.errstate(all="ignore"):
            factor = 1 / divisor.astype(np.float64)
        if not _is_normal_in_half(factor):
            return None
        chain = view.start(node, "reciprocal")
        chain.add_as(node.output[0], "Mul", node.input[0], chain.constant(factor, divisor.dtype))
        return chain.end(node)


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

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the Gemms. Readers of the weights are counted once for all."""
        counts: dict[str, int] = {}
        for node in iter_nodes(model.graph):
            for name in node.input:
                counts[name] = counts.get(name, 0) + 1
        kept = {value.name for value in (*model.graph.output, *model.graph.input)}
        self._own = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if counts.get(tensor.name) == 1 and tensor.name not in kept
        }
        return super().run(model)

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace a Gemm of floats; the IPU has no other."""
        if not view.is_float(node.output[0]) and not view.is_float(node.input[0]):
            return None
        chain = view.start(node, "gemm")
        dtype = view.dtype(node.input[0])
        operands = [
            self._turn(chain, node.input[place], bool(attribute(node, name, 0)))
            for place, name in ((0, "transA"), (1, "transB"))
        ]
        steps: list[tuple[str, list[str]]] = [("MatMul", operands)]
        if (alpha := attribute(node, "alpha", 1.0)) != 1:
            steps.append(("Mul", ["", chain.constant(alpha, dtype)]))
        bias = [*node.input, ""][2]
        if bias and (beta := attribute(node, "beta", 1.0)) != 0:
            bias = bias if beta == 1 else chain.add("Mul", bias, chain.constant(beta, dtype))
            steps.append(("Add", ["", bias]))
        return _add_steps(chain, steps, node)

    def _turn(self, chain: NodeBuilder, name: str, is_turned: bool) -> str:
        if not is_turned:
            return name
        tensor = self._own.get(name)
        if tensor is None:
            return chain.add("Transpose", name, perm=[1, 0])
        change_values(tensor, "transposed", tensor.data_type, shape=tuple(tensor.dims)[::-1])
        return name


def _add_steps(
    chain: NodeBuilder, steps: Sequence[tuple[str, list[str]]], node: onnx.NodeProto
) -> list[onnx.NodeProto]:
    """Add steps to the chain and return its nodes. An empty input name stands for the result of the
    step before. The last step makes the result of `node`."""
    result = ""
    for place, (op_type, inputs) in enumerate(steps):
        name = node.output[0] if place == len(steps) - 1 else chain.new_name()
        result = chain.add_as(name, op_type, *(each or result for each in inputs))
    return chain.end(node)


@register("replace_greater_or_equal", stage=Stage.PATTERNS)
class ReplaceGreaterOrEqual(NodeRule):
    """a >= b becomes Not(a < b), for compilers that have none. Of NaN it is true then, where it was
    not."""

    op_types = frozenset(("GreaterOrEqual",))
    needs_shapes = False
    opposite = "Less"

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the comparison, for any types."""
        chain = view.start(node, "opposite")
        chain.add_as(node.output[0], "Not", chain.add(self.opposite, *node.input))
        return chain.end(node)


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

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the mean if half represents the reciprocal of the number of elements with full
        precision."""
        shape, axes = view.shape(node.input[0]), self._find_axes(node, view)
        if shape is None or axes is None or not view.is_float(node.input[0]):
            return None
        count = math.prod(shape[axis] for axis in axes)
        if count < 1 or not _is_normal_in_half(np.array(1 / count)):
            return None
        chain = view.start(node, "mean")
        factor = chain.constant(1 / count, view.dtype(node.input[0]))
        chain.add("Mul", node.input[0], factor)
        result, scaled = node.output[0], chain.nodes[-1].output[0]
        chain.reduce_sum_as(result, scaled, axes, keepdims=attribute(node, "keepdims", 1))
        return chain.end(node)

    def _find_axes(self, node: onnx.NodeProto, view: GraphView) -> list[int] | None:
        rank = view.rank(node.input[0])
        given = attribute(node, "axes")
        if len(node.input) > 1 and node.input[1]:
            given = view.value(node.input[1])
            if given is None:
                return None
        if rank is None or (attribute(node, "noop_with_empty_axes", 0) and not _has_any(given)):
            return None
        return sorted({int(axis) % rank for axis in given} if _has_any(given) else range(rank))


def _has_any(values: Sequence[int] | Array | None) -> bool:
    return values is not None and len(values) > 0


@register("replace_hardswish", stage=Stage.PATTERNS)
class ReplaceHardswish(NodeRule):
    """HardSwish becomes x * HardSigmoid(x)."""

    op_types = frozenset(("HardSwish",))
    needs_shapes = False

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace HardSwish by its standard definition."""
        chain = view.start(node, "hard_swish")
        gate = chain.add("HardSigmoid", node.input[0], alpha=1 / _SIX, beta=0.5)
        chain.add_as(node.output[0], "Mul", node.input[0], gate)
        return chain.end(node)


@register("replace_pow", stage=Stage.PATTERNS)
class ReplacePow(NodeRule):
    """Powers with a constant exponent that is small and whole become products; 1/2 becomes Sqrt,
    and what is negative ends with Reciprocal.

    The square root of -inf is NaN, where its power is inf.
    """

    op_types = frozenset(("Pow",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the power if all elements have one exponent."""
        exponent, base = view.value(node.input[1]), node.input[0]
        rank = view.rank(base)
        if exponent is None or exponent.size != 1 or rank is None or exponent.ndim > rank:
            return None
        size = abs(float(exponent.item()))
        is_inverse = float(exponent.item()) < 0
        if not view.type(base) or (not view.is_float(base) and (is_inverse or size % 1)):
            return None
        if size not in (0.5, *range(1, _LARGEST_POWER + 1)):
            return None
        chain = view.start(node, "power")
        return _add_steps(chain, _power_steps(base, size, is_inverse), node)


def _power_steps(base: str, size: float, is_inverse: bool) -> list[tuple[str, list[str]]]:
    steps: list[tuple[str, list[str]]] = []
    if size % 1:
        steps.append(("Sqrt", [base]))
    else:
        products = {2: [base], 3: [base, base], _LARGEST_POWER: [base, ""]}.get(int(size), [])
        steps += [("Mul", [base if not place else "", each]) for place, each in enumerate(products)]
    if is_inverse:
        steps.append(("Reciprocal", ["" if steps else base]))
    return steps or [("Identity", [base])]


@register("replace_where_with_mul_add", stage=Stage.PATTERNS)
class ReplaceWhereWithMulAdd(NodeRule):
    """Where(c, a, b) of floats becomes c * a + (1 - c) * b. What is not chosen must be finite: a
    product with 0 does not forget NaN nor the infinities."""

    op_types = frozenset(("Where",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Replace the Where, unless a constant is not finite. Computed values are assumed to be
        finite."""
        condition, *chosen = node.input
        values = [view.value(name) for name in chosen]
        if not view.is_float(chosen[0]):
            return None
        if any(value is not None and not np.isfinite(value).all() for value in values):
            return None
        chain, element = view.start(node, "mask"), view.type(chosen[0])
        mask = chain.add("Cast", condition, to=element)
        left = chain.add("Mul", mask, chosen[0])
        inverse = chain.add("Sub", chain.constant(1, view.dtype(chosen[0])), mask)
        chain.add_as(node.output[0], "Add", left, chain.add("Mul", inverse, chosen[1]))
        return chain.end(node)
