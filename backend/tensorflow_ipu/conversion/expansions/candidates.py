"""Expansions of samplers of candidates, which sampled losses draw classes with.

Unique candidates are those of the largest sums of a class's log probability and Gumbel noise: they
have the distribution of draws one after the other that reject what came before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu.conversion.expanding import expands

_STEPS = 60
"""Steps of the bisection for the number of tries."""
_SMALLEST = 1e-20
"""Smallest uniform number, whose logarithm is finite."""


@expands("UniformCandidateSampler", "LogUniformCandidateSampler")
def _sample(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Return the candidates, and the expected counts of the true classes and of the candidates."""
    classes, count = operation.get_attr("range_max"), operation.get_attr("num_sampled")
    is_uniform = operation.type == "UniformCandidateSampler"
    probabilities = _find_probabilities(classes, is_uniform)
    if operation.get_attr("unique"):
        noise = -tf.math.log(-tf.math.log(_draw(operation, classes)))
        _, sampled = tf.math.top_k(noise + np.log(probabilities).astype(np.float32), count)
        expected = -np.expm1(_count_tries(probabilities, count) * np.log1p(-probabilities))
    else:
        drawn = _draw(operation, count)
        values = drawn * classes if is_uniform else tf.exp(drawn * np.log(classes + 1.0)) - 1.0
        sampled = tf.clip_by_value(tf.cast(tf.floor(values), tf.int32), 0, classes - 1)
        expected = probabilities * count
    counts = tf.constant(expected.astype(np.float32))
    true = tf.cast(inputs[0], tf.int32)
    return [tf.cast(sampled, tf.int64), tf.gather(counts, true), tf.gather(counts, sampled)]


def _draw(operation: tf.Operation, count: int) -> tf.Tensor:
    seeds = {name: operation.get_attr(name) for name in ("seed", "seed2")}
    drawn = tf.raw_ops.RandomUniform(shape=[count], dtype=tf.float32, **seeds)
    return tf.maximum(drawn, _SMALLEST)


def _find_probabilities(classes: int, is_uniform: bool) -> Array:
    """Return the probability of each class in one draw."""
    if is_uniform:
        return np.full(classes, 1.0 / classes)
    numbers = np.arange(classes, dtype=np.float64)
    return np.log((numbers + 2) / (numbers + 1)) / np.log(classes + 1.0)


def _count_tries(probabilities: Array, count: int) -> float:
    """Return the number of draws after which that many different classes are expected."""
    if count >= len(probabilities):
        return float("inf")
    low, high = float(count), float(count)
    rejected = np.log1p(-probabilities)
    while -np.expm1(high * rejected).sum() < count:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if -np.expm1(middle * rejected).sum() < count:
            low = middle
        else:
            high = middle
    return high
