"""Operators on types for which ONNX has none: rounding and checks of whole numbers, NaN's sign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

aten = torch.ops.aten


def _keep(x: Any, **_: Any) -> Any:
    """Return whole numbers: rounding does not change them."""
    return NotImplemented if x.dtype.is_floating_point else x.clone()


def _say(answer: bool) -> Callable[..., Any]:
    """Return a check that has one answer for all whole numbers."""

    def check(x: Any) -> Any:
        if x.dtype.is_floating_point:
            return NotImplemented
        return torch.full(list(x.shape), answer, dtype=torch.bool)

    return check


def _square(x: Any) -> Any:
    x = x.to(torch.int64) if x.dtype is torch.bool else x
    return x * x


def _sign(x: Any) -> Any:
    """Return the sign; ONNX's Sign of NaN is NaN, and torch's is 0."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.ceil.default: _keep,
    aten.floor.default: _keep,
    aten.round.default: _keep,
    aten.round.decimals: _keep,
    aten.trunc.default: _keep,
    aten.isnan.default: _say(answer=False),
    aten.isinf.default: _say(answer=False),
    aten.isfinite.default: _say(answer=True),
    aten.square.default: _square,
    aten.sign.default: _sign,
}
"""What computes torch's operators."""


def is_plain(node: Any) -> bool:
    """Return whether torch's exporter computes an operator of DECOMPOSITIONS as torch does.

    Args:
        node: A node of a program of torch.export.
    """
    is_float = node.args[0].meta["val"].dtype.is_floating_point
    return bool(is_float is not (node.target is aten.sign.default))
