"""Elementwise methods: each on the special values and every type, binary ones on every pair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from popart_methods.cases import VERSIONS, Array, Case, own, standard
from popart_methods.values import FLOATS, INTS, SHAPES, TYPES, iter_inputs, mixed, pairs, plain

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes floats in double and integers in their own type."""

    def compute(*arrays: Array) -> Any:
        return function(*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays))

    return compute


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * (np.exp(x) - 1) * (x <= 0)) if x.size else x


def _where_nan(x: Array, values: Array) -> Array:
    return np.where(np.isnan(x), np.nan, values)


def _round_away(x: Array) -> Array:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def _elu(x: Array, alpha: float) -> Array:
    return np.where(np.isnan(x) | (x >= 0), x, alpha * np.expm1(np.minimum(x, 0)))


UNARY: dict[str, tuple[Callable[..., Array], list[dict[str, float]]]] = {
    "abs": (np.abs, [{}]),
    "acos": (np.arccos, [{}]),
    "acosh": (np.arccosh, [{}]),
    "asin": (np.arcsin, [{}]),
    "asinh": (np.arcsinh, [{}]),
    "atan": (np.arctan, [{}]),
    "atanh": (np.arctanh, [{}]),
    "ceil": (np.ceil, [{}]),
    "cos": (np.cos, [{}]),
    "cosh": (np.cosh, [{}]),
    "elu": (_elu, [{"alpha": 1.0}, {"alpha": 0.0}, {"alpha": 0.5}, {"alpha": -2.0}]),
    "erf": (_erf, [{}]),
    "exp": (np.exp, [{}]),
    "floor": (np.floor, [{}]),
    "hardsigmoid": (
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        [{"alpha": 0.2, "beta": 0.5}, {"alpha": 0.0, "beta": 0.5}, {"alpha": 1.0, "beta": 0.0}],
    ),
    "identity": (lambda x: x, [{}]),
    "isinf": (
        lambda x, detect_negative, detect_positive: (
            (np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative))
        ),
        [{"detect_negative": n, "detect_positive": p} for n in (0, 1) for p in (0, 1)],
    ),
    "isnan": (np.isnan, [{}]),
    "leakyrelu": (
        lambda x, alpha: np.where(x < 0, alpha * x, x),
        [{"alpha": 0.01}, {"alpha": 0.0}, {"alpha": -0.5}],
    ),
    "log": (np.log, [{}]),
    "logical_not": (np.logical_not, [{}]),
    "neg": (np.negative, [{}]),
    "reciprocal": (lambda x: 1 / x, [{}]),
    "relu": (lambda x: _where_nan(x, np.maximum(x, 0)), [{}]),
    "round": (_round_away, [{}]),
    "selu": (
        lambda x, alpha, gamma: gamma * _elu(x, alpha),
        [{"alpha": 1.67326319, "gamma": 1.05070102}, {"alpha": 0.0, "gamma": 1.0}],
    ),
    "shrink": (
        lambda x, bias, lambd: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
        [{"bias": 0.0, "lambd": 0.5}, {"bias": 0.25, "lambd": 1.0}],
    ),
    "sigmoid": (_sigmoid, [{}]),
    "sign": (np.sign, [{}]),
    "sin": (np.sin, [{}]),
    "sinh": (np.sinh, [{}]),
    "softplus": (lambda x: np.logaddexp(x, 0), [{}]),
    "softsign": (lambda x: x / (1 + np.abs(x)), [{}]),
    "sqrt": (np.sqrt, [{}]),
    "tan": (np.tan, [{}]),
    "tanh": (np.tanh, [{}]),
    "thresholdedrelu": (
        lambda x, alpha: np.where(np.isnan(x) | (x > alpha), x, 0),
        [{"alpha": 1.0}, {"alpha": 0.0}, {"alpha": -1.0}],
    ),
}
"""Methods of `aiOnnx`, what they compute, and their attributes."""

