"""Rules that write operators which older opsets lack as other operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import NodeBuilder
from onnxgraph.opsets import (
    GROUP_NORMALIZATION_SCALES_CHANNELS,
    OPTIONAL_EXISTS,
    REDUCTIONS_TAKE_AXES,
)

from poprt.passes.chip.workarounds import ReplaceEinsumWithMatmul
from poprt.passes.opsets.older_forms import NoOlderFormError, Older, rule

Spelling = Callable[[Older, NodeBuilder], None]
_MAX_MASKED = 1 << 26
"""Maximum number of elements of the constant mask for a triangle."""
_CUBE = 0.044715
"""Coefficient of the cube in the tanh form of GELU."""


def _dtype(node: Older) -> np.dtype[Any]:
    """Return the dtype of the node's first input; float if it is not known."""
    known = node.view.type(node.name(0))
    return node.view.dtype(node.name(0)) if known else np.dtype(np.float32)


def _name_result(chain: NodeBuilder, node: Older) -> list[onnx.NodeProto]:
    """Return the nodes; the last makes the node's first result."""
    chain.nodes[-1].output[0] = node.node.output[0]
    return chain.end(node.node)


def spelling(*op_types: str, since: int) -> Callable[[Spelling], Spelling]:
    """Return a decorator of a function that adds the nodes of a rule to a builder. The last of them
    makes the result."""

    def add(made: Spelling) -> Spelling:
        def write(node: Older) -> list[onnx.NodeProto] | None:
            chain = node.start()
            made(node, chain)
            return _name_result(chain, node)

        rule(*op_types, since=since)(write)
        return made

    return add


@rule("CastLike", since=15)
def cast_like(node: Older) -> list[onnx.NodeProto] | None:
    """Write CastLike as a Cast."""
    to = node.view.type(node.name(1))
    if not to:
        raise NoOlderFormError(f"the type of its input {node.name(1)!r} is not known")
    node.refuse_unless("saturate", 1)
    return [helper.make_node("Cast", [node.name(0)], node.node.output, node.node.name, to=to)]


@spelling("GreaterOrEqual", "LessOrEqual", since=12)
def compare(node: Older, chain: NodeBuilder) -> None:
    """Write the comparison as Greater or Less, or Equal. For NaN that is false, as required."""
    strict = chain.add(node.node.op_type.removesuffix("OrEqual"), *node.node.input)
    chain.add("Or", strict, chain.add("Equal", *node.node.input))


@rule("Relu", since=14)
def relu(node: Older) -> list[onnx.NodeProto] | None:
    """Write Relu of integers as a Where."""
    if node.view.is_float(node.name(0)) or not node.view.type(node.name(0)):
        return None
    chain = node.start()
    zero = chain.constant(0, node.view.dtype(node.name(0)))
    _choose(chain, "Greater", node.name(0), zero)
    return _name_result(chain, node)


def _choose(chain: NodeBuilder, comparison: str, left: str, right: str) -> str:
    """Add a Where that chooses the left operand if the comparison is true, else the right one."""
    return chain.add("Where", chain.add(comparison, left, right), left, right)


@rule("Max", "Min", "Clip", since=12)
def extremes(node: Older) -> list[onnx.NodeProto] | None:
    """Write extremes of integers as choices by comparison."""
    kind = node.view.type(node.name(0))
    if not kind or node.view.is_float(node.name(0)):
        return None
    chain, found = node.start(), node.name(0)
    comparisons = {"Clip": ["Greater", "Less"], "Max": ["Greater"], "Min": ["Less"]}
    others = node.node.input[1:]
    for comparison, other in zip(
        itertools.cycle(comparisons[node.node.op_type]), others, strict=False
    ):
        if other:
            found = _choose(chain, comparison, found, other)
    if not chain.nodes:
        chain.add("Identity", found)
    return _name_result(chain, node)


