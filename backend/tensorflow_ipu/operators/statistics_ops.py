"""Histograms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu

_FLOATS = (tf.float16, tf.float32)


@on_ipu
def fixed_width_bins(inputs: Any, n_bins: int) -> Any:
    """Return levels at equal distances between the least and the largest value.

    Args:
        inputs: Tensor.
        n_bins: Number of levels.

    Returns:
        The levels, [n_bins].
    """
    inputs = tf.convert_to_tensor(inputs)
    return tf.linspace(tf.reduce_min(inputs), tf.reduce_max(inputs), n_bins)


@on_ipu
def histogram_normalize(hist: Any) -> Any:
    """Divide a histogram by the sum of its counts.

    Args:
        hist: Counts.

    Returns:
        Shares, whose sum is 1.
    """
    return hist / tf.reduce_sum(hist, axis=0)


@on_ipu
def histogram(inputs: Any, levels: Any, absolute_of_input: bool = False) -> Any:
    """Count the values between levels.

    Args:
        inputs: Values, [n] in float16 or float32.
        levels: Sorted levels, [m]. Values below the first one are counted in the first bin, those
            equal to a level in the bin above it.
        absolute_of_input: Count absolute values.

    Returns:
        Counts in float32, [m + 1].

    Raises:
        ValueError: If a type or rank is another.
    """
    inputs, levels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(levels)
    if inputs.dtype not in _FLOATS or levels.dtype not in _FLOATS:
        raise ValueError("Only float16 and float32 types are supported for histogram computation.")
    if len(inputs.shape) != 1 or len(levels.shape) != 1:
        raise ValueError("histogram expects rank-1 tensor inputs.")
    return _count(inputs, levels, absolute_of_input)


@on_ipu
def histogram_update(hist: Any, inputs: Any, levels: Any, absolute_of_input: bool = False) -> Any:
    """Add the counts of values to a histogram.

    Args:
        hist: Counts in float32, [m + 1].
        inputs: Values, [n] in float16 or float32.
        levels: Sorted levels, [m].
        absolute_of_input: Count absolute values.

    Returns:
        Counts in float32, [m + 1].

    Raises:
        ValueError: If a type, rank or size is another.
    """
    hist, inputs, levels = map(tf.convert_to_tensor, (hist, inputs, levels))
    if hist.dtype != tf.float32:
        raise ValueError("hist must be of float32 type")
    if inputs.dtype not in _FLOATS or levels.dtype not in _FLOATS:
        raise ValueError("Only float16 and float32 types are supported for histogram update.")
    if len(hist.shape) != 1 or len(inputs.shape) != 1 or len(levels.shape) != 1:
        raise ValueError("histogram_update expects rank-1 tensor inputs.")
    if hist.shape[0] != levels.shape[0] + 1:
        raise ValueError(
            "hist and levels shapes are incompatible. For n levels, hist must have n+1 elements."
        )
    return hist + _count(inputs, levels, absolute_of_input)


def _count(inputs: Any, levels: Any, is_absolute: bool) -> Any:
    """Return the differences of the numbers of values below each level."""
    values = tf.cast(tf.abs(inputs) if is_absolute else inputs, tf.float32)
    is_below = values[None, :] < tf.cast(levels, tf.float32)[:, None]
    below = tf.reduce_sum(tf.cast(is_below, tf.float32), axis=1)
    total = tf.fill([1], float(inputs.shape[0]))
    return tf.concat([below, total], 0) - tf.concat([[0.0], below], 0)
