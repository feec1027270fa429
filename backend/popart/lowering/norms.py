"""Rules of norms and of Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Array, Tensor
from popart.lowering.operation import Operation, chip_rule, rule, type_name


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(operation: Operation) -> Sequence[Tensor]:
    """Before opset 13 the axes from `axis` on are one."""
    x, axis = operation.x, operation.axis(1)
    if not 0 <= axis < x.rank:
        raise popart_exception(
            f"{operation.describe()}: axis {operation.attribute('axis', 1)} is outside the "
            f"acceptable range [{-x.rank}, {x.rank - 1}]"
        )
    if axis == x.rank - 1:
        return [operation.add(operation.node.op_type, x, axis=axis)]
    rows = [prod(x.shape[:axis]), prod(x.shape[axis:])]
    made = operation.add(operation.node.op_type, operation.reshape(x, rows), axis=1)
    return [operation.reshape(made, x.shape)]


@rule("BatchNormalization")
@chip_rule("BatchNormalization")
def _batch_norm(operation: Operation) -> Sequence[Tensor | None]:
    """Normalize with the running statistics or, with more than one output, with the batch's,
    towards which the running ones then move."""
    x = operation.x
    if x.rank < 3:  # noqa: PLR2004
        raise popart_exception(f"batch norm requires X to have a rank >= 3.  x has rank {x.rank}")
    parts = [operation.input(place) for place in range(1, 5)]
    if x.type != parts[0].type or x.type != parts[1].type:
        raise popart_exception(
            f"{operation.describe()}: scale {type_name(parts[0])} and B {type_name(parts[1])} must "
            f"have the type of X, {type_name(x)}"
        )
    is_spatial = bool(operation.attribute("spatial", 1)) or operation.version > 8  # noqa: PLR2004
    wanted = x.shape[1:2] if is_spatial else x.shape[1:]
    for name, part in zip(("scale", "B", "mean", "var"), parts, strict=True):
        if part.shape != wanted:
            raise popart_exception(
                f"expected shape of {name} ({format_shape(part.shape)}) to be "
                f"{format_shape(wanted)} for {operation.describe()}"
            )
    features = prod(wanted)
    flat = x if is_spatial else operation.reshape(x, [x.shape[0], features, 1])
    scale, bias, mean, variance = (operation.reshape(part, [features]) for part in parts)
    made: list[Tensor | None] = []
    if len(operation.node.output) > 1:
        batch_mean, batch_variance = _statistics(operation, flat)
        made = _move_statistics(operation, flat, mean, variance, batch_mean, batch_variance)
        mean, variance = batch_mean, batch_variance
    y = _normalize(operation, [flat, scale, bias, mean, variance])
    found = [y, *made][: len(operation.node.output)]
    shapes = [x.shape, *[wanted] * (len(found) - 1)]
    return [
        None if each is None else operation.reshape(each, shape)
        for each, shape in zip(found, shapes, strict=True)
    ]


def _normalize(operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
    """Normalize; with statistics in float, what is in half is computed in float."""
    epsilon = float(operation.attribute("epsilon", 1e-5))
    x = inputs[0]
    if any(source.type != x.type for source in inputs):
        inputs = [operation.in_float(source) for source in inputs]
    return operation.cast(operation.add("BatchNormalization", *inputs, epsilon=epsilon), x.type)


def _statistics(operation: Operation, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel, in float."""
    x = operation.in_float(x)
    axes = operation.numbers(np.asarray([axis for axis in range(x.rank) if axis != 1]))
    mean = operation.add("ReduceMean", x, axes, keepdims=1)
    off = operation.add("Sub", x, mean)
    variance = operation.add("ReduceMean", operation.add("Mul", off, off), axes, keepdims=0)
    return operation.reshape(mean, [x.shape[1]]), variance


def _move_statistics(
    operation: Operation,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    batch_mean: Tensor,
    batch_variance: Tensor,
) -> list[Tensor | None]:
    """Return the moved statistics and those of the batch, in the types of the running ones.

    The standard's variance is biased. That of PopART's own operator is not, whatever its attribute
    says: it is (variance + epsilon) n / (n - 1) - epsilon.
    """
    kept = float(operation.attribute("momentum", 0.9))
    epsilon = operation.constant(np.float32(operation.attribute("epsilon", 1e-5)))
    if operation.domain:
        count = x.size // x.shape[1] if x.shape[1] else 0
        factor = operation.constant(np.float32(count / (count - 1) if count > 1 else np.inf))
        grown = operation.add("Mul", operation.add("Add", batch_variance, epsilon), factor)
        batch_variance = operation.add("Sub", grown, epsilon)
    moved: list[Tensor | None] = []
    for old, new in ((mean, batch_mean), (variance, batch_variance)):
        terms = (
            operation.add("Mul", operation.in_float(each), operation.constant(np.float32(share)))
            for each, share in ((old, kept), (new, 1 - kept))
        )
        moved.append(operation.cast(operation.add("Add", *terms), old.type))
    saved = (operation.cast(batch_mean, mean.type), operation.cast(batch_variance, variance.type))
    return [*moved, *saved]


