"""Rules of norms and of Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnxgraph import CHIP_DOMAIN, Results
from onnxgraph.expansions import EPSILON
from onnxgraph.opsets import BATCH_NORMALIZATION_IS_PER_CHANNEL as IS_PER_CHANNEL

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Array, Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, keep, rule, type_name


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(op: Graph, node: Operation) -> Results:
    """Before opset 13 the axes from `axis` on are one."""
    x, axis = node.x, node.axis(1)
    if not 0 <= axis < x.rank:
        raise popart_exception(
            f"{node.describe()}: axis {node.get('axis', 1)} is outside the "
            f"acceptable range [{-x.rank}, {x.rank - 1}]"
        )
    if axis == x.rank - 1:
        return op.add(node.node.op_type, x, axis=axis)
    rows = [prod(x.shape[:axis]), prod(x.shape[axis:])]
    result = op.add(node.node.op_type, op.reshape(x, rows), axis=1)
    return op.reshape(result, x.shape)


@rule("BatchNormalization")
@chip_rule("BatchNormalization")
def _batch_norm(op: Graph, node: Operation) -> Results:
    """Normalize with the running statistics or, with more than one output, with the batch's,
    towards which the running ones then move."""
    x = node.x
    if x.rank < 3:  # noqa: PLR2004
        raise popart_exception(f"batch norm requires X to have a rank >= 3.  x has rank {x.rank}")
    parts = [node.input(place) for place in range(1, 5)]
    if x.element_type != parts[0].element_type or x.element_type != parts[1].element_type:
        raise popart_exception(
            f"{node.describe()}: scale {type_name(parts[0])} and B {type_name(parts[1])} must "
            f"have the type of X, {type_name(x)}"
        )
    is_spatial = bool(node.get("spatial", 1)) or node.version >= IS_PER_CHANNEL
    expected = x.shape[1:2] if is_spatial else x.shape[1:]
    for name, part in zip(("scale", "B", "mean", "var"), parts, strict=True):
        if part.shape != expected:
            raise popart_exception(
                f"expected shape of {name} ({format_shape(part.shape)}) to be "
                f"{format_shape(expected)} for {node.describe()}"
            )
    features = prod(expected)
    flat = x if is_spatial else op.reshape(x, [x.shape[0], features, 1])
    scale, bias, mean, variance = (op.reshape(part, [features]) for part in parts)
    statistics: list[Tensor] = []
    if len(node.node.output) > 1:
        batch_mean, batch_variance = _statistics(op, flat)
        statistics = _move_statistics(op, node, flat, mean, variance, batch_mean, batch_variance)
        mean, variance = batch_mean, batch_variance
    y = op.reshape(_normalize(op, node, [flat, scale, bias, mean, variance]), x.shape)
    return [y, *(op.reshape(value, expected) for value in statistics[: len(node.node.output) - 1])]


def _normalize(op: Graph, node: Operation, inputs: Sequence[Tensor]) -> Tensor:
    """Normalize; with statistics in float, what is in half is computed in float."""
    epsilon = float(node.get("epsilon", EPSILON))
    x = inputs[0]
    if any(source.element_type != x.element_type for source in inputs):
        inputs = [op.in_float(source) for source in inputs]
    return op.cast(op.BatchNormalization(*inputs, epsilon=epsilon), x.element_type)


def _statistics(op: Graph, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel, in float."""
    x = op.in_float(x)
    axes = [axis for axis in range(x.rank) if axis != 1]
    mean = op.ReduceMean(x, axes=axes, keepdims=1)
    off = x - mean
    variance = op.ReduceMean(off * off, axes=axes, keepdims=0)
    return op.reshape(mean, [x.shape[1]]), variance


def _move_statistics(
    op: Graph,
    node: Operation,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    batch_mean: Tensor,
    batch_variance: Tensor,
) -> list[Tensor]:
    """Return the moved statistics and those of the batch, in the types of the running ones.

    The standard's variance is biased. That of PopART's own operator is not, whatever its attribute
    says: it is (variance + epsilon) n / (n - 1) - epsilon.
    """
    momentum = float(node.get("momentum", 0.9))
    epsilon = np.float32(node.get("epsilon", EPSILON))
    if node.domain:
        count = x.size // x.shape[1] if x.shape[1] else 0
        factor = count / (count - 1) if count > 1 else np.inf
        batch_variance = (batch_variance + epsilon) * factor - epsilon
    moved = []
    for old, new in ((mean, batch_mean), (variance, batch_variance)):
        value = op.in_float(old) * momentum + op.in_float(new) * (1 - momentum)
        moved.append(op.cast(value, old.element_type))
    saved = (op.cast(batch_mean, mean.element_type), op.cast(batch_variance, variance.element_type))
    return [*moved, *saved]


