"""ONNX Runtime's optimisers that are left out of a session, because they change answers
(docs/upstream.md has the reports, `random_graphs.fusions` of the tests looks for more).

Those of ALWAYS save little. The others make common networks faster, so they are left out only for a
graph in which they can be wrong: the rules below accept what is known to be right. A graph with
anything else, or with shapes and constants that are not known, goes without.

    norms     mean over the last axis, kept; x - mean; squares; a scale and a bias of the last axis
    factors   finite floats of a common size, not 0, around a MatMul
    integers  one scale, or one for each column, of a product with unsigned integers on the left
    tables    norms over the last axis, which the sum with a residual or of rows of tables precedes,
              and no bias that widens a product
    biases    no bias of floats of a quantised product
    pairs     QuantizeLinear behind a DequantizeLinear has its scale and zero point
    codes     scales of a common size, with which a code that is dequantised is finite
    spread    no body reads a computed tensor; int8 only where a type is no attribute, or next to
              products, as weights are
    turned    no output is turned and then quantised
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import (
    attribute,
    find_makers,
    find_opset,
    infer_shapes,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    used_names,
)
from onnxgraph.opsets import QUANTIZE_HAS_TYPE

from popef._tools.arrays import Array
from simipu.numerics.bodies import find_constants
from simipu.operators import Moves, names_where, operator_of
from simipu.operators.quantized_operands import are_common_scales

Weights = Mapping[str, Array]

ALWAYS = ("AttentionFusion", "DivMulFusion", "FuseReluClip", "GemmTransposeFusion")
"""An attention takes every number of its mask but 0 as 1; 1 / x * y as y / x loses the rank of the
1, and is wrong for integers; a Relu in front of a Clip of doubles, and a Gemm whose result is an
output, end the creation of the session."""
QUANTISED = ("EliminateIdentity",)
"""Optimisers left out of every graph with quantised tensors, in which an Identity stands where an
operator must stay one of floats (`operators.quantized_operands`)."""
NORMS = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
RESIDUAL_NORMS = ("SkipLayerNormFusion", "BiasSkipLayerNormFusion", "EmbedLayerNormFusion")
FACTORS = ("MatMulScaleFusion",)
INTEGERS = ("MatMulIntegerToFloatFusion",)
COLUMN_NORMS = ("MatMul_BatchNormalization_Fusion",)
BIASES = ("WeightBiasQuantization",)
PAIRS = ("DoubleQDQPairsRemover",)
SPREAD = ("QDQPropagationTransformer",)
CODES = (
    "QDQPropagationTransformer",
    "QDQSelectorActionTransformer",
    "QDQFinalCleanupTransformer",
    "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider",
)
TURNED = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
_SUMMING = names_where(lambda entry: entry.keeps_sums)
"""Products and convolutions, most of which may have a bias as third input."""
_OPERANDS = 2
_SQUARE = 2.0
"""Exponent of a norm."""
_MAX_FACTOR = 2.0**40
"""Largest factor, and 1 by the least, that is moved into a product: its sums stay finite where the
scaled operands do, for values that networks have."""


def find_unsafe_optimisers(
    model: onnx.ModelProto, weights: Weights, inferred: onnx.ModelProto | None = None
) -> tuple[str, ...]:
    """Return the names of the optimisers to leave out for a lowered model. `weights`: the values of
    its initializers without data. `inferred`: the model, or the one that it was lowered from, with
    known shapes."""
    kinds = {node.op_type for node in iter_nodes(model.graph)}
    is_quantized = bool(kinds & {"DequantizeLinear", "QuantizeLinear"})
    looks = {
        NORMS: {"ReduceMean", "Sqrt"} <= kinds,
        RESIDUAL_NORMS: bool(kinds & {"LayerNormalization", "ReduceMean"}),
        FACTORS: "MatMul" in kinds and bool(kinds & {"Mul", "Div"}),
        INTEGERS: "MatMulInteger" in kinds,
        COLUMN_NORMS: {"MatMul", "BatchNormalization"} <= kinds,
        BIASES: "DequantizeLinear" in kinds and bool(kinds & _SUMMING),
        PAIRS: {"DequantizeLinear", "QuantizeLinear"} <= kinds,
        CODES: is_quantized,
        SPREAD: is_quantized,
        TURNED: {"Transpose", "QuantizeLinear"} <= kinds,
    }
    left_out = [*ALWAYS, *(QUANTISED if is_quantized else ())]
    if any(looks.values()):
        facts = _Facts.of(model, weights, inferred or infer_shapes(model))
        for names, is_safe in _RULES.items():
            if looks[names] and not all(map(is_safe, facts)):
                left_out += [name for name in names if name not in left_out]
    return tuple(left_out)


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts about the tensors of a graph or body."""

    graph: onnx.GraphProto
    makers: Mapping[str, onnx.NodeProto]
    constants: Mapping[str, onnx.TensorProto]
    weights: Weights
    shapes: Mapping[str, tuple[int | None, ...]]
    types: Mapping[str, int] = field(default_factory=dict)
    opset: int = 0

    @staticmethod
    def of(model: onnx.ModelProto, weights: Weights, inferred: onnx.ModelProto) -> list[_Facts]:
        """Return the facts about a model's graph and each body."""
        opset = find_opset(model, 0)
        shapes, types = dict[str, tuple[int | None, ...]](), dict[str, int]()
        for graph in (*iter_graphs(inferred.graph), *iter_graphs(model.graph)):
            for info in (*graph.input, *graph.value_info, *graph.output):
                types[info.name] = info.type.tensor_type.elem_type
                if info.type.tensor_type.HasField("shape"):
                    shapes[info.name] = tuple(
                        dim.dim_value if dim.HasField("dim_value") else None
                        for dim in info.type.tensor_type.shape.dim
                    )
        constants = find_constants(model.graph)
        tensors = [tensor for graph in iter_graphs(model.graph) for tensor in graph.initializer]
        for name, tensor in (
            *constants.items(),
            *((initializer.name, initializer) for initializer in tensors),
        ):
            shapes[name], types[name] = tuple(tensor.dims), tensor.data_type
        return [
            _Facts(graph, find_makers(graph), constants, weights, shapes, types, opset)
            for graph in iter_graphs(model.graph)
        ]

    def nodes(self, *op_types: str) -> Iterator[onnx.NodeProto]:
        """Yield the graph's own nodes of some operators."""
        return (node for node in self.graph.node if node.op_type in op_types)

    def origin(self, name: str) -> str:
        """Return the tensor that a tensor is a copy of, but for what other optimisers remove:
        casts, and operators whose second operand changes nothing."""
        while (maker := self.makers.get(name)) is not None:
            copies = operator_of(maker).moves_of(maker) is Moves.COPIED
            is_passed = copies or maker.op_type == "Cast"
            passed = maker.input[0] if is_passed else self._unchanged(maker)
            if not passed:
                break
            name = passed
        return name

    def _unchanged(self, node: onnx.NodeProto) -> str:
        neutral = operator_of(node).neutral
        if neutral is None or len(node.input) != _OPERANDS:
            return ""
        for operand, other in (node.input, node.input[::-1]):
            value = self.value(other)
            if value is not None and (value == neutral).all():
                return operand
        return ""

    def maker(self, name: str, *op_types: str) -> onnx.NodeProto | None:
        """Return the node of one of some operators that a tensor comes from, else None."""
        maker = self.makers.get(self.origin(name))
        return maker if maker is not None and maker.op_type in op_types else None

    def value(self, name: str) -> Array | None:
        """Return the value of a constant, or None."""
        while (maker := self.makers.get(name)) is not None and maker.op_type == "Identity":
            name = maker.input[0]
        if name in self.weights:
            return self.weights[name]
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def is_same(self, one: str, other: str) -> bool:
        """Return whether two tensors are one, or constants of one value."""
        left, right = self.value(one), self.value(other)
        if left is None or right is None:
            return one == other
        return left.dtype == right.dtype and np.array_equal(left, right)

    def is_number(self, name: str, is_fit: Callable[[float], bool]) -> bool:
        """Return whether a tensor is a constant with one value, of one axis at most."""
        value = self.value(name)
        return (
            value is not None
            and value.size == 1
            and value.ndim <= 1
            and is_fit(float(value.item()))
        )

    def is_along_last(self, name: str, of: str) -> bool:
        """Return whether a tensor has one element for each along the last axis of another."""
        shape, wide = self.shapes.get(name), self.shapes.get(of)
        return bool(shape and wide and None not in shape) and shape == (wide or ())[-1:]


