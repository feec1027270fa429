"""Expansions of convolutions: transposed ones of groups, and norms of old graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.conversion.expanding import expands


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