OWN_UNARY: dict[str, tuple[Callable[..., Array], list[dict[str, float]]]] = {
    "gelu": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        [{}],
    ),
    "geluerf": (lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), [{}]),
    "log1p": (np.log1p, [{}]),
    "expm1": (np.expm1, [{}]),
    "round": (_round_away, [{}]),
    "nearbyint": (np.rint, [{}]),
    "swish": (lambda x: x * _sigmoid(x), [{}]),
    "scale": (lambda x, scale: x * scale, [{"scale": 2.0}, {"scale": 0.0}, {"scale": -0.5}]),
    "detach": (lambda x: x, [{}]),
    "nop": (lambda x: x, [{}]),
    "tensorremap": (lambda x, remap_type: x, [{"remap_type": 0}, {"remap_type": 1}]),
    "printtensor": (lambda x, print_gradient: x, [{"print_gradient": 0}]),
    "bitwisenot": (np.bitwise_not, [{}]),
    "incrementmod": (
        lambda x, increment, modulus: np.fmod(x + increment, modulus),
        [{"increment": 1.0, "modulus": 3.0}, {"increment": 0.0, "modulus": 2.0}],
    ),
    "replicatedallreduce": (lambda x: x, [{}]),
}
"""Methods of `aiGraphcore` likewise."""

BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda x, y: np.trunc(x / np.where(y == 0, 1, y)) if x.dtype.kind in "iu" else x / y,
    "pow": lambda x, y: np.power(x.astype(np.float64), y),
    "equal": np.equal,
    "less": np.less,
    "greater": np.greater,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "max": np.maximum,
    "min": np.minimum,
    "sum": np.add,
    "mean": lambda x, y: (x + y) / 2,
    "prelu": lambda x, y: np.where(x < 0, x * y, x),
}
OWN_BINARY: dict[str, Callable[..., Array]] = {
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "bitwiseand": np.bitwise_and,
    "bitwiseor": np.bitwise_or,
    "bitwisexor": np.bitwise_xor,
    "bitwisexnor": lambda x, y: ~(x ^ y),
    "scaledadd": np.add,
}


def _first_opset(name: str) -> int:
    from popart.builder import opsets

    return next(version for version in VERSIONS if name in opsets.find_methods(version))


def iter_unary() -> Iterator[Case]:
    """Yield every unary method on every type, with every set of attributes and shape."""
    for table, domain in ((UNARY, "aiOnnx"), (OWN_UNARY, "aiGraphcore")):
        for name, (function, variants) in table.items():
            for kwargs in variants:
                expect = _wide(lambda x, f=function, k=kwargs: f(x, **k))
                for dtype in TYPES if kwargs is variants[0] else FLOATS:
                    for label, x in iter_inputs(dtype):
                        if np.dtype(dtype).kind in "iu" and name in ("scale", "incrementmod"):
                            x = np.asarray(np.abs(x) % 7).astype(dtype)
                        shown = f"{np.dtype(dtype)} {label} {kwargs or ''}"
                        if domain == "aiOnnx":
                            yield standard(name, shown, [x], expect=expect, **kwargs)
                        else:
                            yield own(name, shown, [x], expect, **kwargs)
    for version in VERSIONS:
        for name, (function, variants) in UNARY.items():
            if _first_opset(name) <= version:
                expect = _wide(lambda x, f=function, k=variants[0]: f(x, **k))
                dtype = np.bool_ if name == "logical_not" else np.float32
                x = mixed((3, 4), dtype, version)
                yield standard(
                    name, f"opset {version}", [x], expect=expect, opset=version, **variants[0]
                )


