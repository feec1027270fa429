"""Passes that merge an operator into the constants of another, and passes that move operators
before a tensor grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import attribute
from onnxgraph.weights import has_data, read_array
from simipu.operators import names_where

from popef._tools.arrays import Array
from poprt.rewrite.base import Stage, register
from poprt.rewrite.node_rules import FLOATS
from poprt.rewrite.scopes import Scope, ScopedPass

_MATRIX = 2
"""Rank of a matrix."""
_GEMM_BROADCASTS = 7
"""Opset from which Gemm broadcasts its bias without an attribute."""


def _weight(scope: Scope, name: str) -> Array | None:
    """Return the values of a float constant of any size; None for other tensors."""
    tensor = scope.tensor(name) if name else None
    if tensor is None or tensor.data_type not in FLOATS or not has_data(tensor):
        return None
    return read_array(tensor)


def _is_used_once(scope: Scope, name: str) -> bool:
    """Return whether a constant of this graph has one reader, so that it can be changed without a
    copy."""
    return name in scope.constants and scope.uses[scope.resolve(name)] == 1


@dataclass(frozen=True, slots=True)
class _Norm:
    """Factor and summand of a BatchNormalization in inference, by channel."""

    scale: Array
    shift: Array

    @classmethod
    def of(cls, node: onnx.NodeProto, scope: Scope) -> _Norm | None:
        """Return factor and summand in double. Return None if any operand is not constant, or the
        node computes statistics."""
        if any(node.output[1:]) or attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1):
            return None
        found = [_weight(scope, name) for name in node.input[1:]]
        gain, bias, mean, variance = (None if each is None else each.astype(np.float64) for each in found)
        if gain is None or bias is None or mean is None or variance is None:
            return None
        scale = gain / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return cls(scale, bias - mean * scale)


class _NormFusion(ScopedPass):
    """Base class of both fusions of BatchNormalization."""

    op_types = frozenset({"BatchNormalization"})
    products: frozenset[str]

    def change(self, scope: Scope) -> None:
        """Fuse each normalisation that is the only reader of its product."""
        for node in scope.nodes():
            if self.is_ours(node):
                product = scope.only_reader_of(node.input[0])
                norm = _Norm.of(node, scope) if product is not None else None
                if product is not None and norm is not None and product.op_type in self.products:
                    self.fuse(product, node, norm, scope)

    def fuse(self, product: onnx.NodeProto, node: onnx.NodeProto, norm: _Norm, scope: Scope) -> None:
        """Change the constants of the product, if it has constants."""
        raise NotImplementedError


@register("fuse_bn_into_conv", stage=Stage.FOLDING, default=True)
class FuseBnIntoConv(_NormFusion):
    """Take the normalisation of a convolution's result up into its weights and bias.

    Rounded in another place: weights are scaled in double and rounded once.
    """

    products = frozenset({"Conv"})

    def fuse(self, product: onnx.NodeProto, node: onnx.NodeProto, norm: _Norm, scope: Scope) -> None:
        """Scale weights and bias. The old weights stay if other nodes read them."""
        weights = _weight(scope, product.input[1])
        has_bias = len(product.input) > 2 and product.input[2]  # noqa: PLR2004  data, weights, bias
        bias = _weight(scope, product.input[2]) if has_bias else np.zeros_like(norm.shift)
        if weights is None or bias is None or weights.shape[0] != norm.scale.size:
            return
        scaled = weights * norm.scale.reshape(-1, *[1] * (weights.ndim - 1))
        shifted = (bias * norm.scale + norm.shift).astype(weights.dtype)
        if not scope.bypass(node, product.output[0]):
            return
        scope.read_instead(product, 1, scope.hold(f"{product.input[1]}/scaled", scaled.astype(weights.dtype)))
        _set_bias(product, scope.hold(f"{product.output[0]}/bias", shifted), scope)


def _set_bias(product: onnx.NodeProto, name: str, scope: Scope) -> None:
    if len(product.input) > 2:  # noqa: PLR2004  as above
        scope.read_instead(product, 2, name)
    else:
        product.input.append(name)
        scope.uses[name] += 1


@register("fuse_bn_into_gemm")
class FuseBnIntoGemm(_NormFusion):
    """Take the normalisation of a product of matrices, Gemm or MatMul, up into its weights and bias.

    Only where the weights are an initializer that nothing else reads.
    """

    products = frozenset({"Gemm", "MatMul"})

    def fuse(self, product: onnx.NodeProto, node: onnx.NodeProto, norm: _Norm, scope: Scope) -> None:
        """Scale weights and bias. A MatMul becomes a Gemm to have a bias."""
        name = product.input[1]
        weights = _weight(scope, name) if _is_used_once(scope, name) else None
        if weights is None or weights.ndim != _MATRIX or scope.rank(product.input[0]) != _MATRIX:
            return
        if scope.model.opset < _GEMM_BROADCASTS:
            return
        is_turned = bool(attribute(product, "transB", 0))
        bias = _bias(product, scope)
        if bias is None or weights.shape[0 if is_turned else 1] != norm.scale.size:
            return
        scaled = weights * (norm.scale.reshape(-1, 1) if is_turned else norm.scale)
        shifted = (bias * norm.scale + norm.shift).astype(weights.dtype)
        if not scope.bypass(node, product.output[0]):
            return
        product.op_type = "Gemm"
        for each in product.attribute:
            if each.name == "beta":
                each.f = 1.0
        scope.read_instead(product, 1, scope.hold(f"{name}/scaled", scaled.astype(weights.dtype)))
        _set_bias(product, scope.hold(f"{product.output[0]}/bias", shifted), scope)


def _bias(product: onnx.NodeProto, scope: Scope) -> Array | None:
    """Return the summand of a product in double; None if it is not constant."""
    if len(product.input) < 3 or not product.input[2]:  # noqa: PLR2004  A, B, C
        return np.zeros(1)
    found = _weight(scope, product.input[2])
    return None if found is None else found.astype(np.float64) * attribute(product, "beta", 1.0)


@register("fuse_mul_into_matmul")
class FuseMulIntoMatmul(ScopedPass):
    """Take a constant factor of a product's result, or of what it multiplies, up into its weights.

    The factor is one number, or one for each column (of the result) or row (of the operand). Only where the
    weights are an initializer that nothing else reads.
    """

    op_types = frozenset({"MatMul"})

    def change(self, scope: Scope) -> None:
        """Merge factors before each product, then factors behind it."""
        readers: dict[str, onnx.NodeProto] = {}
        for node in scope.nodes():
            readers.update((scope.resolve(name), node) for name in node.input)
        for node in scope.nodes():
            if self.is_ours(node) and _is_used_once(scope, node.input[1]):
                self._take_before(node, scope)
                self._take_behind(node, readers.get(scope.resolve(node.output[0])), scope)

    def _take_before(self, node: onnx.NodeProto, scope: Scope) -> None:
        factor = scope.only_reader_of(node.input[0])
        found = _factor(factor, None, scope) if factor is not None else None
        weights = _weight(scope, node.input[1])
        if factor is None or found is None or weights is None:
            return
        values, source = found
        fits = values.size == 1 or (weights.ndim >= _MATRIX and values.size == weights.shape[-2])
        if fits and scope.shape(source) == scope.shape(factor.output[0]) is not None:
            column = values.reshape(-1, 1) if weights.ndim >= _MATRIX else values.reshape(-1)
            _scale(node, weights, column, scope)
            scope.read_instead(node, 0, source)

    def _take_behind(self, node: onnx.NodeProto, factor: onnx.NodeProto | None, scope: Scope) -> None:
        result = scope.resolve(node.output[0])
        if factor is None or scope.uses[result] != 1:
            return
        found, weights = _factor(factor, result, scope), _weight(scope, node.input[1])
        if found is None or weights is None or weights.ndim < _MATRIX:
            return
        values, _ = found
        is_same = scope.shape(node.output[0]) == scope.shape(factor.output[0]) is not None
        if is_same and values.size in (1, weights.shape[-1]) and scope.bypass(factor, result):
            _scale(node, weights, values.reshape(-1), scope)


def _factor(node: onnx.NodeProto, source: str | None, scope: Scope) -> tuple[Array, str] | None:
    """Return the factor of a Mul and its other operand, which is `source` if given. The factor may
    vary along the last axis only."""
    if node.op_type != "Mul":
        return None
    for place in (1, 0):
        values, other = scope.value(node.input[place]), node.input[1 - place]
        if source is not None and scope.resolve(other) != source:
            continue
        if values is not None and values.dtype.kind == "f" and values.shape[-1:] in ((), (values.size,)):
            return values, other
    return None


def _scale(node: onnx.NodeProto, weights: Array, factor: Array, scope: Scope) -> None:
    scaled = (weights * factor.astype(np.float64)).astype(weights.dtype)
    scope.read_instead(node, 1, scope.hold(f"{node.input[1]}/scaled", scaled))


@register("fuse_cast_into_onehot")
class FuseCastIntoOnehot(ScopedPass):
    """Have a OneHot write the type to which its result is cast: its two values are cast instead."""

    op_types = frozenset({"OneHot"})

    def change(self, scope: Scope) -> None:
        """Fuse Casts that are the only reader of a OneHot with constant values."""
        for node in scope.nodes():
            if node.op_type == "Cast" and not node.domain:
                first = scope.only_reader_of(node.input[0])
                if first is not None and self.is_ours(first):
                    self._fuse(first, node, scope)

    def _fuse(self, first: onnx.NodeProto, cast: onnx.NodeProto, scope: Scope) -> None:
        values, wanted = scope.value(first.input[2]), attribute(cast, "to", 0)
        if values is None or wanted not in _ONE_HOT_TYPES or not scope.bypass(cast, first.output[0]):
            return
        made = values.astype(helper.tensor_dtype_to_np_dtype(wanted))
        scope.read_instead(first, 2, scope.hold(f"{first.output[0]}/values", made))


_ONE_HOT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Result types of OneHot for which ONNX Runtime has kernels, whatever the index type is."""

