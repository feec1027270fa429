"""Operators of popnn: activations, norms, CTC."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu.operators import nn_ops
from tensorflow_ipu.operators.normalization_ops import normalize_groups
from tensorflow_ipu.operators.placement import on_ipu


class GroupNorm(NamedTuple):
    """Results of a group norm."""

    output: Any
    mean: Any
    inv_std_dev: Any


class Statistics(NamedTuple):
    """Mean and inverse standard deviation of each group of each example."""

    mean: Any
    inv_std_dev: Any


def ipu_gelu(features: Any, name: str | None = None) -> Any:
    """Compute the Gaussian error linear unit with tanh."""
    return nn_ops.gelu(features, name=name)


def ipu_swish(features: Any, name: str | None = None) -> Any:
    """Compute x * sigmoid(x)."""
    return nn_ops.swish(features, name)


def ipu_hard_sigmoid(features: Any, name: str | None = None) -> Any:
    """Compute max(0, min(1, 0.2 x + 0.5))."""
    return nn_ops.hard_sigmoid(features, name)


def ipu_softmax(features: Any, name: str | None = None) -> Any:
    """Compute softmax along the last axis."""
    return nn_ops.softmax(features, name=name)


def ipu_stable_softmax(features: Any, name: str | None = None) -> Any:
    """Compute softmax along the last axis."""
    return nn_ops.softmax(features, stable=True, name=name)


def popnn_group_norm_training(
    inputs: Any,
    gamma: Any,
    beta: Any,
    data_format: str,
    epsilon: float,
    num_groups: int,
    strided_channel_grouping: bool = True,
    name: str | None = None,
) -> GroupNorm:
    """Normalize groups of channels, and return their statistics too."""
    del name
    inputs = tf.convert_to_tensor(inputs)
    return GroupNorm(
        *normalize_groups(
            inputs,
            gamma,
            beta,
            axis=_find_axis(inputs, data_format),
            groups=num_groups,
            epsilon=epsilon,
            is_strided=strided_channel_grouping,
        )
    )


def popnn_group_norm_statistics(
    inputs: Any,
    data_format: str,
    epsilon: float,
    num_groups: int,
    strided_channel_grouping: bool = True,
    name: str | None = None,
) -> Statistics:
    """Return mean and inverse standard deviation of each group of each example."""
    inputs = tf.convert_to_tensor(inputs)
    channels = inputs.shape[_find_axis(inputs, data_format)]
    ones, zeros = tf.ones([channels], inputs.dtype), tf.zeros([channels], inputs.dtype)
    options = (data_format, epsilon, num_groups, strided_channel_grouping, name)
    return Statistics(*popnn_group_norm_training(inputs, ones, zeros, *options)[1:])


@on_ipu
def popnn_group_norm_inference(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    inv_std_dev: Any,
    data_format: str,
    epsilon: float,
    num_groups: int,
    strided_channel_grouping: bool = True,
    name: str | None = None,
) -> Any:
    """Normalize groups of channels with statistics from elsewhere."""
    del epsilon
    inputs = tf.convert_to_tensor(inputs)
    axis = _find_axis(inputs, data_format)
    channels, batch = inputs.shape[axis], inputs.shape[0]
    group = [
        place % num_groups if strided_channel_grouping else place // (channels // num_groups)
        for place in range(channels)
    ]
    rows = [1] * inputs.shape.rank
    rows[axis] = channels
    channel_mean, deviation = (
        tf.reshape(
            tf.gather(tf.reshape(value, [batch, num_groups]), group, axis=1), [batch, *rows[1:]]
        )
        for value in (mean, inv_std_dev)
    )
    scale, offset = (tf.reshape(value, rows) for value in (gamma, beta))
    return tf.add((inputs - channel_mean) * deviation * scale, offset, name=name)


def _find_axis(inputs: Any, data_format: str) -> int:
    return 1 if data_format == "NCHW" else inputs.shape.rank - 1
