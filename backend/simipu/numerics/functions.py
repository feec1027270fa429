"""Functions whose kernels in ONNX Runtime are not exact enough for half: other nodes for them, in float.

No result of any of the 65,536 halves is more than 0.501 units in the last place from the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import Chain, attribute

Function = Callable[[Chain, onnx.NodeProto], str]
"""Adds to a chain the nodes of a function of a node's first input; its result, not rounded."""
_HALF_BITS, _DOUBLE_BITS = 11, 53
_LEAST, _LEAST_NORMAL, _FAR = 2.0**-24, 2.0**-14, 2.0**17
"""The least half, the least normal one, and a number beyond all."""
_SATURATED = 100.0
"""Where the gate of Mish is 1, and the square of e^x no infinity."""
_TAIL_DEGREE, _TAIL_END, _BEYOND_TAIL = 9, 6.0, 64.0
"""Of the polynomial of `_fit_tail`, and up to where: there the tail is less than the least half. And where it
is 0 in float."""


def function_of(node: onnx.NodeProto) -> Function | None:
    """What computes a node instead of ONNX Runtime's kernel, if something has to."""
    if node.op_type == "Gelu" and attribute(node, "approximate", b"none") != b"none":
        return None
    return None if node.domain else _FUNCTIONS.get(node.op_type)