def _norms_are_safe(facts: _Facts) -> bool:
    """Return whether everything that looks like a norm is one, over the last axis of several."""
    checks = (
        _are_means_over_last,
        _are_squares,
        _have_small_numbers,
        _are_in_order,
        _have_plain_weights,
    )
    return all(check(facts) for check in checks)


def _are_squares(facts: _Facts) -> bool:
    """Return whether the powers that are averaged are squares."""
    powers = (facts.maker(node.input[0], "Pow") for node in facts.nodes("ReduceMean"))
    return all(facts.is_number(power.input[1], _is_two) for power in powers if power is not None)


def _is_two(number: float) -> bool:
    return number == _SQUARE


def _is_epsilon(number: float) -> bool:
    return 0 <= number < np.inf


def _have_small_numbers(facts: _Facts) -> bool:
    """Return whether everything that is added to a mean is an epsilon."""
    for node in facts.nodes("Add"):
        for mean, epsilon in (node.input, node.input[::-1]):
            if facts.maker(mean, "ReduceMean") and not facts.is_number(epsilon, _is_epsilon):
                return False
    return True


def _are_in_order(facts: _Facts) -> bool:
    """Return whether no mean is the first operand of a difference, and no root of a quotient."""
    pairs = (("Sub", "ReduceMean"), ("Div", "Sqrt"))
    return not any(
        facts.maker(node.input[0], maker) for reader, maker in pairs for node in facts.nodes(reader)
    )


