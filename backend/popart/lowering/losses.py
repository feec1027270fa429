"""Rules of losses, which are plain outputs in inference."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import Operation, chip_rule, type_name

_TINY: dict[int, float] = {TensorProto.FLOAT: 1e-7, TensorProto.FLOAT16: 6.104e-5}
"""Least probability of which a logarithm is taken (popx/op/nllx.cpp)."""


def reduce_loss(operation: Operation, losses: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return losses reduced as the node says; a mean is over what `counted`, if given, counts."""
    kind = operation.attribute("reduction", "Mean")
    if kind == "None":
        return losses
    if losses.rank == 0:
        return losses
    axes = operation.numbers(np.arange(losses.rank))
    if kind == "Mean" and counted is None and not losses.size:
        return operation.like(np.nan, losses)
    if kind == "Mean" and counted is None:
        return operation.add("ReduceMean", losses, axes, keepdims=0)
    total = operation.add("ReduceSum", losses, axes, keepdims=0)
    if kind == "Sum" or counted is None:
        return total
    number = operation.add("ReduceSum", counted, axes, keepdims=0)
    return operation.add("Div", total, operation.add("Max", number, operation.like(1, number)))


@chip_rule("IdentityLoss")
def _identity_loss(operation: Operation) -> Sequence[Tensor]:
    return [reduce_loss(operation, operation.x)]


@chip_rule("L1")
def _l1(operation: Operation) -> Sequence[Tensor]:
    x = operation.x
    if not x.rank:
        raise popart_exception("L1Op not valid for rank-0 tensor (scalar)")
    factor = operation.like(np.float32(operation.attribute("lambda")), x)
    return [reduce_loss(operation, operation.add("Mul", operation.add("Abs", x), factor))]


@chip_rule("Nll")
def _nll(operation: Operation) -> Sequence[Tensor]:
    """-log of the label's probability; labels that are ignored count nothing."""
    probabilities, labels = operation.input(0), operation.input(1)
    _check_labels(operation, probabilities, labels)
    classes, count = probabilities.shape[-1], prod(labels.shape)
    flat = operation.reshape(operation.cast(labels, TensorProto.INT32), [count, 1])
    numbers = operation.constant(np.arange(classes, dtype=np.int32))
    hit = operation.cast(operation.add("Equal", flat, numbers), probabilities.type)
    rows = operation.reshape(probabilities, [count, classes])
    last = operation.numbers(np.asarray([-1]))
    found = operation.add("ReduceSum", operation.add("Mul", hit, rows), last, keepdims=0)
    if not operation.attribute("inputIsLogProbability", 0):
        least = operation.like(_TINY[probabilities.type], probabilities)
        found = operation.add("Log", operation.add("Max", found, least))
    counted = None
    ignored = operation.attribute("ignoreIndex")
    if ignored is not None:
        same = operation.add("Equal", flat, operation.constant(np.int32(ignored)))
        kept = operation.cast(operation.add("Not", same), probabilities.type)
        counted = operation.reshape(kept, [count])
        found = operation.add("Mul", found, counted)
    losses = operation.add("Neg", found)
    if operation.attribute("reduction", "Mean") == "None":
        return [operation.reshape(losses, labels.shape)]
    return [reduce_loss(operation, losses, counted)]


def _check_labels(operation: Operation, probabilities: Tensor, labels: Tensor) -> None:
    if not probabilities.rank:
        raise popart_exception(
            f"Invalid shape for prob tensor ({_describe(probabilities)}) in Op "
            f"{operation.describe()}. "
        )
    wanted = probabilities.shape[:-1]
    if labels.shape != wanted:
        raise popart_exception(
            f"The label tensor ({_describe(labels)}) must have shape {format_shape(wanted)} to "
            "match all but the final dimension of the probabilities tensor "
            f"({_describe(probabilities)}) in Op {operation.describe()}. "
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise popart_exception(
            "Expected the label tensor NllOp to be an integer data type (fixed point), not the "
            f"case for input with info: {_describe(labels)}. This error for Op "
            f"{operation.describe()}. "
        )


def _describe(tensor: Tensor) -> str:
    """Return type and shape as PopART prints them: `FLOAT   [2 4 3]`."""
    return f"{type_name(tensor):<7} {format_shape(tensor.shape)}"
