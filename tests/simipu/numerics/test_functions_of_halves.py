"""Tests of operators of one half for all 65,536 halves, against the nearest half to numpy's result
in double."""

import functools
import math

import numpy as np
import pytest
from half_models import FLOAT_PARTIALS, NAN_ON_OVERFLOW, compute, every_witness, half_model
from onnx import TensorProto, helper
from poprt import Converter
from sample_models import make_model
from simipu.engines.computed import ORT_VERSION

EVERY_HALF = np.arange(65536, dtype=np.uint16).view(np.float16)
HALF_MAX = 65504
MAX_BESIDE = 8
"""Maximum number of results, of all 65,536, that are a neighbour of the nearest half."""
MAX_ULP = 0.501
"""Maximum distance from the exact result in units of the last place: those results are nearly
ties."""


def each(function):
    """Return a function of math for arrays; its result is NaN where the function has no value."""

    def safely(x):
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.nan

    return np.vectorize(safely, otypes=[float])


def expm1(x):
    return np.expm1(np.minimum(x, 0))


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def gelu(x, attributes):
    if attributes.get("approximate") == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x / (1 + np.exp(-2 * inner))
    return np.where(np.isinf(x), np.maximum(x, 0), x * 0.5 * each(math.erfc)(-x / math.sqrt(2)))


SELU_ALPHA, SELU_GAMMA = (
    float(np.float32(value)) for value in (1.6732632423543772, 1.0507009873554805)
)
TENTH = float(np.float32(0.1))
FIFTH = float(np.float32(0.2))
CASES = [
    ("Abs", {}, np.abs),
    ("Neg", {}, np.negative),
    ("Relu", {}, lambda x: np.maximum(x, 0)),
    ("Sign", {}, np.sign),
    ("Ceil", {}, np.ceil),
    ("Floor", {}, np.floor),
    ("Round", {}, np.rint),
    ("Sqrt", {}, np.sqrt),
    ("Reciprocal", {}, lambda x: 1 / x),
    ("Exp", {}, np.exp),
    ("Log", {}, np.log),
    ("Erf", {}, each(math.erf)),
    ("Sin", {}, np.sin),
    ("Cos", {}, np.cos),
    ("Tan", {}, np.tan),
    ("Asin", {}, np.arcsin),
    ("Acos", {}, np.arccos),
    ("Atan", {}, np.arctan),
    ("Sinh", {}, np.sinh),
    ("Cosh", {}, np.cosh),
    ("Tanh", {}, np.tanh),
    ("Asinh", {}, np.arcsinh),
    ("Acosh", {}, np.arccosh),
    ("Atanh", {}, np.arctanh),
    ("Sigmoid", {}, lambda x: np.exp(-softplus(-x))),
    ("HardSigmoid", {}, lambda x: np.clip(FIFTH * x + 0.5, 0, 1)),
    ("HardSigmoid", {"alpha": 0.1, "beta": 0.25}, lambda x: np.clip(TENTH * x + 0.25, 0, 1)),
    ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ("Softplus", {}, softplus),
    ("Softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("Mish", {}, lambda x: x * np.tanh(softplus(x))),
    ("Gelu", {}, lambda x: gelu(x, {})),
    ("Elu", {}, lambda x: np.where(x > 0, x, expm1(x))),
    ("Elu", {"alpha": 0.75}, lambda x: np.where(x > 0, x, 0.75 * expm1(x))),
    ("Celu", {}, lambda x: np.where(x > 0, x, expm1(x))),
    ("Celu", {"alpha": 2.5}, lambda x: np.where(x > 0, x, 2.5 * expm1(x / 2.5))),
    ("Selu", {}, lambda x: SELU_GAMMA * np.where(x > 0, x, SELU_ALPHA * expm1(x))),
    ("LeakyRelu", {"alpha": 0.1}, lambda x: np.where(x > 0, x, TENTH * x)),
    ("ThresholdedRelu", {}, lambda x: np.where(x > 1, x, np.where(np.isnan(x), 0, 0))),
    (
        "Shrink",
        {"lambd": 0.5, "bias": 0.25},
        lambda x: np.where(x < -0.5, x + 0.25, np.where(x > 0.5, x - 0.25, 0)),
    ),
]
WHOLE = [
    *(case for case in CASES if case[0] in ("Celu", "HardSwish", "Mish", "Selu")),
    ("Swish", {}, lambda x: x * np.exp(-softplus(-x))),
    ("Swish", {"alpha": 0.5}, lambda x: x * np.exp(-softplus(-0.5 * x))),
]
"""Operators that a compilation, or ONNX Runtime, could compute as several."""
GROWING = {"Exp", "Sinh", "Cosh"}
"""Operators whose infinite result is an overflow, whatever the input is."""


@functools.cache
def find_exact(function):
    """Return the function's result in double for every half."""
    with np.errstate(all="ignore"):
        return function(EVERY_HALF.astype(np.float64))


def ulp(values):
    """Return the distance from each half to the next."""
    return np.spacing(np.minimum(np.abs(values), 65472).astype(np.float16)).astype(np.float64)


@every_witness
@pytest.mark.parametrize(
    ("operator", "attributes", "function"), CASES, ids=[case[0] for case in CASES]
)
def test_every_half_has_the_nearest_result_or_nearly(witness, operator, attributes, function):
    if operator == "Erf" and ORT_VERSION < (1, 27):
        pytest.skip("ONNX Runtime before 1.27 says that erf of NaN is 1")
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    model = half_model([node], {"x": [65536]}, "y", {}, [65536])
    model.opset_import[0].version = 20
    exact = find_exact(function)
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float16)
    # The other option determines the result of values that are too large.
    overflows = np.isinf(nearest) & (np.isfinite(exact) | (operator in GROWING))
    lost, found = (
        compute(witness, model, numerics, EVERY_HALF)
        for numerics in (NAN_ON_OVERFLOW, FLOAT_PARTIALS)
    )
    assert np.isnan(lost[overflows]).all()
    assert (found[overflows] == np.copysign(HALF_MAX, exact[overflows])).all()
    rest = ~overflows
    np.testing.assert_array_equal(np.isnan(found[rest]), np.isnan(exact[rest]))
    np.testing.assert_array_equal(np.isnan(lost[rest]), np.isnan(exact[rest]))
    # If overflow is NaN, other infinities stay; otherwise they are infinite or the largest half.
    infinite = rest & np.isinf(exact)
    np.testing.assert_array_equal(lost[infinite], exact[infinite])
    assert (np.abs(found[infinite]) >= HALF_MAX).all()
    finite = rest & np.isfinite(exact)
    np.testing.assert_array_equal(found[finite], lost[finite])
    beside = found[finite] != nearest[finite]
    assert beside.sum() <= MAX_BESIDE
    distance = np.abs(found[finite].astype(np.float64) - exact[finite])
    assert (distance <= MAX_ULP * ulp(nearest[finite])).all()