def _have_plain_weights(facts: _Facts) -> bool:
    """Return whether scales and biases of norms have one element for each along the last axis."""
    for node in facts.nodes("Mul", "Add"):
        for normal, weight in (node.input, node.input[::-1]):
            maker = facts.maker(normal, "Mul") if node.op_type == "Add" else None
            if node.op_type == "Add" and maker is None:
                continue
            quotients = [normal] if maker is None else maker.input
            is_normal = any(_is_normal(name, facts) for name in quotients)
            if is_normal and not facts.is_along_last(weight, normal):
                return False
    return True


def _is_normal(name: str, facts: _Facts) -> bool:
    """Return whether a tensor is a quotient by a root."""
    quotient = facts.maker(name, "Div")
    return quotient is not None and facts.maker(quotient.input[1], "Sqrt") is not None


def _are_means_over_last(facts: _Facts) -> bool:
    """Return whether all means that may be of norms are over the last axis of several, which they
    keep: an operator that stands for a norm of one axis is rejected. The means of a norm are
    subtracted, or an epsilon is added to them."""
    read = {facts.origin(name) for node in facts.nodes("Sub", "Add") for name in node.input}
    for node in facts.nodes("ReduceMean"):
        if node.output[0] not in read:
            continue
        rank, axes = len(facts.shapes.get(node.input[0], ())), attribute(node, "axes")
        if axes is None and len(node.input) > 1:
            axes = facts.value(node.input[1])
        is_last = (
            axes is not None and rank > 1 and [int(axis) % rank for axis in axes] == [rank - 1]
        )
        if not is_last or not attribute(node, "keepdims", 1):
            return False
    return True


def _are_over_last(facts: _Facts) -> bool:
    """Return whether all norms are over the last axis, with a scale and a bias of it."""
    if any(facts.nodes("Sqrt")) and not _norms_are_safe(facts):
        return False
    if not _are_biases_narrow(facts):
        return False
    for node in facts.nodes("LayerNormalization"):
        source, axis = node.input[0], attribute(node, "axis", -1)
        if axis not in (-1, len(facts.shapes.get(source, ())) - 1):
            return False
        weights = filter(None, node.input[1:])
        is_plain = all(facts.is_along_last(name, source) for name in weights)
        if not is_plain or not _is_epsilon(attribute(node, "epsilon", 1e-5)):
            return False
    return True


def _are_biases_narrow(facts: _Facts) -> bool:
    """Return whether no bias of one axis widens the product that it is added to."""
    for node in facts.nodes("Add"):
        for product, bias in (node.input, node.input[::-1]):
            is_bias = facts.value(bias) is not None and len(facts.shapes.get(bias, ())) == 1
            if is_bias and facts.maker(product, "MatMul") is not None:
                sizes = facts.shapes.get(product, ())[-1:], facts.shapes[bias]
                if sizes[1] not in (sizes[0], (1,)):
                    return False
    return True


def _factors_are_safe(facts: _Facts) -> bool:
    """Return whether all constant factors and divisors next to a product can be moved into it."""
    near = {_skip_factors(name, facts) for node in facts.nodes("MatMul") for name in node.input}
    for node in facts.nodes("Mul", "Div"):
        for name, other in (node.input, node.input[::-1]):
            value = facts.value(name)
            if value is None or value.size != 1 or value.dtype.kind != "f":
                continue
            source = _skip_factors(other, facts)
            if source not in near and facts.maker(source, "MatMul") is None:
                continue
            size = abs(float(value.item()))
            is_common = 1 / _MAX_FACTOR <= size <= _MAX_FACTOR
            if value.dtype == np.float64 or not is_common:
                return False
    return True


def _skip_factors(name: str, facts: _Facts) -> str:
    """Return the tensor that a tensor is a constant multiple of."""
    while (maker := facts.maker(name, "Mul", "Div", "Transpose")) is not None:
        others = [operand for operand in maker.input if facts.value(operand) is None]
        if len(others) != 1:
            break
        name = others[0]
    return facts.origin(name)