@spelling("Trilu", since=14)
def triangle(node: Older, chain: NodeBuilder) -> None:
    """Write Trilu as a choice by a constant mask."""
    rows, columns = node.shape()[-2:]
    value = node.constant(1, "diagonal")
    diagonal = 0 if value is None else int(value)
    if rows * columns > _MAX_MASKED:
        raise NoOlderFormError(f"its mask would have {rows} x {columns} elements")
    is_upper = node.get("upper", 1)
    ones = np.ones((rows, columns), bool)
    mask = np.triu(ones, diagonal) if is_upper else np.tril(ones, diagonal)
    chain.add(
        "Where",
        chain.constant(mask, bool),
        node.name(0),
        chain.constant(0, node.view.dtype(node.name(0))),
    )


@rule("Einsum", since=12)
def einsum(node: Older) -> list[onnx.NodeProto] | None:
    """Write Einsum as products, sums and transpositions."""
    made = ReplaceEinsumWithMatmul().replace(node.node, node.view)
    if made is None:
        raise NoOlderFormError(
            f"equation {node.get('equation')!r} is no product of float tensors of known shapes"
        )
    return made


@spelling("HardSwish", since=14)
def hard_swish(node: Older, chain: NodeBuilder) -> None:
    """Write HardSwish as x * HardSigmoid(x)."""
    chain.add("Mul", node.name(0), chain.add("HardSigmoid", node.name(0), alpha=1 / 6, beta=0.5))


@spelling("Mish", since=18)
def mish(node: Older, chain: NodeBuilder) -> None:
    """Write Mish as x * tanh(softplus(x))."""
    chain.add("Mul", node.name(0), chain.add("Tanh", chain.add("Softplus", node.name(0))))


@spelling("Swish", since=24)
def swish(node: Older, chain: NodeBuilder) -> None:
    """Write Swish as x * sigmoid(alpha * x)."""
    scaled, alpha = node.name(0), node.get("alpha", 1.0)
    if alpha != 1:
        scaled = chain.add("Mul", scaled, chain.constant(alpha, node.view.dtype(scaled)))
    chain.add("Mul", node.name(0), chain.add("Sigmoid", scaled))


@spelling("Celu", since=12)
def celu(node: Older, chain: NodeBuilder) -> None:
    """Write Celu as alpha * Elu(x / alpha)."""
    alpha = node.get("alpha", 1.0)
    factor = chain.constant(
        alpha, node.view.dtype(node.name(0)) if node.view.type(node.name(0)) else np.float32
    )
    chain.add("Mul", chain.add("Elu", chain.add("Div", node.name(0), factor), alpha=1.0), factor)


@spelling("Gelu", since=20)
def gelu(node: Older, chain: NodeBuilder) -> None:
    """Write Gelu as exporters do."""
    x, dtype = node.name(0), _dtype(node)
    if node.get("approximate", "none") == "tanh":
        cube = chain.add(
            "Mul", chain.add("Pow", x, chain.constant(3, dtype)), chain.constant(_CUBE, dtype)
        )
        scaled = chain.add(
            "Mul", chain.add("Add", x, cube), chain.constant(math.sqrt(2 / math.pi), dtype)
        )
        gate = chain.add("Tanh", scaled)
    else:
        gate = chain.add("Erf", chain.add("Div", x, chain.constant(math.sqrt(2), dtype)))
    product = chain.add("Mul", x, chain.add("Add", gate, chain.constant(1, dtype)))
    chain.add("Mul", product, chain.constant(0.5, dtype))


def _widen(node: Older, chain: NodeBuilder) -> tuple[bool, np.dtype[Any], str]:
    """Return whether a norm in half computes in float, the dtype in which it computes, and its
    input in that dtype."""
    x = node.name(0)
    if node.view.type(x) == TensorProto.FLOAT16 and node.get("stash_type", 1) == TensorProto.FLOAT:
        return True, np.dtype(np.float32), chain.add("Cast", x, to=TensorProto.FLOAT)
    return False, _dtype(node), x


