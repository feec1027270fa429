"""Reductions of tensors that ONNX's operators do not take: empty ones, truth values, no axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

aten = torch.ops.aten


def _axes(x: Any, dim: Any) -> list[int]:
    """Return the axes that an argument names: all of them for None and for none."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(x.dim()))
    axes = dim if isinstance(dim, (tuple, list)) else [dim]
    return [axis % max(x.dim(), 1) for axis in axes]


def _fill(x: Any, dim: Any, keepdim: bool, value: float, dtype: Any) -> Any:
    """Return a constant in the shape of a reduction's result."""
    axes = _axes(x, dim)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not keepdim:
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return torch.full(shape, value, dtype=dtype)


def _extreme(operator: Any) -> Callable[..., Any]:
    def reduce(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
        if dim and x.dtype is not torch.bool:
            return NotImplemented
        if not x.dim():
            return x.clone()
        numbers = x.to(torch.uint8) if x.dtype is torch.bool else x
        return operator(numbers, _axes(x, dim), keepdim).to(x.dtype)

    return reduce


def _extreme_of_truth(operator: Any) -> Callable[..., Any]:
    def reduce(x: Any) -> Any:
        if x.dtype is not torch.bool:
            return NotImplemented
        return operator(x.to(torch.uint8)).to(torch.bool)

    return reduce


def _quantifier(operator: Any, of_nothing: bool) -> Callable[..., Any]:
    """Return `all` or `any`; of bytes their result is a byte."""

    def reduce(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        dtype = torch.uint8 if x.dtype is torch.uint8 else torch.bool
        if not x.numel():
            return _fill(x, dim, keepdim, of_nothing, dtype)
        if isinstance(dim, (tuple, list)) and not dim:
            return (x != 0).to(dtype)
        if dtype is torch.bool:
            return NotImplemented
        truth = x != 0
        return (operator(truth) if dim is None else operator(truth, dim, keepdim)).to(dtype)

    return reduce


def mean(x: Any, *, dtype: Any = None) -> Any:
    """Return the mean in a type, which torch's exporter leaves out; that of nothing is NaN.

    Args:
        x: A tensor.
        dtype: The type, or None for that of the tensor.
    """
    kind = dtype or x.dtype
    if not x.numel():
        return torch.full([], math.nan, dtype=kind)
    return NotImplemented if kind is x.dtype else torch.mean(x.to(kind))


def mean_dim(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean along axes in a type, which torch's exporter leaves out.

    Args:
        x: A tensor.
        dim: Its axes.
        keepdim: Whether the axes stay.
        dtype: The type, or None for that of the tensor.
    """
    kind = dtype or x.dtype
    if not x.numel():
        return _fill(x, dim, keepdim, math.nan, kind)
    return NotImplemented if kind is x.dtype else torch.mean(x.to(kind), dim, keepdim)


def _count(x: Any, dim: Any) -> int:
    return math.prod(x.shape[axis] for axis in _axes(x, dim))


def _variance(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Return the variance and the mean; a correction of the count or more divides by 0."""
    correction = 1 if correction is None else correction
    wide = x.float()
    middle = wide.mean(_axes(x, dim), keepdim=True) if x.dim() else wide
    centred = wide - middle
    total = (centred * centred).sum(_axes(x, dim), keepdim=keepdim) if x.dim() else centred
    variance = total / torch.full([], float(max(_count(x, dim) - correction, 0)))
    return variance.to(x.dtype), middle.reshape(variance.shape).to(x.dtype)


def _spread(operator: Any) -> Callable[..., Any]:
    """Return a variance or deviation with or without the mean; that of nothing is NaN."""
    name = operator.overloadpacket.__name__

    def reduce(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        if not x.numel():
            nothing = _fill(x, dim, keepdim, math.nan, x.dtype)
            return (nothing, nothing) if name.endswith("mean") else nothing
        spread, middle = _variance(x, dim, correction, keepdim)
        spread = torch.sqrt(spread) if name.startswith("std") else spread
        return (spread, middle) if name.endswith("mean") else spread

    return reduce


def _spread_by_flag(operator: Any) -> Callable[..., Any]:
    """Return an older form of a variance or deviation, whose correction is a truth value."""
    reduce = _spread(operator)

    def call(x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
        if isinstance(dim, bool):  # the form without axes
            dim, unbiased = None, dim
        return reduce(x, dim, correction=int(unbiased), keepdim=keepdim)

    return call


_SPREADS: Final = {
    getattr(packet, overload): make(getattr(packet, overload))
    for packet in (aten.std, aten.var, aten.std_mean, aten.var_mean)
    for overload, make in (
        ("correction", _spread),
        ("dim", _spread_by_flag),
        ("default", _spread_by_flag),
    )
}


DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.amax.default: _extreme(aten.amax.default),
    aten.amin.default: _extreme(aten.amin.default),
    aten.max.default: _extreme_of_truth(torch.max),
    aten.min.default: _extreme_of_truth(torch.min),
    aten.all.default: _quantifier(torch.all, of_nothing=True),
    aten.all.dim: _quantifier(torch.all, of_nothing=True),
    aten.all.dims: _quantifier(torch.all, of_nothing=True),
    aten.any.default: _quantifier(torch.any, of_nothing=False),
    aten.any.dim: _quantifier(torch.any, of_nothing=False),
    aten.any.dims: _quantifier(torch.any, of_nothing=False),
    aten.mean.default: mean,
    aten.mean.dim: mean_dim,
    **_SPREADS,
}
"""What computes torch's operators."""
_EXTREMES: Final = frozenset({aten.amax.default, aten.amin.default})
_MEANS: Final = frozenset({aten.mean.default, aten.mean.dim})


def is_plain(node: Any) -> bool:
    """Return whether torch's exporter computes an operator of DECOMPOSITIONS as torch does.

    Args:
        node: A node of a program of torch.export.
    """
    x, dim = node.args[0].meta["val"], node.args[1] if len(node.args) > 1 else None
    if node.target in (aten.max.default, aten.min.default):
        return x.dtype is not torch.bool
    if not x.numel() or not x.dim():
        return False
    if node.target in _SPREADS:
        if node.target.overloadpacket in (aten.std_mean, aten.var_mean):
            return False
        correction = node.kwargs.get("correction")
        return _count(x, dim) > (1 if correction is None else correction)
    if node.target in _EXTREMES:
        return bool(dim) and x.dtype is not torch.bool
    if node.target in _MEANS:
        return bool(x.dtype is node.meta["val"].dtype)
    return x.dtype is not torch.uint8 and dim != []