def _scales_are_safe(facts: _Facts) -> bool:
    """Return whether all products of integers have unsigned ones on the left, and a scale that is
    one number, or one for each column."""
    if any(
        facts.types.get(node.input[0]) != TensorProto.UINT8 for node in facts.nodes("MatMulInteger")
    ):
        return False
    for node in facts.nodes("Mul"):
        for product, scale in (node.input, node.input[::-1]):
            if facts.maker(product, "MatMulInteger") is None:
                continue
            is_one = facts.shapes.get(scale) in ((), (1,))
            if not is_one and not facts.is_along_last(scale, product):
                return False
    return True


def _columns_are_safe(facts: _Facts) -> bool:
    """Return whether no output is between a product and the norm of its columns."""
    outputs = {value.name for value in facts.graph.output}
    for node in facts.nodes("BatchNormalization"):
        name = node.input[0]
        while name not in outputs:
            maker = facts.makers.get(facts.origin(name))
            if maker is None or not operator_of(maker).keeps_elements:
                break
            name = maker.input[0]
        if name in outputs:
            return False
    return True


def _pairs_are_alike(facts: _Facts) -> bool:
    """Return whether all pairs that follow each other have one scale and one zero point."""
    for node in facts.nodes("QuantizeLinear"):
        maker = facts.maker(node.input[0], "DequantizeLinear")
        if maker is not None and not all(map(facts.is_same, node.input[1:], maker.input[1:])):
            return False
    return True


def _codes_return(facts: _Facts) -> bool:
    """Return whether scales have a size with which the number of a code is finite, and the code
    again when it is quantised: what moves codes takes the place of both."""
    for node in facts.nodes("DequantizeLinear", "QuantizeLinear"):
        scale = facts.value(node.input[1])
        if scale is not None and not are_common_scales(scale):
            return False
    return True


def _spread_is_safe(facts: _Facts) -> bool:
    """Return whether pairs can be moved along the graph: a moved pair has its type as an attribute
    from opset 21 on, which is wrong once int8 becomes uint8, and one without a zero point is of
    uint8 before; tensors that a body reads lose their maker."""
    bodies = [body for node in facts.graph.node for body in iter_bodies(node)]
    if not facts.makers.keys().isdisjoint(name for body in bodies for name in used_names(body)):
        return False
    pairs = list(facts.nodes("DequantizeLinear", "QuantizeLinear"))
    names = {node.output[0] for node in pairs}
    # All operators but products might be crossed.
    crossed = {
        facts.origin(name)
        for node in facts.graph.node
        if node.op_type not in _SUMMING and names.isdisjoint(node.output)
        for name in (*node.input, *node.output)
    }
    is_typed = facts.opset >= QUANTIZE_HAS_TYPE
    for node in pairs:
        codes, number = node.input[0], node.output[0]
        if node.op_type == "QuantizeLinear":
            codes, number = number, codes
        has_zero = len(node.input) > _OPERANDS and bool(node.input[_OPERANDS])
        is_signed = facts.types.get(codes) == TensorProto.INT8
        if is_signed and (is_typed or not has_zero) and facts.origin(number) in crossed:
            return False
    return True


def _turned_are_inner(facts: _Facts) -> bool:
    """Return whether no output is turned and then quantised: it would be quantised itself."""
    outputs = {facts.origin(value.name) for value in facts.graph.output}
    for node in facts.nodes("QuantizeLinear"):
        name = node.input[0]
        while (cut := facts.maker(name, "Clip", "Relu")) is not None:
            name = cut.input[0]
        maker = facts.maker(name, "Transpose")
        if maker is not None and facts.origin(maker.input[0]) in outputs:
            return False
    return True


def _biases_are_codes(facts: _Facts) -> bool:
    """Return whether no quantised product has a bias of floats, which would be rounded."""
    for node in facts.nodes(*_SUMMING):
        sides = [facts.maker(name, "DequantizeLinear") for name in node.input if name]
        if sides[0] is not None and len(sides) > _OPERANDS and sides[_OPERANDS] is None:
            return False
    return True


_RULES = {
    NORMS: _norms_are_safe,
    RESIDUAL_NORMS: _are_over_last,
    FACTORS: _factors_are_safe,
    INTEGERS: _scales_are_safe,
    COLUMN_NORMS: _columns_are_safe,
    BIASES: _biases_are_codes,
    PAIRS: _pairs_are_alike,
    CODES: _codes_return,
    SPREAD: _spread_is_safe,
    TURNED: _turned_are_inner,
}
"""Optimisers, with the rule for the graphs that they may rewrite."""