@spelling("LayerNormalization", since=17)
def layer_normalization(node: Older, chain: NodeBuilder) -> None:
    """Write LayerNormalization as mean, variance and so on, as exporters do, in float where the
    standard requires it."""
    node.name(0)
    is_narrow, dtype, wide = _widen(node, chain)
    axes = _last_axes(node)
    mean = chain.add("ReduceMean", wide, axes=axes)
    centred = chain.add("Sub", wide, mean)
    variance = chain.add(
        "ReduceMean", chain.add("Pow", centred, chain.constant(2, dtype)), axes=axes
    )
    safe = chain.add("Add", variance, chain.constant(node.get("epsilon", 1e-5), dtype))
    deviation = chain.add("Sqrt", safe)
    results = [*node.node.output, "", ""]
    if results[1]:
        chain.add_as(results[1], "Identity", mean)
    if results[2]:
        chain.add_as(results[2], "Reciprocal", deviation)
    made = chain.add("Div", centred, deviation)
    if is_narrow:
        made = chain.add("Cast", made, to=TensorProto.FLOAT16)
    made = chain.add("Mul", made, node.name(1))
    if node.name(2):
        chain.add("Add", made, node.name(2))


def _last_axes(node: Older) -> list[int]:
    """Return the node's axis and all axes behind it, counted from the end."""
    axis = node.get("axis", -1)
    return list(range(axis - node.rank() if axis >= 0 else axis, 0))


@spelling("RMSNormalization", since=23)
def rms_normalization(node: Older, chain: NodeBuilder) -> None:
    """Write RMSNormalization as x / sqrt(mean(x * x) + epsilon) * scale."""
    node.name(0)
    is_narrow, dtype, wide = _widen(node, chain)
    mean = _mean(chain, node, chain.add("Mul", wide, wide), _last_axes(node))
    safe = chain.add("Add", mean, chain.constant(node.get("epsilon", 1e-5), dtype))
    made = chain.add("Div", wide, chain.add("Sqrt", safe))
    if is_narrow:
        made = chain.add("Cast", made, to=TensorProto.FLOAT16)
    chain.add("Mul", made, node.name(1))


def _mean(chain: NodeBuilder, node: Older, source: str, axes: list[int]) -> str:
    if node.target < REDUCTIONS_TAKE_AXES:
        return chain.add("ReduceMean", source, axes=axes)
    return chain.add("ReduceMean", source, chain.shape(axes))


@rule("GroupNormalization")
def group_normalization(node: Older) -> list[onnx.NodeProto] | None:
    """Write GroupNormalization as exporters do: an InstanceNormalization with groups as channels,
    then scales and biases. Before opset 21 those are of groups, not of channels."""
    if not (node.crosses(18) or node.crosses(GROUP_NORMALIZATION_SCALES_CHANNELS)):
        return None
    chain, x, groups = node.start(), node.name(0), node.get("num_groups")
    shape, dtype = node.shape(), _dtype(node)
    if not groups or shape[1] % groups:
        raise NoOlderFormError(f"it has {groups} groups of {shape[1]} channels")
    parted = chain.add("Reshape", x, chain.shape([shape[0], groups, -1]))
    scales = chain.constant(np.ones(groups), dtype), chain.constant(np.zeros(groups), dtype)
    normal = chain.add("InstanceNormalization", parted, *scales, epsilon=node.get("epsilon", 1e-5))
    of_channels = [shape[1], *[1] * (len(shape) - 2)]
    if node.source >= GROUP_NORMALIZATION_SCALES_CHANNELS:
        made = chain.add("Reshape", normal, chain.shape(shape))
        for op_type, place in (("Mul", 1), ("Add", 2)):
            factor = chain.add("Reshape", node.name(place), chain.shape(of_channels))
            made = chain.add(op_type, made, factor)
        return _name_result(chain, node)
    for op_type, place in (("Mul", 1), ("Add", 2)):
        factor = chain.add("Reshape", node.name(place), chain.shape([groups, 1]))
        normal = chain.add(op_type, normal, factor)
    chain.add("Reshape", normal, chain.shape(shape))
    return _name_result(chain, node)


