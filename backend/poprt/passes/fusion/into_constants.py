"""Passes that merge an operator into the constants of another, and passes that move operators
before a tensor grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import NUMPY_FLOATS, GraphEditor, attribute, has_data, is_operator, read_array
from onnxgraph.opsets import GEMM_BROADCASTS
from simipu.operators import operator_of

from popef._tools.arrays import Array
from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import GraphRule

_MATRIX = 2
"""Rank of a matrix."""


def _weight(view: GraphEditor, name: str) -> Array | None:
    """Return the values of a float constant of any size; None for other tensors."""
    tensor = view.tensor(name) if name else None
    if tensor is None or tensor.data_type not in NUMPY_FLOATS or not has_data(tensor):
        return None
    return read_array(tensor)


def _is_used_once(view: GraphEditor, name: str) -> bool:
    """Return whether a constant of this graph has one reader, so that it can be changed without a
    copy."""
    return name in view.constants and view.count_reads(name) == 1


@dataclass(frozen=True, slots=True)
class _BatchNorm:
    """BatchNormalization in inference behind a product, with its factor and summand by channel."""

    product: onnx.NodeProto
    node: onnx.NodeProto
    scale: Array
    shift: Array

    @classmethod
    def of(
        cls, product: onnx.NodeProto, node: onnx.NodeProto, view: GraphEditor
    ) -> _BatchNorm | None:
        """Return the norm with factor and summand in double. Return None if any operand is not
        constant, or the node computes statistics."""
        trains = any(node.output[1:]) or attribute(node, "training_mode", 0)
        weights = [_weight(view, name) for name in node.input[1:]]
        if trains or not attribute(node, "spatial", 1) or any(weight is None for weight in weights):
            return None
        gain, bias, mean, variance = (np.asarray(weight, np.float64) for weight in weights)
        scale = gain / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return cls(product, node, scale, bias - mean * scale)


class _NormFusion(GraphRule):
    """Base class of both fusions of BatchNormalization."""

    op_types = frozenset({"BatchNormalization"})
    products: frozenset[str]

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Fuse a normalisation that is the only reader of its product."""
        product = view.private_maker(node.input[0])
        if product is not None and product.op_type in self.products:
            norm = _BatchNorm.of(product, node, view)
            if norm is not None:
                self.fuse(norm, view)

    def fuse(self, norm: _BatchNorm, view: GraphEditor) -> None:
        """Change the constants of the product, if it has constants."""
        raise NotImplementedError


@register("fuse_bn_into_conv", stage=Stage.FOLDING, default=True)
class FuseBnIntoConv(_NormFusion):
    """Take the normalisation of a convolution's result up into its weights and bias.

    Rounded in another place: weights are scaled in double and rounded once.
    """

    products = frozenset({"Conv"})

    def fuse(self, norm: _BatchNorm, view: GraphEditor) -> None:
        """Scale weights and bias. The old weights stay if other nodes read them."""
        product = norm.product
        weights = _weight(view, product.input[1])
        has_bias = len(product.input) > 2 and product.input[2]  # noqa: PLR2004  data, weights, bias
        bias = _weight(view, product.input[2]) if has_bias else np.zeros_like(norm.shift)
        if weights is None or bias is None or weights.shape[0] != norm.scale.size:
            return
        scaled = weights * norm.scale.reshape(-1, *[1] * (weights.ndim - 1))
        shifted = (bias * norm.scale + norm.shift).astype(weights.dtype)
        _set_weights(norm, scaled.astype(weights.dtype), shifted, view)


def _set_weights(norm: _BatchNorm, weights: Array, bias: Array, view: GraphEditor) -> bool:
    """Give a product the weights and the bias of the norm behind it, which is removed. Return
    whether that is possible."""
    product, result = norm.product, norm.product.output[0]
    source, weight = product.input[:2]
    if not view.bypass(norm.node, result):
        return False
    weight_names = view.hold(f"{weight}/scaled", weights), view.hold(f"{result}/bias", bias)
    view.set_inputs(product, [source, *weight_names])
    return True