def compute_float(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that compute one whose result is no half: others for a Celu, which the standard has in float
    only, between casts from and to half."""
    if node.op_type != "Celu" or node.domain:
        return [node]
    chain = Chain(f"{node.output[0]}/function")
    chain.add_as(node.output[0], "Identity", _celu(chain, node))
    return chain.nodes


def _sigmoid(chain: Chain, node: onnx.NodeProto) -> str:
    """1 / (1 + e^-x): ONNX Runtime's is a rational function, poor where little is left."""
    one = chain.constant(1.0)
    grown = chain.add("Exp", chain.add("Neg", node.input[0]))
    return chain.add("Div", one, chain.add("Add", one, grown))


def _hard_sigmoid(chain: Chain, node: onnx.NodeProto) -> str:
    alpha, beta = (attribute(node, name, usual) for name, usual in (("alpha", 0.2), ("beta", 0.5)))
    value = chain.add("Mul", chain.add("Cast", node.input[0], to=TensorProto.DOUBLE), _double(chain, alpha))
    value = chain.add("Add", value, _double(chain, beta))
    value = chain.add("Min", chain.add("Max", value, _double(chain, 0)), _double(chain, 1))
    return _find_nearest(chain, value)


def _leaky_relu(chain: Chain, node: onnx.NodeProto) -> str:
    x, alpha = node.input[0], attribute(node, "alpha", 0.01)
    product = chain.add("Mul", chain.add("Cast", x, to=TensorProto.DOUBLE), _double(chain, alpha))
    below = chain.add("Less", x, chain.constant(0.0))
    return chain.add("Where", below, _find_nearest(chain, product), x)


def _mish(chain: Chain, node: onnx.NodeProto) -> str:
    """x tanh(log(1 + e^x)), as x n / (n + 2) of n = e^x (e^x + 2): nothing is lost where little is left."""
    x = chain.add("Cast", node.input[0], to=TensorProto.DOUBLE)
    two = _double(chain, 2)
    grown = chain.add("Exp", chain.add("Min", x, _double(chain, _SATURATED)))
    grown = chain.add("Mul", grown, chain.add("Add", grown, two))
    gate = chain.add("Div", grown, chain.add("Add", grown, two))
    return _find_nearest(chain, chain.add("Mul", x, gate))


def _swish(chain: Chain, node: onnx.NodeProto) -> str:
    """x / (1 + e^(-alpha x)), with a gate of 0 for -inf as well."""
    x = chain.add("Cast", node.input[0], to=TensorProto.DOUBLE)
    power = chain.add("Exp", chain.add("Mul", x, _double(chain, -attribute(node, "alpha", 1.0))))
    one = _double(chain, 1)
    gate = chain.add("Div", one, chain.add("Add", one, power))
    return _find_nearest(chain, chain.add("Mul", x, gate))


def _hard_swish(chain: Chain, node: onnx.NodeProto) -> str:
    """x min(max(x + 3, 0), 6) / 6."""
    x, six = chain.add("Cast", node.input[0], to=TensorProto.DOUBLE), _double(chain, 6)
    gate = chain.add("Max", chain.add("Add", x, _double(chain, 3)), _double(chain, 0))
    gate = chain.add("Div", chain.add("Min", gate, six), six)
    return _find_nearest(chain, chain.add("Mul", x, gate))


def _double(chain: Chain, value: float) -> str:
    """A constant of an operator, which is a float."""
    return chain.constant(np.float32(value), np.float64)


def _find_nearest(chain: Chain, value: str) -> str:
    """A double as the float that is the nearest half, of any size: of the nearest floats one in 300 would be
    a tie between two halves, where the double is none."""
    # Adding and taking away something large leaves the leading bits, rounded to nearest even: a multiple of
    # the value itself (Veltkamp's splitting), or for subnormals always the same.
    grown = chain.add("Mul", value, chain.constant(2.0 ** (_DOUBLE_BITS - _HALF_BITS) + 1, np.float64))
    normal = chain.add("Sub", grown, chain.add("Sub", grown, value))
    anchor = chain.constant(1.5 * 2.0 ** (_DOUBLE_BITS - 1) * _LEAST, np.float64)
    subnormal = chain.add("Sub", chain.add("Add", value, anchor), anchor)
    size = chain.add("Abs", value)
    is_small, is_near = (
        chain.add("Less", size, chain.constant(bound, np.float64)) for bound in (_LEAST_NORMAL, _FAR)
    )
    leading = chain.add("Where", is_small, subnormal, normal)
    # An infinity less an infinity is none.
    return chain.add("Cast", chain.add("Where", is_near, leading, value), to=TensorProto.FLOAT)


def _elu(chain: Chain, node: onnx.NodeProto) -> str:
    return _bend(chain, node.input[0], attribute(node, "alpha", 1.0))


def _celu(chain: Chain, node: onnx.NodeProto) -> str:
    alpha = attribute(node, "alpha", 1.0)
    return _bend(chain, node.input[0], alpha, unit=alpha)


def _selu(chain: Chain, node: onnx.NodeProto) -> str:
    alpha, gamma = (
        attribute(node, "alpha", 1.67326319217681884765625),
        attribute(node, "gamma", 1.05070102214813232421875),
    )
    return chain.add("Mul", _bend(chain, node.input[0], alpha), chain.constant(gamma))


def _bend(chain: Chain, x: str, alpha: float, unit: float = 1.0) -> str:
    """x, but below zero alpha (e^(x / unit) - 1), as 2 t / (1 - t) of the hyperbolic tangent of its half:
    that loses nothing where x is small."""
    zero, one, two = (chain.constant(value) for value in (0.0, 1.0, 2.0))
    below = chain.add("Min", x, zero)
    tangent = chain.add("Tanh", chain.add("Div", below, chain.constant(2.0 * unit)))
    less = chain.add("Div", chain.add("Mul", tangent, two), chain.add("Sub", one, tangent))
    less = chain.add("Mul", less, chain.constant(alpha))
    return chain.add("Where", chain.add("Greater", x, zero), x, less)


def _gelu(chain: Chain, node: onnx.NodeProto) -> str:
    """x, or 0 on the left, less |x| times the tail of the normal distribution beyond it: there nothing would
    be left of 1 + erf(x)."""
    half = chain.constant(0.5)
    # Bounded, so that an infinity is not multiplied by the tail of 0.
    size = chain.add("Min", chain.add("Abs", node.input[0]), chain.constant(_BEYOND_TAIL))
    at = chain.add("Reciprocal", chain.add("Add", chain.add("Mul", size, half), chain.constant(1.0)))
    *others, power = (chain.constant(each) for each in _fit_tail())
    for each in reversed(others):
        power = chain.add("Add", chain.add("Mul", power, at), each)
    square = chain.add("Mul", chain.add("Mul", size, size), half)
    tail = chain.add("Mul", at, chain.add("Exp", chain.add("Sub", power, square)))
    return chain.add("Sub", chain.add("Relu", node.input[0]), chain.add("Mul", size, tail))


@cache
def _fit_tail() -> tuple[float, ...]:
    """Coefficients of the polynomial p for which t e^(p(t) - x^2 / 2) is the tail of the normal distribution
    beyond x, of t = 1 / (1 + x / 2); lowest first."""
    x = np.linspace(0, _TAIL_END, 601)
    t = 1 / (1 + x / 2)
    tails = np.array([math.erfc(each / math.sqrt(2)) / 2 for each in x])
    return tuple(np.polyfit(t, np.log(tails / t) + x * x / 2, _TAIL_DEGREE)[::-1].tolist())


_FUNCTIONS: Mapping[str, Function] = {
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Gelu": _gelu,
    "HardSwish": _hard_swish,
    "Mish": _mish,
    "Swish": _swish,
}
