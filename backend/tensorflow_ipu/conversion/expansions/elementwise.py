"""Expansions of elementwise operators, and of those that only check or forward values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import expands
from tensorflow_ipu.markers import chip_operator


def _chip(name: str, *inputs: Any) -> Any:
    """Add an operator of PopART with one output like the first input."""
    return chip_operator(name, inputs, [(inputs[0].dtype, inputs[0].shape)])[0]


@expands("Log1p", "Expm1")
def _chip_function(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """PopART's operators keep the digits of small values."""
    return _chip(operation.type, inputs[0])


@expands("Atan2")
def _atan2(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shape = operation.outputs[0].shape
    y, x = (tf.broadcast_to(value, shape) for value in inputs)
    return _chip("Atan2", y, x)


@expands("Erfc")
def _erfc(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return 1.0 - tf.math.erf(inputs[0])


@expands("Xdivy", "Xlogy", "Xlog1py", "MulNoNan")
def _zero_rules(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """A factor of zero gives zero, whatever the other operand is."""
    x, y = inputs
    if operation.type == "MulNoNan":
        return _unless_zero(y, x * y)
    if operation.type == "Xdivy":
        return _unless_zero(x, x / y)
    logarithm = tf.math.log(y) if operation.type == "Xlogy" else _chip("Log1p", y)
    return _unless_zero(x, x * logarithm)


def _unless_zero(factor: Any, value: Any) -> Any:
    return tf.where(tf.equal(factor, 0), tf.zeros([], value.dtype), value)


@expands("DivNoNan")
def _div_no_nan(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    x, y = inputs
    is_zero = tf.equal(y, 0)
    safe = tf.where(is_zero, tf.ones([], y.dtype), y)
    return tf.where(is_zero, tf.zeros([], x.dtype), x / safe)


@expands("TruncateMod", "Mod")
def _truncate_mod(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The remainder with the sign of the dividend."""
    shape = operation.outputs[0].shape
    x, y = (tf.broadcast_to(value, shape) for value in inputs)
    return _chip("Fmod", x, y)


@expands("Inv")
def _inverse(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.math.reciprocal(inputs[0])


@expands("ApproximateEqual")
def _approximate_equal(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.abs(inputs[0] - inputs[1]) < operation.get_attr("tolerance")


@expands("AccumulateNV2")
def _accumulate(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.add_n(inputs)


@expands("ToBool")
def _to_bool(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.not_equal(inputs[0], 0)


@expands(
    "CheckNumerics",
    "CheckNumericsV2",
    "GuaranteeConst",
    "PreventGradient",
    "Snapshot",
    "StopGradient",
    "XlaClusterOutput",
    "XlaSharding",
    "OptimizationBarrier",
)
def _forward(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """XLA computes nothing here either: it does not check numerics."""
    return tf.identity(inputs[0])


@expands("XlaOptimizationBarrier", "IdentityN", "ShapeOfAll")
def _forward_all(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return [tf.identity(value) for value in inputs]


@expands("Bucketize")
def _bucketize(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Count the boundaries that a value reaches."""
    boundaries = tf.constant(operation.get_attr("boundaries"), tf.float32)
    reached = tf.expand_dims(tf.cast(inputs[0], tf.float32), -1) >= boundaries
    return tf.reduce_sum(tf.cast(reached, tf.int32), axis=-1)


@expands("Cross")
def _cross(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    (a1, a2, a3), (b1, b2, b3) = (tf.unstack(value, axis=-1) for value in inputs)
    return tf.stack([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], axis=-1)


@expands("InTopK", "InTopKV2")
def _in_top_k(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Fewer than k classes are above the target's, which is finite."""
    predictions, targets = inputs[:2]
    count = operation.get_attr("k") if operation.type == "InTopK" else inputs[2]
    classes = predictions.shape[1]
    hit = tf.one_hot(tf.cast(targets, tf.int32), classes, on_value=True, off_value=False)
    chosen = tf.reduce_sum(
        tf.where(hit, predictions, tf.zeros([], predictions.dtype)), axis=1, keepdims=True
    )
    above = tf.reduce_sum(tf.cast(predictions > chosen, tf.int32), axis=1)
    is_finite = tf.squeeze(tf.math.is_finite(chosen), axis=1)
    is_class = tf.logical_and(targets >= 0, targets < classes)
    return tf.reduce_all(tf.stack([above < tf.cast(count, tf.int32), is_finite, is_class]), axis=0)


@expands("ClipByValue")
def _clip(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.maximum(tf.minimum(inputs[0], inputs[2]), inputs[1])


@expands("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The loss and its gradient."""
    logits, labels = inputs
    logarithms = tf.nn.log_softmax(logits)
    return [-tf.reduce_sum(labels * logarithms, axis=1), tf.exp(logarithms) - labels]


@expands("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The loss and its gradient."""
    logits, numbers = inputs
    labels = tf.one_hot(tf.cast(numbers, tf.int32), logits.shape[-1], dtype=logits.dtype)
    logarithms = tf.nn.log_softmax(logits)
    return [-tf.reduce_sum(labels * logarithms, axis=1), tf.exp(logarithms) - labels]


@expands("Roll")
def _roll(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value, shifts, axes = inputs
    shifts, axes = (static_value(tensor) for tensor in (shifts, axes))
    if shifts is None or axes is None or not value.shape.is_fully_defined():
        return NotImplemented
    for shift, axis in zip(shifts.reshape(-1).tolist(), axes.reshape(-1).tolist(), strict=True):
        size = value.shape[axis]
        cut = size - shift % size if size else 0
        head, tail = tf.split(value, [cut, size - cut], axis=axis)
        value = tf.concat([tail, head], axis=axis)
    return value


@expands("IsInf")
def _is_inf(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.equal(tf.abs(inputs[0]), tf.constant(np.inf, inputs[0].dtype))


@expands("FloorMod")
def _floor_mod(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The remainder with the sign of the divisor."""
    if inputs[0].dtype.is_floating:
        return NotImplemented
    outputs = [(inputs[0].dtype, operation.outputs[0].shape)]
    return chip_operator("Mod", inputs, outputs, {"fmod": 0}, "")[0]


@expands("FloorDiv")
def _floor_div(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """ONNX divides whole numbers towards zero: without the remainder both are the same."""
    x, y = inputs
    if x.dtype.is_floating:
        return NotImplemented
    return tf.truncatediv(x - tf.math.floormod(x, y), y)


_UNSIGNED = {tf.int8: tf.uint8, tf.int16: tf.uint16, tf.int32: tf.uint32, tf.int64: tf.uint32}


@expands("LeftShift", "RightShift")
def _shift(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Shift the bits without their sign; to the right, those of a negative number inverted."""
    shape = operation.outputs[0].shape
    x, amount = (tf.broadcast_to(value, shape) for value in inputs)
    kind = x.dtype
    unsigned = _UNSIGNED.get(kind, kind)
    count = tf.cast(amount, unsigned)
    if operation.type == "LeftShift" or unsigned == kind:
        direction = operation.type.removesuffix("Shift").upper()
        return tf.cast(_shift_bits(tf.cast(x, unsigned), count, direction), kind)
    is_negative = x < 0
    bits = tf.where(is_negative, tf.bitwise.invert(x), x)
    moved = tf.cast(_shift_bits(tf.cast(bits, unsigned), count, "RIGHT"), kind)
    return tf.where(is_negative, tf.bitwise.invert(moved), moved)


def _shift_bits(bits: Any, count: Any, direction: str) -> Any:
    outputs = [(bits.dtype, bits.shape)]
    return chip_operator("BitShift", [bits, count], outputs, {"direction": direction}, "")[0]


@expands("BiasAdd")
def _bias_add(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value, bias = inputs
    if operation.get_attr("data_format") != b"NCHW":
        return NotImplemented
    return value + tf.reshape(bias, [-1, *[1] * (value.shape.rank - 2)])


@expands("OneHot")
def _one_hot(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Compare with the numbers of the classes: indices out of range hit none."""
    indices, depth, on_value, off_value = inputs
    count = static_value(depth)
    if count is None or indices.shape.rank is None:
        return NotImplemented
    axis = operation.get_attr("axis")
    axis = indices.shape.rank if axis == -1 else axis
    classes = [1] * (indices.shape.rank + 1)
    classes[axis] = int(count)
    numbers = tf.constant(np.arange(int(count)).reshape(classes), indices.dtype)
    return tf.where(tf.equal(tf.expand_dims(indices, axis), numbers), on_value, off_value)


@expands("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul")
def _integer_product(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Products of whole numbers are summed as such: float would round them."""
    left, right = inputs
    if left.dtype not in (tf.int32, tf.int64):
        return NotImplemented
    names = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    flags = [operation.get_attr(name) for name in names]
    left = tf.linalg.matrix_transpose(left) if flags[0] else left
    right = tf.linalg.matrix_transpose(right) if flags[1] else right
    return tf.reduce_sum(left[..., :, :, None] * right[..., None, :, :], axis=-2)


@expands("Log")
def _log(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """tf2onnx casts all but float to float, and half not at all."""
    value = inputs[0]
    if value.dtype != tf.float16:
        return NotImplemented
    return chip_operator("Log", [value], [(value.dtype, value.shape)], {}, "")[0]