@every_witness
@pytest.mark.parametrize(
    ("operator", "attributes", "function"), WHOLE, ids=[case[0] for case in WHOLE]
)
def test_a_compiled_function_is_rounded_once(witness, operator, attributes, function):
    shape = (TensorProto.FLOAT, ["n", 65536])
    # CastLike is decomposed; the other operators stay whole.
    nodes = [
        helper.make_node("CastLike", ["x", "x"], ["same"]),
        helper.make_node(operator, ["same"], ["y"], **attributes),
    ]
    model = make_model(nodes, {"x": shape}, {"y": shape}, {})
    model.opset_import[0].version = 24 if operator == "Swish" else 20
    converted = Converter(batch_size=1, precision="fp16").convert(model)
    exact = find_exact(function)
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float16)
    found = compute(witness, converted, FLOAT_PARTIALS, EVERY_HALF[None])[0]
    finite = np.isfinite(exact) & np.isfinite(nearest)
    assert (found[finite] != nearest[finite]).sum() <= MAX_BESIDE
    distance = np.abs(found[finite].astype(np.float64) - exact[finite])
    assert (distance <= MAX_ULP * ulp(nearest[finite])).all()


@every_witness
def test_a_gelu_that_is_approximated_is_so(witness):
    node = helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")
    model = half_model([node], {"x": [65536]}, "y", {}, [65536])
    model.opset_import[0].version = 20
    x = EVERY_HALF[np.abs(EVERY_HALF) < 3]
    with np.errstate(all="ignore"):
        expected = gelu(EVERY_HALF.astype(np.float64), {"approximate": "tanh"})[
            np.abs(EVERY_HALF) < 3
        ]
    found = compute(witness, model, FLOAT_PARTIALS, EVERY_HALF)[np.abs(EVERY_HALF) < 3]
    np.testing.assert_allclose(found, expected, rtol=3e-3, atol=2**-24)
    assert x.size > 30000
