"""Special functions that neither ONNX nor torch's exporter has, by formulas that hold in float."""

from __future__ import annotations

import math
from typing import Any

import torch

_SHIFT = 7
"""Steps by which an argument is moved up, so that the asymptotic series is exact in float."""
_MIRROR = 0.5
"""Argument below which a function is reflected at 1/2."""
_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
"""Coefficients of M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2010)."""
_TAIL_START = 5.0


def lgamma(x: Any) -> Any:
    """Return the logarithm of the gamma function's absolute value.

    Stirling's series at x + 7, less the logarithms of x .. x + 6; below 1/2 by reflection.

    Args:
        x: A tensor of floats.
    """
    y = torch.where(x < _MIRROR, 1 - x, x)
    product = y
    for step in range(1, _SHIFT):
        product = product * (y + step)
    z = y + _SHIFT
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5)
    logarithm = (
        (z - 0.5) * torch.log(z) - z + 0.5 * math.log(2 * math.pi) + series - torch.log(product)
    )
    reflected = math.log(math.pi) - torch.log(torch.abs(torch.sin(math.pi * x))) - logarithm
    return torch.where(x < _MIRROR, reflected, logarithm)


def mvlgamma(x: Any, p: int) -> Any:
    """Return the logarithm of the multivariate gamma function.

    Args:
        x: A tensor of floats.
        p: Number of dimensions.
    """
    total = sum(lgamma(x - step / 2) for step in range(p))
    return total + p * (p - 1) / 4 * math.log(math.pi)


def digamma(x: Any) -> Any:
    """Return the derivative of lgamma: the series at x + 7, less 1/x .. 1/(x + 6).

    Args:
        x: A tensor of floats.
    """
    y = torch.where(x < _MIRROR, 1 - x, x)
    z = y + _SHIFT
    result = torch.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - 1 / (252 * z**6)
    for step in range(_SHIFT):
        result = result - 1 / (y + step)
    return torch.where(x < _MIRROR, result - math.pi / torch.tan(math.pi * x), result)


def erfinv(x: Any) -> Any:
    """Return the inverse of the error function, by a polynomial at the centre and one at the ends.

    Args:
        x: A tensor of floats between -1 and 1.
    """
    w = -torch.log((1 - x) * (1 + x))
    centre = _evaluate(_CENTRE, w - 2.5)
    tail = _evaluate(_TAIL, torch.sqrt(w) - 3)
    result = torch.where(w < _TAIL_START, centre, tail) * x
    return torch.where(torch.abs(x) == 1, x * math.inf, result)


def _evaluate(coefficients: tuple[float, ...], x: Any) -> Any:
    """Return a polynomial's value; the highest power comes first."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