@register("fuse_bn_into_gemm")
class FuseBnIntoGemm(_NormFusion):
    """Take the normalisation of a product of matrices, Gemm or MatMul, up into its weights and
    bias.

    Only where the weights are an initializer that nothing else reads.
    """

    products = frozenset({"Gemm", "MatMul"})

    def fuse(self, norm: _BatchNorm, view: GraphEditor) -> None:
        """Scale weights and bias. A MatMul becomes a Gemm to have a bias."""
        product, name = norm.product, norm.product.input[1]
        weights = _weight(view, name) if _is_used_once(view, name) else None
        if weights is None or weights.ndim != _MATRIX or view.rank(product.input[0]) != _MATRIX:
            return
        if view.opset < GEMM_BROADCASTS:
            return
        is_turned = bool(attribute(product, "transB", 0))
        bias = _bias(product, view)
        if bias is None or weights.shape[0 if is_turned else 1] != norm.scale.size:
            return
        scaled = weights * (norm.scale.reshape(-1, 1) if is_turned else norm.scale)
        shifted = (bias * norm.scale + norm.shift).astype(weights.dtype)
        if not _set_weights(norm, scaled.astype(weights.dtype), shifted, view):
            return
        product.op_type = "Gemm"
        for entry in product.attribute:
            if entry.name == "beta":
                entry.f = 1.0


def _bias(product: onnx.NodeProto, view: GraphEditor) -> Array | None:
    """Return the summand of a product in double; None if it is not constant."""
    if len(product.input) < 3 or not product.input[2]:  # noqa: PLR2004  A, B, C
        return np.zeros(1)
    bias = _weight(view, product.input[2])
    return None if bias is None else bias.astype(np.float64) * attribute(product, "beta", 1.0)


@register("fuse_mul_into_matmul")
class FuseMulIntoMatmul(GraphRule):
    """Take a constant factor of a product's result, or of what it multiplies, up into its weights.

    The factor is one number, or one for each column (of the result) or row (of the operand). Only
    where the weights are an initializer that nothing else reads.
    """

    op_types = frozenset({"MatMul"})

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge factors before a product, then factors behind it."""
        if _is_used_once(view, node.input[1]):
            self._take_before(node, view)
            self._take_behind(node, view)

    def _take_before(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        factor = view.private_maker(node.input[0])
        factors = _factor(factor, None, view) if factor is not None else None
        weights = _weight(view, node.input[1])
        if factor is None or factors is None or weights is None:
            return
        values, source = factors
        fits = values.size == 1 or (weights.ndim >= _MATRIX and values.size == weights.shape[-2])
        if fits and view.shape(source) == view.shape(factor.output[0]) is not None:
            column = values.reshape(-1, 1) if weights.ndim >= _MATRIX else values.reshape(-1)
            _scale(node, weights, column, view)
            view.set_input(node, 0, source)

    def _take_behind(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        result = node.output[0]
        factor = view.reader(result, "Mul")
        if factor is None:
            return
        factors, weights = _factor(factor, result, view), _weight(view, node.input[1])
        if factors is None or weights is None or weights.ndim < _MATRIX:
            return
        values, _ = factors
        is_same = view.shape(result) == view.shape(factor.output[0]) is not None
        if is_same and values.size in (1, weights.shape[-1]) and view.bypass(factor, result):
            _scale(node, weights, values.reshape(-1), view)


def _factor(
    node: onnx.NodeProto, source: str | None, view: GraphEditor
) -> tuple[Array, str] | None:
    """Return the factor of a Mul and its other operand, which is `source` if given. The factor may
    vary along the last axis only."""
    if node.op_type != "Mul":
        return None
    for place in (1, 0):
        values, other = view.value(node.input[place]), node.input[1 - place]
        if source is not None and other != source:
            continue
        if (
            values is not None
            and values.dtype.kind == "f"
            and values.shape[-1:] in ((), (values.size,))
        ):
            return values, other
    return None


def _scale(node: onnx.NodeProto, weights: Array, factor: Array, view: GraphEditor) -> None:
    scaled = (weights * factor.astype(np.float64)).astype(weights.dtype)
    view.set_input(node, 1, view.hold(f"{node.input[1]}/scaled", scaled))


@register("fuse_cast_into_onehot")
class FuseCastIntoOnehot(GraphRule):
    """Let a OneHot produce the type that its result is cast to, by casting its two values
    instead."""

    op_types = frozenset({"OneHot"})

    def change(self, view: GraphEditor) -> None:
        """Fuse Casts that are the only reader of a OneHot with constant values."""
        for node in view.nodes():
            first = view.private_maker(node.input[0]) if is_operator(node, "Cast") else None
            if first is not None and self.matches(first):
                self._fuse(first, node, view)

    def _fuse(self, first: onnx.NodeProto, cast: onnx.NodeProto, view: GraphEditor) -> None:
        values, target_type = view.value(first.input[2]), attribute(cast, "to", 0)
        result = first.output[0]
        if values is None or target_type not in _ONE_HOT_TYPES or not view.bypass(cast, result):
            return
        cast_values = values.astype(helper.tensor_dtype_to_np_dtype(target_type))
        view.set_input(first, 2, view.hold(f"{result}/values", cast_values))


_ONE_HOT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Result types of OneHot for which ONNX Runtime has kernels, whatever the index type is."""


