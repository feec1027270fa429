"""Operators along an axis that torch's exporter cannot express in ONNX, by others that it can."""

from __future__ import annotations

from collections.abc import Callable
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
            torch.cat([scanned.narrow(dim, 0, reach), torch.where(is_new, second, first)], dim)
            for scanned, first, second in pairs
        )
        reach *= 2
    return x, places


def _shift(x: Any, dim: int, reach: int) -> tuple[Any, Any]:
    length = x.shape[dim] - reach
    return x.narrow(dim, 0, length), x.narrow(dim, reach, length)


def unbind(x: Any, dim: int = 0) -> Any:
    """Return the slices of a tensor along an axis: torch's exporter makes a sequence of them.

    Args:
        x: A tensor.
        dim: The axis.
    """
    return tuple(x.select(dim, place) for place in range(x.shape[dim]))