@rule("DequantizeLinear")
def dequantize(node: Older) -> list[onnx.NodeProto] | None:
    """Write a scale for each channel as the difference to the zero point, times the scale."""
    if not _is_rewritten(node):
        return None
    if not _is_per_channel(node):
        return [node.without(["axis"])]
    chain, shape = node.start(), _channel_shape(node)
    value = chain.add("Cast", node.name(0), to=TensorProto.FLOAT)
    if node.name(2):
        zero = chain.add("Cast", node.name(2), to=TensorProto.FLOAT)
        value = chain.add("Sub", value, chain.add("Reshape", zero, shape))
    chain.add("Mul", value, chain.add("Reshape", node.name(1), shape))
    return _name_result(chain, node)


@rule("QuantizeLinear")
def quantize(node: Older) -> list[onnx.NodeProto] | None:
    """Write a scale for each channel as the quotient, rounded to even, plus the zero point, clipped
    to its range."""
    if not _is_rewritten(node):
        return None
    if not _is_per_channel(node):
        return [node.without(["axis"])]
    chain, shape = node.start(), _channel_shape(node)
    to = node.view.type(node.name(2)) if node.name(2) else TensorProto.UINT8
    if to not in (TensorProto.UINT8, TensorProto.INT8):
        raise NoOlderFormError("it makes other numbers than of 8 bits")
    value = chain.add("Div", node.name(0), chain.add("Reshape", node.name(1), shape))
    value = chain.add("Round", value)
    if node.name(2):
        zero = chain.add("Cast", node.name(2), to=TensorProto.FLOAT)
        value = chain.add("Add", value, chain.add("Reshape", zero, shape))
    bounds = np.iinfo(helper.tensor_dtype_to_np_dtype(to))
    value = chain.add("Clip", value, chain.constant(bounds.min), chain.constant(bounds.max))
    chain.add("Cast", value, to=to)
    return _name_result(chain, node)


def _is_rewritten(node: Older) -> bool:
    """Return whether a node has an axis, or scales for each channel, that older opsets lack. Raise
    NoOlderFormError for scales of blocks."""
    if node.crosses(21):
        node.refuse_unless("block_size", 0)
    return node.crosses(13) and (node.get("axis") is not None or _is_per_channel(node))


def _is_per_channel(node: Older) -> bool:
    scale = node.view.shape(node.name(1))
    return scale is None or len(scale) > 0


def _channel_shape(node: Older) -> str:
    rank = node.rank()
    shape = [1] * rank
    shape[node.get("axis", 1) % max(1, rank)] = -1
    return node.start().shape(shape)


def _is_kept(node: Older, *, is_tensor: bool) -> bool:
    """Return whether an operator of optional values stays. Raise NoOlderFormError if the older
    opset has no optional values, and the input may be one."""
    if not node.crosses(18) or (node.target >= OPTIONAL_EXISTS and not is_tensor):
        return True
    if not is_tensor:
        raise NoOlderFormError("older opsets have tensors only")
    return False


@rule("OptionalGetElement")
def get_element(node: Older) -> list[onnx.NodeProto] | None:
    """Replace OptionalGetElement of a tensor by the tensor."""
    if _is_kept(node, is_tensor=bool(node.view.type(node.name(0)))):
        return None
    return [helper.make_node("Identity", [node.name(0)], node.node.output, node.node.name)]


@rule("OptionalHasElement")
def has_element(node: Older) -> list[onnx.NodeProto] | None:
    """Replace OptionalHasElement by a constant: true for a tensor, false for a missing input."""
    if _is_kept(node, is_tensor=not node.name(0) or bool(node.view.type(node.name(0)))):
        return None
    value = helper.make_tensor("", TensorProto.BOOL, [], [bool(node.name(0))])
    return [helper.make_node("Constant", [], node.node.output, node.node.name, value=value)]