def iter_binary() -> Iterator[Case]:
    """Yield every binary method on all pairs of special values, of types and of shapes."""
    shapes = [
        ((2, 3), (3,)),
        ((2, 3), ()),
        ((), (2,)),
        ((2, 1), (1, 3)),
        ((0,), (1,)),
        ((2, 0), ()),
    ]
    for table, domain in ((BINARY, "aiOnnx"), (OWN_BINARY, "aiGraphcore")):
        for name, function in table.items():

            def make(
                label: str, *inputs: Array, opset: int = 11, n: str = name, f=function, d=domain
            ) -> Case:
                expect = _wide(f)
                if d == "aiOnnx":
                    return standard(n, label, inputs, expect=expect, opset=opset)
                return own(n, label, inputs, expect)

            for dtype in TYPES:
                x, y = pairs(dtype)
                if np.dtype(dtype).kind in "iu" and name in ("div", "fmod", "remainder", "pow"):
                    # What whole numbers make of a division by 0, or beyond their range, is open.
                    x, y = np.abs(plain(x.shape, dtype)), np.maximum(plain(y.shape, dtype, 1), 1)
                yield make(f"{np.dtype(dtype)} special pairs", x, y)
                yield make(f"{np.dtype(dtype)} plain", x[::-1], y)
            for left in TYPES:
                for right in TYPES:
                    if left is not right:
                        label = f"{np.dtype(left)} with {np.dtype(right)}"
                        other = plain((2, 3), right, 1)
                        if np.dtype(right).kind != "f":
                            other = np.maximum(other, np.ones((), right))
                        yield make(label, plain((2, 3), left), other)
                        yield make(
                            f"{label}, scalar", plain((2, 3), left), other[:1, 0].reshape(())
                        )
            for one, other in shapes:
                yield make(f"shapes {one} {other}", plain(one), plain(other, seed=1))
            if domain == "aiOnnx":
                for version in VERSIONS:
                    if _first_opset(name) <= version:
                        kind = np.bool_ if name.startswith("logical") else np.float32
                        yield make(
                            f"opset {version}",
                            plain((2, 3), kind),
                            plain((2, 3), kind, 1),
                            opset=version,
                        )


def iter_others() -> Iterator[Case]:
    """Yield methods that are elementwise with a form of their own."""
    for dtype in TYPES:
        x, y = pairs(dtype)
        for fmod in (0, 1):
            function = np.fmod if fmod else np.mod
            yield standard(
                "mod", f"{np.dtype(dtype)} fmod {fmod}", [x, y], expect=_wide(function), fmod=fmod
            )
        for other in TYPES:
            yield standard(
                "where",
                f"{np.dtype(dtype)} {np.dtype(other)}",
                [plain((2, 3), np.bool_), plain((2, 3), dtype), plain((3,), other, 2)],
                expect=np.where,
            )
        yield standard("where", f"{np.dtype(dtype)} special", [x == x, x, y], expect=np.where)
        for to in (
            "FLOAT",
            "FLOAT16",
            "INT32",
            "INT64",
            "UINT32",
            "INT8",
            "UINT8",
            "BOOL",
            "DOUBLE",
            "INT16",
            "UINT16",
            "UINT64",
        ):
            wanted = getattr(
                np, {"FLOAT": "float32", "BOOL": "bool_", "DOUBLE": "float64"}.get(to, to.lower())
            )
            yield standard(
                "cast",
                f"{np.dtype(dtype)} to {to}",
                [plain((3, 4), dtype)],
                to,
                expect=lambda x, w=wanted: x.astype(w),
            )
        for shift in (np.uint32, np.uint8, np.uint16, np.uint64, np.int32):
            for direction in ("LEFT", "RIGHT"):
                function = np.left_shift if direction == "LEFT" else np.right_shift
                yield standard(
                    "bitshift",
                    f"{np.dtype(dtype)} {np.dtype(shift)} {direction}",
                    [
                        np.abs(plain((2, 3), dtype)) if dtype != np.bool_ else plain((2, 3), dtype),
                        np.array([0, 1, 3], shift),
                    ],
                    direction,
                    expect=function,
                )
        yield from _iter_clips(dtype)
        for count in (1, 3):
            xs = [mixed((2, 3), dtype, seed) for seed in range(count)]
            for name, reduce in (("sum", np.add), ("max", np.maximum), ("min", np.minimum)):
                yield standard(
                    name,
                    f"{np.dtype(dtype)} of {count}",
                    xs,
                    expect=_wide(lambda *each, r=reduce: r.reduce(each)),
                )
            yield standard(
                "mean",
                f"{np.dtype(dtype)} of {count}",
                xs,
                expect=_wide(lambda *each: sum(each) / len(each)),
            )
    for kind in FLOATS:
        x, y = mixed((2, 3), kind), plain((2, 3), kind, 1)
        for scales in ((1.0, 1.0), (0.0, 2.0), (-0.5, 0.0)):
            yield own(
                "scaledadd",
                f"{np.dtype(kind)} {scales}",
                [x, y],
                _wide(lambda a, b, s=scales: s[0] * a + s[1] * b),
                *scales,
            )
            scalars = [np.array(each, kind) for each in scales]
            yield own(
                "scaledadd",
                f"{np.dtype(kind)} {scales} as inputs",
                [x, y, *scalars],
                _wide(lambda a, b, s, t: s * a + t * b),
            )
            floats = [np.array(each, np.float32) for each in scales]
            yield own(
                "scaledadd",
                f"{np.dtype(kind)} {scales} as floats",
                [x, y, *floats],
                _wide(lambda a, b, s, t: s * a + t * b),
            )
        for shape, slope in (((2, 3, 4), (3, 1)), ((2, 3), (3,)), ((2, 3), (1,)), ((3,), ())):
            yield standard(
                "prelu",
                f"{np.dtype(kind)} slope {slope}",
                [mixed(shape, kind), plain(slope, kind, 2)],
                expect=_wide(lambda a, b: np.where(a < 0, a * b, a)),
            )
    for dtype in (np.int32, np.int64, np.uint32):
        x = np.array([0, 1, 2**31 - 1, 2**31 - 2 if dtype != np.uint32 else 2**32 - 1], dtype)
        for name, function in (("add", np.add), ("mul", np.multiply), ("sub", np.subtract)):
            yield standard(
                name,
                f"{np.dtype(dtype)} wraps",
                [x, x[::-1]],
                expect=lambda a, b, f=function: f(a.astype(np.int64), b.astype(np.int64)).astype(
                    np.int32 if a.dtype.kind == "i" else np.uint32
                ),
            )


