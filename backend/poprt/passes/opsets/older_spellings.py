"""Rules that write operators which older opsets lack as other operators."""

from __future__ import annotations

import itertools

import numpy as np
from onnx import TensorProto, helper
from onnxgraph import Results, Tape, Value, expansions
from onnxgraph.expansions import EXPANSIONS
from onnxgraph.opsets import (
    GROUP_NORMALIZATION_SCALES_CHANNELS,
    OPTIONAL_EXISTS,
)

from poprt.passes.chip.workarounds import write_einsum
from poprt.passes.opsets.older_forms import NoOlderFormError, Older, rule

_MAX_MASKED = 1 << 26
"""Maximum number of elements of the constant mask for a triangle."""

for _op_type, (_since, _expansion) in EXPANSIONS.items():
    rule(_op_type, since=_since)(_expansion)


@rule("CastLike", since=15)
def cast_like(op: Tape, node: Older) -> Results | None:
    """Write CastLike as a Cast."""
    to = node.facts.type(node.name(1))
    if not to:
        raise NoOlderFormError(f"the type of its input {node.name(1)!r} is not known")
    node.refuse_unless("saturate", 1)
    return op.Cast(node.x, to=to)


@rule("Relu", since=14)
def relu(op: Tape, node: Older) -> Results | None:
    """Write Relu of integers as a Where."""
    if node.facts.is_float(node.name(0)) or not node.x.element_type:
        return None
    return _choose(op, "Greater", node.x, op.like(0, node.x.element_type))


def _choose(op: Tape, comparison: str, left: str, right: str) -> Value:
    """Add a Where that chooses the left operand if the comparison is true, else the right one."""
    return op.Where(op.add(comparison, left, right), left, right)


@rule("Max", "Min", "Clip", since=12)
def extremes(op: Tape, node: Older) -> Results | None:
    """Write extremes of integers as choices by comparison."""
    if not node.x.element_type or node.facts.is_float(node.name(0)):
        return None
    comparisons = {"Clip": ["Greater", "Less"], "Max": ["Greater"], "Min": ["Less"]}
    result = node.x
    for comparison, other in zip(
        itertools.cycle(comparisons[node.node.op_type]), node.node.input[1:], strict=False
    ):
        if other:
            result = _choose(op, comparison, result, other)
    return result


@rule("Trilu", since=14)
def triangle(op: Tape, node: Older) -> Results | None:
    """Write Trilu as a choice by a constant mask."""
    rows, columns = node.shape()[-2:]
    value = node.constant(1, "diagonal")
    diagonal = 0 if value is None else int(value)
    if rows * columns > _MAX_MASKED:
        raise NoOlderFormError(f"its mask would have {rows} x {columns} elements")
    is_upper = node.get("upper", 1)
    ones = np.ones((rows, columns), bool)
    mask = np.triu(ones, diagonal) if is_upper else np.tril(ones, diagonal)
    return op.Where(op.constant(mask, bool), node.x, op.like(0, node.x.element_type))


@rule("Einsum", since=12)
def einsum(op: Tape, node: Older) -> Results | None:
    """Write Einsum as products, sums and transpositions."""
    result = write_einsum(op, node)
    if result is None:
        raise NoOlderFormError(
            f"equation {node.get('equation')!r} is no product of float tensors of known shapes"
        )
    return result


@rule("GroupNormalization")
def group_normalization(op: Tape, node: Older) -> Results | None:
    """Write GroupNormalization as exporters do: an InstanceNormalization with groups as channels,
    then scales and biases. Before opset 21 those are of groups, not of channels."""
    if not (node.crosses(18) or node.crosses(GROUP_NORMALIZATION_SCALES_CHANNELS)):
        return None
    groups, shape = node.get("num_groups"), node.shape()
    if not groups or shape[1] % groups:
        raise NoOlderFormError(f"it has {groups} groups of {shape[1]} channels")
    scales_groups = node.source < GROUP_NORMALIZATION_SCALES_CHANNELS
    return expansions.group_norm(op, node, scales_groups=scales_groups)


@rule("DequantizeLinear")
def dequantize(op: Tape, node: Older) -> Results | None:
    """Write a scale for each channel as the difference to the zero point, times the scale."""
    if not _is_rewritten(node):
        return None
    if not _is_per_channel(node):
        return node.without(["axis"])
    shape = _channel_shape(node)
    value = op.Cast(node.x, to=TensorProto.FLOAT)
    if node.name(2):
        value = value - op.Reshape(op.Cast(node.name(2), to=TensorProto.FLOAT), op.ints(shape))
    return value * op.Reshape(node.name(1), op.ints(shape))


@rule("QuantizeLinear")
def quantize(op: Tape, node: Older) -> Results | None:
    """Write a scale for each channel as the quotient, rounded to even, plus the zero point, clipped
    to its range."""
    if not _is_rewritten(node):
        return None
    if not _is_per_channel(node):
        return node.without(["axis"])
    shape = _channel_shape(node)
    to = node.facts.type(node.name(2)) if node.name(2) else TensorProto.UINT8
    if to not in (TensorProto.UINT8, TensorProto.INT8):
        raise NoOlderFormError("it makes other numbers than of 8 bits")
    value = op.Round(node.x / op.Reshape(node.name(1), op.ints(shape)))
    if node.name(2):
        value = value + op.Reshape(op.Cast(node.name(2), to=TensorProto.FLOAT), op.ints(shape))
    bounds = np.iinfo(helper.tensor_dtype_to_np_dtype(to))
    return op.Cast(op.Clip(value, min=bounds.min, max=bounds.max), to=to)


def _is_rewritten(node: Older) -> bool:
    """Return whether a node has an axis, or scales for each channel, that older opsets lack. Raise
    NoOlderFormError for scales of blocks."""
    if node.crosses(21):
        node.refuse_unless("block_size", 0)
    return node.crosses(13) and (node.get("axis") is not None or _is_per_channel(node))


def _is_per_channel(node: Older) -> bool:
    scale = node.facts.shape(node.name(1))
    return scale is None or len(scale) > 0


def _channel_shape(node: Older) -> list[int]:
    rank = node.rank()
    shape = [1] * rank
    shape[node.get("axis", 1) % max(1, rank)] = -1
    return shape


def _is_kept(node: Older, *, is_tensor: bool) -> bool:
    """Return whether an operator of optional values stays. Raise NoOlderFormError if the older
    opset has no optional values, and the input may be one."""
    if not node.crosses(18) or (node.target >= OPTIONAL_EXISTS and not is_tensor):
        return True
    if not is_tensor:
        raise NoOlderFormError("older opsets have tensors only")
    return False


@rule("OptionalGetElement")
def get_element(op: Tape, node: Older) -> Results | None:
    """Replace OptionalGetElement of a tensor by the tensor."""
    if _is_kept(node, is_tensor=bool(node.facts.type(node.name(0)))):
        return None
    return op.Identity(node.x)


@rule("OptionalHasElement")
def has_element(op: Tape, node: Older) -> Results | None:
    """Replace OptionalHasElement by a constant: true for a tensor, false for a missing input."""
    if _is_kept(node, is_tensor=not node.name(0) or bool(node.facts.type(node.name(0)))):
        return None
    value = helper.make_tensor("", TensorProto.BOOL, [], [bool(node.name(0))])
    return op.Constant(value=value)