@rule("InstanceNormalization")
def _instance_norm(operation: Operation) -> Sequence[Tensor]:
    epsilon = float(operation.attribute("epsilon", 1e-5))
    x, scale, bias = (operation.input(place) for place in range(3))
    wanted = x.shape[1:2]
    if x.rank < 3 or {scale.shape, bias.shape} != {wanted}:  # noqa: PLR2004
        raise popart_exception(
            f"{operation.describe()}: expected an input with spatial axes, and a scale and a bias "
            f"of its channels, found {format_shape(x.shape)}, {format_shape(scale.shape)} and "
            f"{format_shape(bias.shape)}"
        )
    return [operation.add("InstanceNormalization", x, scale, bias, epsilon=epsilon)]


@rule("LpNormalization")
def _lp_norm(operation: Operation) -> Sequence[Tensor]:
    x, axis, power = operation.x, operation.axis(-1), int(operation.attribute("p", 2))
    if not 0 <= axis < x.rank or power not in (1, 2):
        raise popart_exception(
            f"{operation.describe()}: expected an axis in [{-x.rank}, {x.rank - 1}] and a power of "
            f"1 or 2, found {operation.attribute('axis', -1)} and {power}"
        )
    return [operation.add("LpNormalization", x, axis=axis, p=power)]


@chip_rule("GroupNormalization")
def _group_norm(operation: Operation) -> Sequence[Tensor]:
    """The chip's own operator; the statistics are in the type of its input."""
    x, groups = operation.x, int(operation.attribute("num_groups"))
    if x.rank < 2 or x.shape[1] % groups:  # noqa: PLR2004
        raise popart_exception(
            f"{operation.describe()}: num_groups {groups} does not divide the channels of "
            f"{format_shape(x.shape)}"
        )
    order = np.arange(x.shape[1])
    if operation.settings.strided_channel_grouping:
        order = order.reshape(-1, groups).T.ravel()
    inputs = [_reorder(operation, operation.input(place), order) for place in range(3)]
    wanted = [operation.has_output(place) for place in range(3)]
    epsilon = float(operation.attribute("epsilon", 1e-5))
    made = operation.add_all(
        "GroupNormalization",
        *inputs,
        outputs=wanted,
        domain="ai.graphcore",
        num_groups=groups,
        epsilon=epsilon,
    )
    statistics = [operation.cast(each, x.type) if each.name else each for each in made[1:]]
    return [_reorder(operation, made[0], np.argsort(order)), *statistics]


def _reorder(operation: Operation, tensor: Tensor, order: Array) -> Tensor:
    """Return the tensor with its channels in another order."""
    if (order == np.arange(len(order))).all():
        return tensor
    return operation.add("Gather", tensor, operation.numbers(order), axis=min(1, tensor.rank - 1))


@rule("LRN")
def _lrn(operation: Operation) -> Sequence[Tensor]:
    size = int(operation.attribute("size", 0))
    if size < 1:
        raise popart_exception(f"LRN requires size to be >= 1. size is {size}")
    x = operation.x
    if x.rank < 2:  # noqa: PLR2004
        raise popart_exception(
            f"{operation.describe()}: expected channels, found an input {format_shape(x.shape)}"
        )
    alpha, beta, bias = (
        float(operation.attribute(name, default))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    if size % 2 and x.rank == 4:  # noqa: PLR2004
        return [operation.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=bias)]
    return [_local_norm(operation, size, alpha, beta, bias)]


def _local_norm(operation: Operation, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Return x / (bias + alpha / size * squares) ** beta, where squares are summed over `size`
    channels, one more behind than before if that is even: a pooling of the channels. ONNX Runtime
    has this operator for odd sizes and 4 axes only."""
    x = operation.in_float(operation.x)
    rows = [x.shape[0], 1, x.shape[1], prod(x.shape[2:])]
    squares = operation.reshape(operation.add("Mul", x, x), rows)
    before = (size - 1) // 2
    mean = operation.add(
        "AveragePool",
        squares,
        kernel_shape=[size, 1],
        pads=[before, 0, size - 1 - before, 0],
        count_include_pad=1,
    )
    scaled = operation.add("Mul", mean, operation.constant(np.float32(alpha)))
    scale = operation.add("Add", scaled, operation.constant(np.float32(bias)))
    power = operation.add("Pow", scale, operation.constant(np.float32(-beta)))
    made = operation.add("Mul", x, operation.reshape(power, x.shape))
    return operation.cast(made, operation.x.type)


@chip_rule("NormalizeImage")
def _normalize_image(operation: Operation) -> Sequence[Tensor]:
    """(x * scale - offsets) * scales of the 3 channels, and a channel of zeros."""
    x, offsets, scales = (operation.input(place) for place in range(3))
    factor = operation.like(np.float32(operation.attribute("scale", 1.0)), offsets)
    scaled = operation.add("Mul", operation.cast(x, offsets.type), factor)
    made = operation.add("Mul", operation.add("Sub", scaled, offsets), scales)
    pads = operation.numbers(np.asarray([0] * (2 * x.rank - 1) + [1], np.int64))
    return [operation.add("Pad", made, pads, operation.like(0, made), mode="constant")]