@rule("InstanceNormalization")
def _instance_norm(op: Graph, node: Operation) -> Results:
    x, scale, bias = (node.input(place) for place in range(3))
    if x.rank < 3 or {scale.shape, bias.shape} != {x.shape[1:2]}:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: expected an input with spatial axes, and a scale and a bias "
            f"of its channels, found {format_shape(x.shape)}, {format_shape(scale.shape)} and "
            f"{format_shape(bias.shape)}"
        )
    return keep(op, node)


@rule("LpNormalization")
def _lp_norm(op: Graph, node: Operation) -> Results:
    x, axis, power = node.x, node.axis(-1), int(node.get("p", 2))
    if not 0 <= axis < x.rank or power not in (1, 2):
        raise popart_exception(
            f"{node.describe()}: expected an axis in [{-x.rank}, {x.rank - 1}] and a power of "
            f"1 or 2, found {node.get('axis', -1)} and {power}"
        )
    return keep(op, node)


@chip_rule("GroupNormalization")
def _group_norm(op: Graph, node: Operation) -> Results:
    """The chip's own operator; the statistics are in the type of its input."""
    x, groups = node.x, int(node.get("num_groups"))
    if x.rank < 2 or x.shape[1] % groups:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: num_groups {groups} does not divide the channels of "
            f"{format_shape(x.shape)}"
        )
    order = np.arange(x.shape[1])
    if node.settings.strided_channel_grouping:
        order = order.reshape(-1, groups).T.ravel()
    inputs = [_reorder(op, node.input(place), order) for place in range(3)]
    kind = "GroupNormalization"
    result, *statistics = op.add_all(
        op.name_outputs(kind, map(node.has_output, range(3))),
        kind,
        *inputs,
        domain=CHIP_DOMAIN,
        num_groups=groups,
        epsilon=float(node.get("epsilon", EPSILON)),
    )
    result = _reorder(op, result, np.argsort(order))
    return [result, *(op.cast(value, x.element_type) if value else value for value in statistics)]


def _reorder(op: Graph, tensor: Tensor, order: Array) -> Tensor:
    """Return the tensor with its channels in another order."""
    if (order == np.arange(len(order))).all():
        return tensor
    return op.Gather(tensor, op.ints(order), axis=min(1, tensor.rank - 1))


@rule("LRN")
def _lrn(op: Graph, node: Operation) -> Results:
    size = int(node.get("size", 0))
    if size < 1:
        raise popart_exception(f"LRN requires size to be >= 1. size is {size}")
    x = node.x
    if x.rank < 2:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: expected channels, found an input {format_shape(x.shape)}"
        )
    alpha, beta, bias = (
        float(node.get(name, default))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    if size % 2 and x.rank == 4:  # noqa: PLR2004
        return op.LRN(x, size=size, alpha=alpha, beta=beta, bias=bias)
    return _local_norm(op, node, size, alpha, beta, bias)


def _local_norm(
    op: Graph, node: Operation, size: int, alpha: float, beta: float, bias: float
) -> Tensor:
    """Return x / (bias + alpha / size * squares) ** beta, where squares are summed over `size`
    channels, one more behind than before if that is even: a pooling of the channels. ONNX Runtime
    has this operator for odd sizes and 4 axes only."""
    x = op.in_float(node.x)
    squares = op.reshape(x * x, [x.shape[0], 1, x.shape[1], prod(x.shape[2:])])
    before = (size - 1) // 2
    pads = [before, 0, size - 1 - before, 0]
    mean = op.AveragePool(squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    power = op.Pow(mean * alpha + bias, -beta)
    return op.cast(x * op.reshape(power, x.shape), node.x.element_type)


@chip_rule("NormalizeImage")
def _normalize_image(op: Graph, node: Operation) -> Results:
    """(x * scale - offsets) * scales of the 3 channels, and a channel of zeros."""
    x, offsets, scales = (node.input(place) for place in range(3))
    scaled = op.cast(x, offsets.element_type) * np.float32(node.get("scale", 1.0))
    pads = [0] * (2 * x.rank - 1) + [1]
    return op.Pad((scaled - offsets) * scales, pads=pads, value=0, mode="constant")
