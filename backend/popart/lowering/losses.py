"""Rules of losses, which are plain outputs in inference."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, type_name

_TINY: dict[int, float] = {TensorProto.FLOAT: 1e-7, TensorProto.FLOAT16: 6.104e-5}
"""Least probability of which a logarithm is taken (popx/op/nllx.cpp)."""


def reduce_loss(
    op: Graph, node: Operation, losses: Tensor, counted: Tensor | None = None
) -> Tensor:
    """Return losses reduced as the node says; a mean is over what `counted`, if given, counts."""
    kind = node.get("reduction", "Mean")
    if kind == "None" or losses.rank == 0:
        return losses
    axes = list(range(losses.rank))
    if kind == "Mean" and counted is None:
        if not losses.size:
            return op.like(np.nan, losses.element_type)
        return op.ReduceMean(losses, axes=axes, keepdims=0)
    total = op.ReduceSum(losses, axes=axes, keepdims=0)
    if kind == "Sum" or counted is None:
        return total
    return total / op.Max(op.ReduceSum(counted, axes=axes, keepdims=0), 1)


@chip_rule("IdentityLoss")
def _identity_loss(op: Graph, node: Operation) -> Results:
    return reduce_loss(op, node, node.x)


@chip_rule("L1")
def _l1(op: Graph, node: Operation) -> Results:
    x = node.x
    if not x.rank:
        raise popart_exception("L1Op not valid for rank-0 tensor (scalar)")
    return reduce_loss(op, node, op.Abs(x) * np.float32(node.get("lambda")))


@chip_rule("Nll")
def _nll(op: Graph, node: Operation) -> Results:
    """-log of the label's probability; labels that are ignored count nothing."""
    probabilities, labels = node.input(0), node.input(1)
    _check_labels(node, probabilities, labels)
    classes, count = probabilities.shape[-1], prod(labels.shape)
    flat = op.reshape(op.cast(labels, TensorProto.INT32), [count, 1])
    hit = op.cast(op.Equal(flat, np.arange(classes)), probabilities.element_type)
    rows = op.reshape(probabilities, [count, classes])
    logarithms = op.ReduceSum(hit * rows, axes=[-1], keepdims=0)
    if not node.get("inputIsLogProbability", 0):
        logarithms = op.Log(op.Max(logarithms, _TINY[probabilities.element_type]))
    counted = None
    ignored = node.get("ignoreIndex")
    if ignored is not None:
        is_counted = op.cast(op.Not(op.Equal(flat, ignored)), probabilities.element_type)
        counted = op.reshape(is_counted, [count])
        logarithms = logarithms * counted
    losses = -logarithms
    if node.get("reduction", "Mean") == "None":
        return op.reshape(losses, labels.shape)
    return reduce_loss(op, node, losses, counted)


def _check_labels(node: Operation, probabilities: Tensor, labels: Tensor) -> None:
    if not probabilities.rank:
        raise popart_exception(
            f"Invalid shape for prob tensor ({_describe(probabilities)}) in Op {node.describe()}. "
        )
    expected = probabilities.shape[:-1]
    if labels.shape != expected:
        raise popart_exception(
            f"The label tensor ({_describe(labels)}) must have shape {format_shape(expected)} to "
            "match all but the final dimension of the probabilities tensor "
            f"({_describe(probabilities)}) in Op {node.describe()}. "
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise popart_exception(
            "Expected the label tensor NllOp to be an integer data type (fixed point), not the "
            f"case for input with info: {_describe(labels)}. This error for Op "
            f"{node.describe()}. "
        )


def _describe(tensor: Tensor) -> str:
    """Return type and shape as PopART prints them: `FLOAT   [2 4 3]`."""
    return f"{type_name(tensor):<7} {format_shape(tensor.shape)}"