def _iter_clips(dtype: type) -> Iterator[Case]:
    x, is_float = mixed((3, 4), dtype), dtype in FLOATS
    largest = float(np.finfo(np.float32).max)
    ends = (-1.0, 1.0) if np.dtype(dtype).kind != "u" else (1.0, 3.0)
    bounds = (ends, (None, ends[1]), (ends[0], None), (None, None), ends[::-1])
    for version, (low, high) in itertools.product(VERSIONS, bounds):

        def expect(x: Array, low: Any = low, high: Any = high) -> Array:
            # The bounds that are left out are the ends of the range, which infinity is beyond.
            low, high = (-largest if low is None else low), (largest if high is None else high)
            found = np.minimum(np.maximum(_wide(lambda x: x)(x), low), high)
            return _where_nan(x, found) if x.dtype.kind == "f" else found

        label = f"opset {version} {np.dtype(dtype)} {low} {high}"
        if version < 11:
            named = {key: each for key, each in (("min", low), ("max", high)) if each is not None}
            if is_float and (version == 7 or len(named) == 2):
                yield standard("clip", label, [x], expect=expect, opset=version, **named)
            continue
        if dtype == np.bool_ or np.dtype(dtype).itemsize > 4:
            x = np.abs(plain((3, 4), dtype)) if dtype != np.bool_ else x

        def build(b: Any, names: list[str], low: Any = low, high: Any = high) -> str:
            domain = b.aiOnnxOpset11
            args = [
                "" if each is None else domain.constant(np.array(each).astype(dtype))
                for each in (low, high)
            ]
            while args and not args[-1]:
                args.pop()
            return str(domain.clip([*names, *args]))

        yield Case("aiOnnx.clip", label, (x,), build, expect)


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from iter_unary()
    yield from iter_binary()
    yield from iter_others()


__all__ = ["INTS", "SHAPES", "iter_cases"]
