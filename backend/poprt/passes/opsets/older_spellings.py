"""Rules that write operators which older opsets lack as other operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph.opsets import (
    GROUP_NORMALIZATION_SCALES_CHANNELS,
    OPTIONAL_EXISTS,
    REDUCTIONS_TAKE_AXES,
)

from poprt.passes.chip.contractions import ReplaceEinsumWithMatmul
from poprt.passes.opsets.older_forms import NoOlderFormError, Older, rule
from poprt.rewrite.names import NodeBuilder

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


@rule("CastLike")
def cast_like(node: Older) -> list[onnx.NodeProto] | None:
    """Write CastLike as a Cast."""
    if not node.crosses(15):
        return None
    to = node.view.type(node.name(1))
    if not to:
        raise NoOlderFormError(f"the type of its input {node.name(1)!r} is not known")
    node.refuse_unless("saturate", 1)
    return [helper.make_node("Cast", [node.name(0)], node.node.output, node.node.name, to=to)]


@rule("GreaterOrEqual", "LessOrEqual")
def compare(node: Older) -> list[onnx.NodeProto] | None:
    """Write the comparison as Greater or Less, or Equal. For NaN that is false, as required."""
    if not node.crosses(12):
        return None
    chain = node.start()
    strict = chain.add(node.node.op_type.removesuffix("OrEqual"), *node.node.input)
    chain.add("Or", strict, chain.add("Equal", *node.node.input))
    return _name_result(chain, node)


@rule("Relu")
def relu(node: Older) -> list[onnx.NodeProto] | None:
    """Write Relu of integers as a Where."""
    if not node.crosses(14) or node.view.is_float(node.name(0)) or not node.view.type(node.name(0)):
        return None
    chain, dtype = node.start(), node.view.dtype(node.name(0))
    zero = chain.constant(0, dtype)
    _choose(chain, "Greater", node.name(0), zero)
    return _name_result(chain, node)


def _choose(chain: NodeBuilder, comparison: str, left: str, right: str) -> str:
    """Add a Where that chooses the left operand if the comparison is true, else the right one."""
    return chain.add("Where", chain.add(comparison, left, right), left, right)


@rule("Max", "Min", "Clip")
def extremes(node: Older) -> list[onnx.NodeProto] | None:
    """Write extremes of integers as choices by comparison."""
    kind = node.view.type(node.name(0))
    if not node.crosses(12) or not kind or node.view.is_float(node.name(0)):
        return None
    chain, found = node.start(), node.name(0)
    bounds = (
        [("Greater", node.name(1)), ("Less", node.name(2))]
        if node.node.op_type == "Clip"
        else [
            ("Greater" if node.node.op_type == "Max" else "Less", each)
            for each in node.node.input[1:]
        ]
    )
    for comparison, other in bounds:
        if other:
            found = _choose(chain, comparison, found, other)
    if not chain.nodes:
        chain.add("Identity", found)
    return _name_result(chain, node)


@rule("Trilu")
def triangle(node: Older) -> list[onnx.NodeProto] | None:
    """Write Trilu as a choice by a constant mask."""
    if not node.crosses(14):
        return None
    rows, columns = node.shape()[-2:]
    value = node.constant(1, "diagonal")
    diagonal = 0 if value is None else int(value)
    if rows * columns > _MAX_MASKED:
        raise NoOlderFormError(f"its mask would have {rows} x {columns} elements")
    is_upper = node.get("upper", 1)
    ones = np.ones((rows, columns), bool)
    mask = np.triu(ones, diagonal) if is_upper else np.tril(ones, diagonal)
    chain = node.start()
    chain.add(
        "Where",
        chain.constant(mask, bool),
        node.name(0),
        chain.constant(0, node.view.dtype(node.name(0))),
    )
    return _name_result(chain, node)


@rule("Einsum")
def einsum(node: Older) -> list[onnx.NodeProto] | None:
    """Write Einsum as products, sums and transpositions."""
    if not node.crosses(12):
        return None
    made = ReplaceEinsumWithMatmul().replace(node.node, node.view)
    if made is None:
        raise NoOlderFormError(
            f"equation {node.get('equation')!r} is no product of float tensors of known shapes"
        )
    return made


@rule("HardSwish")
def hard_swish(node: Older) -> list[onnx.NodeProto] | None:
    """Write HardSwish as x * HardSigmoid(x)."""
    if not node.crosses(14):
        return None
    chain = node.start()
    chain.add("Mul", node.name(0), chain.add("HardSigmoid", node.name(0), alpha=1 / 6, beta=0.5))
    return _name_result(chain, node)


@rule("Mish")
def mish(node: Older) -> list[onnx.NodeProto] | None:
    """Write Mish as x * tanh(softplus(x))."""
    if not node.crosses(18):
        return None
    chain = node.start()
    chain.add("Mul", node.name(0), chain.add("Tanh", chain.add("Softplus", node.name(0))))
    return _name_result(chain, node)


@rule("Swish")
def swish(node: Older) -> list[onnx.NodeProto] | None:
    """Write Swish as x * sigmoid(alpha * x)."""
    if not node.crosses(24):
        return None
    chain, scaled, alpha = node.start(), node.name(0), node.get("alpha", 1.0)
    if alpha != 1:
        scaled = chain.add("Mul", scaled, chain.constant(alpha, node.view.dtype(scaled)))
    chain.add("Mul", node.name(0), chain.add("Sigmoid", scaled))
    return _name_result(chain, node)


@rule("Celu")
def celu(node: Older) -> list[onnx.NodeProto] | None:
    """Write Celu as alpha * Elu(x / alpha)."""
    if not node.crosses(12):
        return None
    chain, alpha = node.start(), node.get("alpha", 1.0)
    factor = chain.constant(
        alpha, node.view.dtype(node.name(0)) if node.view.type(node.name(0)) else np.float32
    )
    chain.add("Mul", chain.add("Elu", chain.add("Div", node.name(0), factor), alpha=1.0), factor)
    return _name_result(chain, node)


@rule("Gelu")
def gelu(node: Older) -> list[onnx.NodeProto] | None:
    """Write Gelu as exporters do."""
    if not node.crosses(20):
        return None
    chain, x = node.start(), node.name(0)
    dtype = _dtype(node)
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
    return _name_result(chain, node)


@rule("LayerNormalization")
def layer_normalization(node: Older) -> list[onnx.NodeProto] | None:
    """Write LayerNormalization as mean, variance and so on, as exporters do, in float where the
    standard requires it."""
    if not node.crosses(17):
        return None
    chain, x = node.start(), node.name(0)
    is_narrow = (
        node.view.type(x) == TensorProto.FLOAT16 and node.get("stash_type", 1) == TensorProto.FLOAT
    )
    dtype = np.dtype(np.float32) if is_narrow else _dtype(node)
    wide = chain.add("Cast", x, to=TensorProto.FLOAT) if is_narrow else x
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
    return _name_result(chain, node)


def _last_axes(node: Older) -> list[int]:
    """Return the node's axis and all axes behind it, counted from the end."""
    axis = node.get("axis", -1)
    return list(range(axis - node.rank() if axis >= 0 else axis, 0))


