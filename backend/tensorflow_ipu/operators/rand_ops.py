"""Dropout with the chip's own random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu

_SEED_SIZE = 2
_MAX_INT32 = 2**31 - 1


def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    seed: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Set elements to zero at random, and scale the others so that the mean stays.

    Args:
        x: Tensor in float16 or float32.
        rate: Probability that an element is dropped, below 1.
        noise_shape: Shape of the random decisions, with 1 where an axis shares them.
        seed: Two numbers in int32; the same seed drops the same elements.
        name: Name of the operation.
        **kwargs: `ref`, which concerns gradients only.

    Returns:
        A tensor of the type and shape of `x`.

    Raises:
        ValueError: If the rate, the noise shape or the seed's shape is wrong.
    """
    del kwargs
    if rate >= 1.0 or rate < 0.0:
        raise ValueError(f"The rate must be in the range [0, 1), but was {rate}")
    if noise_shape:
        _check_noise(x.shape.as_list(), noise_shape)
    if seed is not None:
        seed = tf.convert_to_tensor(seed)
        if seed.shape != [_SEED_SIZE]:
            raise ValueError(f"Expected the seed to have a shape [2], but got {seed.shape!s}.")
    keep = 1 - rate
    return drop(x, seed, keep=keep, scale=1 / keep, noise_shape=noise_shape, name=name)[0]


def _check_noise(shape: Sequence[int], noise_shape: Sequence[int]) -> None:
    if len(shape) != len(noise_shape):
        raise ValueError("The length of noise_shape must equal the rank of x.")
    for size, noise_size in zip(shape, noise_shape, strict=True):
        if noise_size not in (1, size):
            raise ValueError(f"Dimension mismatch, {size} != {noise_size}.")


@on_ipu
def drop(
    x: Any,
    seed: Any = None,
    *,
    keep: float,
    scale: float,
    noise_shape: Sequence[int] | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Keep elements with a probability, and scale them.

    Args:
        x: Tensor.
        seed: Two numbers in int32; None draws them.
        keep: Probability that an element is kept.
        scale: Factor of the kept elements.
        noise_shape: Shape of the random decisions; None means that of `x`.
        name: Name of the operation.

    Returns:
        The result, and the seed that was used.
    """
    x = tf.convert_to_tensor(x)
    if seed is None:
        seed = tf.random.uniform([_SEED_SIZE], maxval=_MAX_INT32, dtype=tf.int32)
    seed = tf.convert_to_tensor(seed, dtype=tf.int32)
    numbers = tf.random.stateless_uniform(noise_shape or x.shape, seed)
    kept = tf.cast(numbers < keep, x.dtype)
    return tf.multiply(x * tf.cast(scale, x.dtype), kept, name=name), seed
