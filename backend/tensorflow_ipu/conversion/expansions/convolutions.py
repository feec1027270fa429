"""Expansions of convolutions: transposed ones of groups, and norms of old graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import copy_operation, expands


@expands("BatchNormWithGlobalNormalization")
def _batch_norm(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value, mean, variance, beta, gamma = inputs
    epsilon = tf.cast(operation.get_attr("variance_epsilon"), value.dtype)
    factor = tf.math.rsqrt(variance + epsilon)
    if operation.get_attr("scale_after_normalization"):
        factor *= gamma
    return (value - mean) * factor + beta


@expands("DepthwiseConv2dNativeBackpropInput")
def _depthwise_input(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The transposed convolution whose filter has zeros between the channels."""
    shape, kernel, value = inputs
    height, width, channels, multiplier = kernel.shape
    mask = np.zeros([channels, channels * multiplier], bool)
    for channel in range(channels):
        mask[channel, channel * multiplier : (channel + 1) * multiplier] = True
    spread = tf.reshape(kernel, [height, width, 1, channels * multiplier])
    dense = tf.where(tf.constant(mask), spread, tf.zeros([], kernel.dtype))
    padding = operation.get_attr("padding").decode()
    options: dict[str, Any] = {
        "strides": operation.get_attr("strides"),
        "padding": padding,
        "data_format": operation.get_attr("data_format").decode(),
        "dilations": operation.get_attr("dilations"),
    }
    if padding == "EXPLICIT":
        options["explicit_paddings"] = operation.get_attr("explicit_paddings")
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=shape, filter=dense, out_backprop=value, **options
    )


@expands("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _fused_batch_norm(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Statistics of the batch are computed in float. Without them the operator stays, and its
    further outputs are what it is given."""
    value, scale, offset, mean, variance = inputs
    unused = [tf.zeros([])] * (len(operation.outputs) - _STATISTICS)
    if not operation.get_attr("is_training"):
        copied = copy_operation(operation, inputs, tf.compat.v1.get_default_graph())
        return [copied[0], mean, variance, mean, variance, *unused]
    channels = 1 if operation.get_attr("data_format").startswith(b"NC") else value.shape.rank - 1
    axes = [axis for axis in range(value.shape.rank) if axis != channels]
    wide = tf.cast(value, tf.float32)
    center = tf.reduce_mean(wide, axes, keepdims=True)
    spread = tf.reduce_mean(tf.math.squared_difference(wide, center), axes, keepdims=True)
    factor = tf.math.rsqrt(spread + operation.get_attr("epsilon"))
    factor *= tf.reshape(scale, center.shape)
    result = (wide - center) * factor + tf.reshape(offset, center.shape)
    batch_mean, batch_variance = (tf.reshape(x, [-1]) for x in (center, spread))
    count = value.shape.num_elements() // batch_mean.shape[0]
    moved = [batch_mean, batch_variance * (count / max(count - 1, 1))]
    part = operation.get_attr("exponential_avg_factor") if unused else 1.0
    if part != 1.0:
        old = (mean, variance)
        moved = [x * (1.0 - part) + y * part for x, y in zip(old, moved, strict=True)]
    return [tf.cast(result, value.dtype), *moved, batch_mean, batch_variance, *unused]


_STATISTICS = 5
"""Number of outputs of a batch norm without those for gradients."""


@expands("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def _transposed(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """A transposed convolution whose result is larger than what the filter reaches has zeros at
    its end: ONNX has no such padding."""
    kernel, value = inputs[1:]
    size = operation.outputs[0].shape
    letters = operation.get_attr("data_format").decode()
    padding = operation.get_attr("padding").decode()
    if not size.is_fully_defined() or padding == "EXPLICIT":
        return NotImplemented
    full, cuts, pads = list(size), [0] * len(letters), [[0, 0] for _ in letters]
    for place, letter in enumerate(letter for letter in letters if letter not in "NC"):
        axis = letters.index(letter)
        stride, dilation = (operation.get_attr(name)[axis] for name in ("strides", "dilations"))
        reach = (kernel.shape[place] - 1) * dilation + 1
        full[axis] = (value.shape[axis] - 1) * stride + reach
        if padding == "SAME":
            steps = -(-size[axis] // stride) - 1
            cuts[axis] = max(steps * stride + reach - size[axis], 0) // 2
        pads[axis][1] = max(size[axis] + cuts[axis] - full[axis], 0)
    if not any(last for _, last in pads):
        return NotImplemented
    result = getattr(tf.raw_ops, operation.type)(
        input_sizes=full,
        filter=kernel,
        out_backprop=value,
        strides=operation.get_attr("strides"),
        dilations=operation.get_attr("dilations"),
        padding="VALID",
        data_format=letters,
    )
    return tf.slice(tf.pad(result, pads), cuts, list(size))


@expands("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
def _filter_gradient(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The convolution of the input with the gradient, channels and batch exchanged: where the
    forward one steps, the gradient's elements stand apart."""
    value, sizes, gradient = inputs
    shape = static_value(sizes)
    letters = operation.get_attr("data_format").decode()
    padding = operation.get_attr("padding").decode()
    if shape is None or not letters.endswith("C") or padding == "EXPLICIT":
        return NotImplemented
    rank = len(letters)
    strides, dilations = (operation.get_attr(name) for name in ("strides", "dilations"))
    pads = [[0, 0] for _ in letters]
    for axis in range(1, rank - 1):
        reach = (int(shape[axis - 1]) - 1) * dilations[axis] + 1
        spread = (gradient.shape[axis] - 1) * strides[axis] + reach
        missing = max(spread - value.shape[axis], 0) if padding == "SAME" else 0
        pads[axis] = [missing // 2, missing - missing // 2]
    exchanged = [rank - 1, *range(1, rank - 1), 0]
    images = tf.transpose(tf.pad(value, pads), exchanged)
    kernel = tf.transpose(gradient, [*range(1, rank - 1), 0, rank - 1])
    convolve = tf.nn.conv2d if operation.type.startswith("Conv2D") else tf.nn.conv3d
    result = convolve(images, kernel, strides=dilations, padding="VALID", dilations=strides)
    result = tf.transpose(result, [*range(1, rank - 1), 0, rank - 1])
    return tf.slice(result, [0] * rank, [int(size) for size in shape])