@rule("RMSNormalization")
def rms_normalization(node: Older) -> list[onnx.NodeProto] | None:
    """Write RMSNormalization as x / sqrt(mean(x * x) + epsilon) * scale."""
    if not node.crosses(23):
        return None
    chain, x = node.start(), node.name(0)
    is_narrow = (
        node.view.type(x) == TensorProto.FLOAT16 and node.get("stash_type", 1) == TensorProto.FLOAT
    )
    dtype = np.dtype(np.float32) if is_narrow else _dtype(node)
    wide = chain.add("Cast", x, to=TensorProto.FLOAT) if is_narrow else x
    mean = _mean(chain, node, chain.add("Mul", wide, wide), _last_axes(node))
    safe = chain.add("Add", mean, chain.constant(node.get("epsilon", 1e-5), dtype))
    made = chain.add("Div", wide, chain.add("Sqrt", safe))
    if is_narrow:
        made = chain.add("Cast", made, to=TensorProto.FLOAT16)
    chain.add("Mul", made, node.name(1))
    return _name_result(chain, node)


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
    _check_blocks(node)
    if not node.crosses(13) or (node.get("axis") is None and not _is_per_channel(node)):
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
    _check_blocks(node)
    if not node.crosses(13) or (node.get("axis") is None and not _is_per_channel(node)):
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


def _check_blocks(node: Older) -> None:
    if node.crosses(21):
        node.refuse_unless("block_size", 0)


def _is_per_channel(node: Older) -> bool:
    scale = node.view.shape(node.name(1))
    return scale is None or len(scale) > 0


def _channel_shape(node: Older) -> str:
    rank = node.rank()
    shape = [1] * rank
    shape[node.get("axis", 1) % max(1, rank)] = -1
    return node.start().shape(shape)


@rule("OptionalGetElement")
def get_element(node: Older) -> list[onnx.NodeProto] | None:
    """Replace OptionalGetElement of a tensor by the tensor."""
    is_tensor = bool(node.view.type(node.name(0)))
    if not node.crosses(18) or (node.target >= OPTIONAL_EXISTS and not is_tensor):
        return None
    if not is_tensor:
        raise NoOlderFormError("older opsets have tensors only")
    return [helper.make_node("Identity", [node.name(0)], node.node.output, node.node.name)]


@rule("OptionalHasElement")
def has_element(node: Older) -> list[onnx.NodeProto] | None:
    """Replace OptionalHasElement by a constant: true for a tensor, false for a missing input."""
    is_tensor = not node.name(0) or bool(node.view.type(node.name(0)))
    if not node.crosses(18) or (node.target >= OPTIONAL_EXISTS and not is_tensor):
        return None
    if not is_tensor:
        raise NoOlderFormError("older opsets have tensors only")
    value = helper.make_tensor("", TensorProto.BOOL, [], [bool(node.name(0))])
    return [helper.make_node("Constant", [], node.node.output, node.node.name, value=value)]
