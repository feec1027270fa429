"""Quotients rounded down, their remainders, and powers, by torch's formulas and types.

torch divides what is left after fmod, so that rounding of the quotient changes no whole number:
1.0 // 0.1 is 9, because 0.1 in float is more than a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

aten = torch.ops.aten


def _promote(x: Any, y: Any) -> tuple[Any, Any]:
    """Return both operands as tensors of the type that torch computes in."""
    dtype = torch.result_type(x, y)
    return tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) else torch.full([], value, dtype=dtype)
        for value in (x, y)
    )


def floor_divide(x: Any, y: Any) -> Any:
    """Return the quotient, rounded down.

    Args:
        x: A tensor.
        y: A tensor or a number.
    """
    x, y = _promote(x, y)
    if not x.dtype.is_floating_point:
        return torch.ops.aten.div.Tensor_mode(x, y, rounding_mode="floor")
    wide, divisor = x.float(), y.float()
    rest = torch.fmod(wide, divisor)
    quotient = (wide - rest) / divisor
    is_less = (rest != 0) & ((divisor < 0) != (rest < 0))
    quotient = quotient - is_less.to(quotient.dtype)
    floored = torch.floor(quotient)
    floored = floored + (quotient - floored > 0.5).to(floored.dtype)  # noqa: PLR2004 # to the nearest
    return torch.where(divisor == 0, wide / divisor, floored).to(x.dtype)


def _divide(x: Any, y: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode != "floor" or not torch.result_type(x, y).is_floating_point:
        return NotImplemented
    return floor_divide(x, y)


def remainder(x: Any, y: Any) -> Any:
    """Return the remainder, which has the sign of the divisor.

    Args:
        x: A tensor or a number.
        y: A tensor or a number.
    """
    if not torch.result_type(x, y).is_floating_point:
        return NotImplemented
    x, y = _promote(x, y)
    wide, divisor = x.float(), y.float()
    rest = torch.fmod(wide, divisor)
    is_other = (rest != 0) & ((divisor < 0) != (rest < 0))
    return torch.where(is_other, rest + divisor, rest).to(x.dtype)


def power(x: Any, y: Any) -> Any:
    """Return a power in the type that torch promotes both operands to; ONNX takes the first one's.

    Args:
        x: A tensor or a number.
        y: A tensor or a number.
    """
    dtype = torch.result_type(x, y)
    if not _is_mixed(dtype, (x, y)):
        return NotImplemented
    x, y = _promote(x, y)
    if dtype.is_floating_point:
        return torch.pow(x, y)
    base, exponent = x.to(torch.int32), y.to(torch.int32)
    positive = torch.ops.aten.pow.Tensor_Tensor(base, exponent.clamp(min=0))
    sign = 1 - 2 * (exponent & 1)
    inverse = torch.where(base == 1, 1, torch.where(base == -1, sign, 0))
    return torch.where(exponent < 0, inverse, positive).to(dtype)


def _is_mixed(dtype: Any, operands: tuple[Any, Any]) -> bool:
    """Return whether ONNX's Pow does not take operands of a power in a type."""
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    if any(value.dtype is not dtype for value in tensors):
        return True
    if dtype.is_floating_point:
        return False
    exponent = operands[1]
    is_safe = exponent.dtype is torch.int32 if isinstance(exponent, torch.Tensor) else exponent >= 0
    return dtype not in (torch.int32, torch.int64) or not is_safe


def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y): torch's exporter turns points on the axis wrongly.

    Args:
        y: A tensor.
        x: A tensor.
    """
    dtype = torch.result_type(y, x)
    dtype = dtype if dtype.is_floating_point else torch.float32
    y, x = y.float(), x.float()
    angle = torch.where((x == 0) & (y == 0), 0.0, torch.atan(y / x))
    diagonal = torch.sign(x) * torch.sign(y) * (math.pi / 4)
    angle = torch.where(torch.isinf(x) & torch.isinf(y), diagonal, angle)
    turn = torch.where(_is_below(y), -math.pi, math.pi)
    return torch.where(_is_below(x), angle + turn, angle).to(dtype)


def _is_below(x: Any) -> Any:
    """Return whether numbers are negative, -0 among them."""
    return (x < 0) | ((x == 0) & (1 / x < 0))


DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.floor_divide.default: floor_divide,
    aten.floor_divide.Scalar: floor_divide,
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.remainder.Scalar_Tensor: remainder,
    aten.atan2.default: atan2,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Scalar: power,
}
"""What computes torch's operators."""


def is_plain(node: Any) -> bool:
    """Return whether torch's exporter computes an operator of DECOMPOSITIONS as torch does.

    Args:
        node: A node of a program of torch.export.
    """
    if node.target is aten.atan2.default:
        return False
    dtype = node.meta["val"].dtype
    is_float = dtype.is_floating_point
    if node.target.overloadpacket is aten.pow:
        operands = tuple(
            value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in node.args
        )
        return not _is_mixed(dtype, operands)
    if node.target in (aten.floor_divide.default, aten.floor_divide.Scalar):
        return not is_float and node.target is aten.floor_divide.default
    return not is_float or node.kwargs.get("rounding_mode") == "trunc"