_ELEMENTWISE = names_where(lambda entry: entry.is_elementwise) - frozenset(
    "Bernoulli CastLike Dropout Identity IpuCopy OptionalGetElement PRelu".split()
)
"""Operators that compute each element from the elements in its place, and broadcast. Those left out
are drawn, gone by then or no computation; PRelu broadcasts its slope only."""


@register("post_expand")
class PostExpand(ScopedPass):
    """Compute elementwise operators before an Expand instead of after it: on fewer elements.

    Only where nothing else reads what is expanded, and other operands do not need it expanded.
    """

    op_types = frozenset({"Expand"})

    def change(self, scope: Scope) -> None:
        """Move Expands in order, so that an Expand goes behind all operators that follow it."""
        for node in scope.nodes():
            if node.op_type in _ELEMENTWISE and not node.domain and len(node.output) == 1:
                self._exchange(node, scope)

    def _exchange(self, node: onnx.NodeProto, scope: Scope) -> None:
        shape = scope.shape(node.output[0])
        for place, name in enumerate(node.input):
            expand = scope.only_reader_of(name) if name else None
            if expand is None or not self.is_ours(expand) or shape is None:
                continue
            shapes = [scope.shape(each) for each in (expand.input[0], *_others(node, place))]
            if None in shapes or scope.shape(expand.output[0]) != shape:
                continue
            least = np.broadcast_shapes(*(each for each in shapes if each is not None))
            if len(least) > len(shape) or int(np.prod(least)) >= int(np.prod(shape)):
                continue
            _put_behind(node, place, expand, scope)
            return


def _others(node: onnx.NodeProto, place: int) -> list[str]:
    return [name for i, name in enumerate(node.input) if name and i != place]


def _put_behind(node: onnx.NodeProto, place: int, expand: onnx.NodeProto, scope: Scope) -> None:
    """Put the Expand behind the node. The Expand then makes the node's result, under its name."""
    made = node.output[0]
    inner = scope.model.take(f"{made}/unexpanded")
    behind = helper.make_node("Expand", [inner, expand.input[1]], [made], name=expand.name)
    kind = onnx.TypeProto.Tensor(elem_type=scope.type(made))
    shapes = [scope.shape(each) for each in (expand.input[0], *_others(node, place))]
    for size in np.broadcast_shapes(*(each for each in shapes if each is not None)):
        kind.shape.dim.add(dim_value=size)
    scope.types[inner] = kind
    node.output[0] = inner
    scope.put_after(node, behind)
    scope.makers[inner] = node
    scope.read_instead(node, place, expand.input[0])
