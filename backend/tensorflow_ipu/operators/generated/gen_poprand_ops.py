"""Operators of poprand: dropout with its seed."""

from __future__ import annotations

from typing import Any, NamedTuple

from tensorflow_ipu.operators.rand_ops import drop


class Dropout(NamedTuple):
    """Results of a dropout."""

    output: Any
    seed: Any
    reference: Any = None


def ipu_dropout(
    input: Any, rate: float, scale: float, noise_shape: Any = None, name: str | None = None
) -> Dropout:
    """Keep elements with the probability `rate`, and scale them."""
    return Dropout(
        *drop(input, keep=rate, scale=scale, noise_shape=noise_shape or None, name=name), None
    )


def ipu_dropout_no_ref(
    input: Any, rate: float, scale: float, noise_shape: Any = None, name: str | None = None
) -> Dropout:
    """Keep elements with the probability `rate`, and scale them."""
    return ipu_dropout(input, rate, scale, noise_shape, name)


def ipu_dropout_with_seed(
    input: Any,
    seed: Any,
    rate: float,
    scale: float,
    noise_shape: Any = None,
    name: str | None = None,
) -> Dropout:
    """Keep elements with the probability `rate`, and scale them; a seed keeps the same ones."""
    return Dropout(
        *drop(input, seed, keep=rate, scale=scale, noise_shape=noise_shape or None, name=name), None
    )


def ipu_dropout_with_seed_no_ref(
    input: Any,
    seed: Any,
    rate: float,
    scale: float,
    noise_shape: Any = None,
    name: str | None = None,
) -> Dropout:
    """Keep elements with the probability `rate`, and scale them; a seed keeps the same ones."""
    return ipu_dropout_with_seed(input, seed, rate, scale, noise_shape, name)
