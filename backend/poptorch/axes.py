"""Operators along an axis that torch's exporter cannot express in ONNX, by others that it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def cummax(x: Any, dim: int) -> Any:
    """Return running maxima and their places; of equal elements the last one's.

    Args:
        x: A tensor.
        dim: Its axis.
    """
    return _scan_extremes(x, dim, torch.ge)


def cummin(x: Any, dim: int) -> Any:
    """Return running minima and their places; of equal elements the last one's.

    Args:
        x: A tensor.
        dim: Its axis.
    """
    return _scan_extremes(x, dim, torch.le)


def _scan_extremes(x: Any, dim: int, wins: Callable[..., Any]) -> Any:
    """Compare in rounds: after round k each element is the best of the 2^k up to it."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    reach, length = 1, x.shape[dim]
    shape = [length if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = torch.arange(length).reshape(shape).expand(x.shape)
    while reach < length:
        old, new = _shift(x, dim, reach)
        is_new = wins(new, old)
        if x.dtype.is_floating_point:
            is_new = is_new | torch.isnan(new)
        pairs = ((x, old, new), (places, *_shift(places, dim, reach)))
        x, places = (
            torch.cat([whole.narrow(dim, 0, reach), torch.where(is_new, second, first)], dim)
            for whole, first, second in pairs
        )
        reach *= 2
    return x, places


def _shift(x: Any, dim: int, reach: int) -> tuple[Any, Any]:
    length = x.shape[dim] - reach
    return x.narrow(dim, 0, length), x.narrow(dim, reach, length)


def split_with_sizes(x: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    """Return the parts of a tensor: torch's exporter makes a sequence of them.

    Args:
        x: A tensor.
        split_sizes: Length of each part.
        dim: Axis that is split.
    """
    parts, start = [], 0
    for size in split_sizes:
        parts.append(x.narrow(dim, start, size))
        start += size
    return tuple(parts)


def split(x: Any, split_size: int, dim: int = 0) -> Any:
    """Return parts of one size; the last one has the rest.

    Args:
        x: A tensor.
        split_size: Length of the parts.
        dim: Axis that is split.
    """
    length = x.shape[dim]
    sizes = [min(split_size, length - start) for start in range(0, length, split_size)]
    return split_with_sizes(x, sizes, dim)


def mean(x: Any, *, dtype: Any = None) -> Any:
    """Return the mean in a type, which torch's exporter leaves out.

    Args:
        x: A tensor.
        dtype: The type, or None for that of the tensor.
    """
    return NotImplemented if dtype in (None, x.dtype) else torch.mean(x.to(dtype))


def mean_dim(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean along axes in a type, which torch's exporter leaves out.

    Args:
        x: A tensor.
        dim: Its axes.
        keepdim: Whether the axes stay.
        dtype: The type, or None for that of the tensor.
    """
    if dtype in (None, x.dtype):
        return NotImplemented
    return torch.mean(x.to(dtype), dim, keepdim)


def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    """Return a number of parts, or fewer if their length does not divide the axis.

    Args:
        x: A tensor.
        chunks: Number of parts.
        dim: Axis that is split.
    """
    return split(x, max(-(-x.shape[dim] // chunks), 1), dim)


def index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Reduce slices of a source into the slices of a tensor that an index names.

    Args:
        x: A tensor.
        dim: Axis of the slices.
        index: Place of each slice of the source.
        source: The source.
        reduce: "prod", "mean", "amax" or "amin".
        include_self: Whether the tensor's own elements take part.
    """
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def unbind(x: Any, dim: int = 0) -> Any:
    """Return the slices of a tensor along an axis: torch's exporter makes a sequence of them.

    Args:
        x: A tensor.
        dim: The axis.
    """
    return tuple(x.select(dim, place) for place in range(x.shape[dim]))