@register("post_expand")
class PostExpand(GraphRule):
    """Compute elementwise operators before an Expand instead of after it: on fewer elements.

    Only where nothing else reads what is expanded, and other operands do not need it expanded.
    """

    op_types = frozenset({"Expand"})

    def change(self, view: GraphEditor) -> None:
        """Move Expands in order, so that an Expand goes behind all operators that follow it."""
        for node in view.nodes():
            if _computes_elements(node) and len(node.output) == 1:
                self._exchange(node, view)

    def _exchange(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        shape = view.shape(node.output[0])
        for place, name in enumerate(node.input):
            expand = view.private_maker(name) if name else None
            if expand is None or not self.matches(expand) or shape is None:
                continue
            shapes = [view.shape(operand) for operand in (expand.input[0], *_others(node, place))]
            if None in shapes or view.shape(expand.output[0]) != shape:
                continue
            least = np.broadcast_shapes(*(shape for shape in shapes if shape is not None))
            if len(least) > len(shape) or int(np.prod(least)) >= int(np.prod(shape)):
                continue
            _put_behind(node, place, expand, view)
            return


def _computes_elements(node: onnx.NodeProto) -> bool:
    """Return whether an operator computes each element from the elements in its place, of operands
    that all broadcast."""
    entry = operator_of(node)
    computes = entry.is_elementwise and entry.moves is None and not entry.taken_apart
    return computes and not entry.broadcasts_one_way and not node.domain


def _others(node: onnx.NodeProto, place: int) -> list[str]:
    return [name for i, name in enumerate(node.input) if name and i != place]


def _put_behind(
    node: onnx.NodeProto, place: int, expand: onnx.NodeProto, view: GraphEditor
) -> None:
    """Put the Expand behind the node. The Expand then makes the node's result, under its name."""
    result = node.output[0]
    inner = view.names.take(f"{result}/unexpanded", is_numbered=True)
    behind = helper.make_node("Expand", [inner, expand.input[1]], [result], name=expand.name)
    kind = onnx.TypeProto.Tensor(elem_type=view.type(result))
    shapes = [view.shape(operand) for operand in (expand.input[0], *_others(node, place))]
    for size in np.broadcast_shapes(*(shape for shape in shapes if shape is not None)):
        kind.shape.dim.add(dim_value=size)
    view.types[inner] = kind
    node.output[0] = inner
    view.put_after(node, behind)
    view.set_input(node, place, expand.input[0])
