"""Convolutions and poolings of one or more spatial axes, place by place, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from popart_methods.cases import Array

_ALL = (slice(None), slice(None))
"""Batch and channels."""


def _index(*parts: Any) -> tuple[Any, ...]:
    """Return an index: Python 3.10 has no stars in brackets."""
    return parts


def convolve(
    x: Array,
    weights: Array,
    bias: Array | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """Return a convolution."""
    axes = x.ndim - 2
    widths = [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)]
    padded = np.pad(x.astype(np.float64), widths)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, weights.shape[2:], strict=True)]
    sizes = [
        (size - span) // stride + 1
        for size, span, stride in zip(padded.shape[2:], spans, strides, strict=True)
    ]
    share = weights.shape[0] // (x.shape[1] // weights.shape[1])
    made = np.zeros((x.shape[0], weights.shape[0], *sizes))
    for place in np.ndindex(*sizes):
        window = (
            slice(i * s, i * s + span, d)
            for i, s, span, d in zip(place, strides, spans, dilations, strict=True)
        )
        part = padded[_index(*_ALL, *window)]
        for channel in range(weights.shape[0]):
            first = channel // share * weights.shape[1]
            seen = part[:, first : first + weights.shape[1]] * weights[channel]
            made[_index(slice(None), channel, *place)] = seen.reshape(len(x), -1).sum(1)
    return made if bias is None else made + bias.reshape(-1, *[1] * axes)


def spread(x: Array, weights: Array, strides: Sequence[int]) -> Array:
    """Return all places that a transposed convolution of one group reaches."""
    sizes = [
        s * (n - 1) + k for s, n, k in zip(strides, x.shape[2:], weights.shape[2:], strict=True)
    ]
    made = np.zeros((x.shape[0], weights.shape[1], *sizes))
    for place in np.ndindex(*x.shape[2:]):
        window = (
            slice(i * s, i * s + k)
            for i, s, k in zip(place, strides, weights.shape[2:], strict=True)
        )
        part = np.einsum("nc,co...->no...", x[_index(*_ALL, *place)], weights)
        made[_index(*_ALL, *window)] += part
    return made


def crop(made: Array, begins: Sequence[int], ends: Sequence[int]) -> Array:
    """Return what pads leave; negative ones add zeros."""
    grown = [(max(-b, 0), max(-e, 0)) for b, e in zip(begins, ends, strict=True)]
    made = np.pad(made, [(0, 0), (0, 0), *grown])
    cut = (
        slice(max(b, 0), size - max(e, 0))
        for b, e, size in zip(begins, ends, made.shape[2:], strict=True)
    )
    found: Array = made[_index(*_ALL, *cut)]
    return found


def pool(x: Array, kind: str, kernel: int, stride: int, pads: Sequence[int], ceil: int) -> Array:
    """Return a pooling of one spatial axis: a window at each stride, and with `ceil` at each for
    which a place is left. A window sees elements of the input only."""
    x = x[..., max(0, -pads[0]) : x.shape[2] - max(0, -pads[1])].astype(np.float64)
    before, behind = (max(0, pad) for pad in pads)
    room = x.shape[2] + before + behind - kernel
    count = (-(-room // stride) if ceil else room // stride) + 1
    made = np.empty((*x.shape[:2], count))
    for place in range(count):
        start = place * stride - before
        window = x[..., max(0, start) : max(0, start + kernel)]
        empty = -np.inf if kind == "max" else 0.0
        if kind == "lp":
            made[..., place] = np.sqrt((window**2).sum(-1))
        elif not window.shape[2]:
            made[..., place] = empty
        else:
            made[..., place] = window.max(-1) if kind == "max" else window.mean(-1)
    return made


def local_norm(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """Return LRN: the rest of an even window is behind."""
    x = x.astype(np.float64)
    scale = np.empty_like(x)
    for channel in range(x.shape[1]):
        start = max(0, channel - (size - 1) // 2)
        window = x[:, start : channel + size // 2 + 1]
        scale[:, channel] = bias + alpha / size * (window**2).sum(1)
    return np.asarray(x / scale**beta)
