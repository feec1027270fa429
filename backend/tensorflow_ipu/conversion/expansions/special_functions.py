"""Expansions of special functions: gamma functions and inverses of the error function."""

from __future__ import annotations

import math
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.conversion.expanding import expands

_CENTRAL: Final = (
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
_TAIL: Final = (
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
"""Coefficients of polynomials, from the highest power (M. Giles, Approximating the erfinv function,
GPU Computing Gems 2, single precision)."""
_TAIL_STARTS: Final = 5.0
_HALF: Final = 0.5
_LANCZOS_G: Final = 7.0
_LANCZOS: Final = (
    676.520368121885098567009190444019,
    -1259.13921672240287047156078755283,
    771.3234287776530788486528258894,
    -176.61502916214059906584551354,
    12.507343278686904814458936853,
    -0.13857109526572011689554707,
    9.984369578019570859563e-6,
    1.50563273514931155834e-7,
)
"""Coefficients of Lanczos' approximation of the gamma function with g = 7 and 9 terms (P. Godfrey),
without the first one, which is about 1."""
_LANCZOS_BASE: Final = 0.99999999999980993227684700473478


def invert_erf(x: Any) -> Any:
    """Return the inverse of the error function.

    Args:
        x: Tensor in float, with values from -1 to 1.

    Returns:
        A tensor of the same type and shape.
    """
    value = tf.cast(x, tf.float32)
    w = -tf.math.log((1.0 - value) * (1.0 + value))
    is_central = w < _TAIL_STARTS
    central, tail = w - 2.5, tf.sqrt(tf.maximum(w, 0.0)) - 3.0
    factor = tf.where(is_central, _polynomial(_CENTRAL, central), _polynomial(_TAIL, tail))
    is_end = tf.equal(tf.abs(value), 1.0)
    ends = value * tf.constant(math.inf)
    return tf.cast(tf.where(is_end, ends, factor * value), x.dtype)


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    result = tf.zeros_like(x)
    for coefficient in coefficients:
        result = result * x + coefficient
    return result


@expands("Erfinv")
def _erfinv(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return invert_erf(inputs[0])


@expands("Ndtri")
def _ndtri(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The quantile of the normal distribution."""
    return invert_erf(2.0 * inputs[0] - 1.0) * tf.cast(math.sqrt(2.0), inputs[0].dtype)


def _lanczos(z: Any) -> tuple[Any, Any]:
    """Return the series of Lanczos and its derivative at z."""
    total, slope = tf.fill(tf.shape(z), tf.constant(_LANCZOS_BASE, z.dtype)), tf.zeros_like(z)
    for place, coefficient in enumerate(_LANCZOS):
        denominator = z + (place + 1.0)
        total += coefficient / denominator
        slope -= coefficient / (denominator * denominator)
    return total, slope


@expands("Lgamma")
def _lgamma(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """With z = x - 1, t = z + g + 1/2: log(2 pi) / 2 + (z + 1/2) log t - t + log series(z); values
    below 1/2 are reflected."""
    x = tf.cast(inputs[0], tf.float32)
    is_reflected = x < _HALF
    z = tf.where(is_reflected, -x, x - 1.0)
    t = z + _LANCZOS_G + 0.5
    log_t = math.log(_LANCZOS_G + 0.5) + tf.math.log(1.0 + z / (_LANCZOS_G + 0.5))
    series, _slope = _lanczos(z)
    result = 0.5 * math.log(2.0 * math.pi) + (z + 0.5 - t / log_t) * log_t + tf.math.log(series)
    off = tf.abs(x - tf.floor(x))
    off = tf.where(off > _HALF, 1.0 - off, off)
    sine = tf.math.log(tf.sin(math.pi * off))
    reflected = tf.where(
        tf.math.is_inf(sine), tf.constant(math.inf), math.log(math.pi) - sine - result
    )
    result = tf.where(is_reflected, reflected, result)
    result = tf.where(tf.math.is_inf(x), tf.constant(math.inf), result)
    return tf.cast(result, inputs[0].dtype)


@expands("Digamma")
def _digamma(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The derivative of Lgamma: log t + series'/series - g / t; values below 1/2 are reflected."""
    x = tf.cast(inputs[0], tf.float32)
    is_reflected = x < _HALF
    z = tf.where(is_reflected, -x, x - 1.0)
    t = z + _LANCZOS_G + 0.5
    series, slope = _lanczos(z)
    log_t = math.log(_LANCZOS_G + 0.5) + tf.math.log(1.0 + z / (_LANCZOS_G + 0.5))
    result = log_t + slope / series - _LANCZOS_G / t
    angle = math.pi * (x + tf.abs(tf.floor(x + 0.5)))
    reflected = result - math.pi * tf.cos(angle) / tf.sin(angle)
    result = tf.where(is_reflected, reflected, result)
    is_pole = tf.logical_and(x <= 0.0, tf.equal(x, tf.floor(x)))
    result = tf.where(is_pole, tf.constant(math.nan), result)
    return tf.cast(result, inputs[0].dtype)
