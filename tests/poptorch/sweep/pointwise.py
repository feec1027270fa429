"""Cases of PopTorch's pointwise, comparing, reducing and BLAS operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.poptorch.sweep.values import (
    FLOATS,
    INF,
    NAN,
    SCALARS,
    TYPES,
    Case,
    draw,
    iter_type_pairs,
    name_type,
    pairs_of,
    plain,
    special,
)

Table = dict[str, Callable[[], Iterator[Case]]]


def unary(function: Callable[..., Any]) -> Iterator[Case]:
    """Yield special values and all types; an empty slice and a tensor without dimensions."""
    for dtype in TYPES:
        yield Case(f"special {name_type(dtype)}", function, (special(dtype),))
        yield Case(f"plain {name_type(dtype)}", function, (plain(dtype),))
    yield Case("0-d", function, (torch.tensor(0.5),))
    yield Case("empty", lambda x: function(x[:0]), (plain(torch.float),))


def binary(
    function: Callable[..., Any],
    *,
    scalars: bool = True,
    reflected: bool = False,
    subnormals: bool = True,
) -> Iterator[Case]:
    """Yield every pair of special values and of types, numbers of Python and broadcasting."""
    for dtype in TYPES:
        values = special(dtype)
        if not subnormals and dtype.is_floating_point:
            values = values[~((values != 0) & (values.abs() < _LEAST))]
        yield Case(f"special {name_type(dtype)}", function, pairs_of(values))
        yield Case(f"plain {name_type(dtype)}", function, (plain(dtype), plain(dtype, seed=1)))
    for name, x, y in iter_type_pairs():
        yield Case(name, function, (x, y))
    if scalars:
        for dtype, number in itertools.product(TYPES, SCALARS):
            yield Case(
                f"{name_type(dtype)}, {number!r}",
                lambda x, n=number: function(x, n),
                (plain(dtype),),
            )
            if reflected:
                yield Case(
                    f"{number!r}, {name_type(dtype)}",
                    lambda x, n=number: function(n, x),
                    (plain(dtype),),
                )
    yield Case("broadcast", function, (draw(3, 1), draw(1, 4, seed=1)))
    yield Case("empty", lambda x, y: function(x[:0], y[:0]), (plain(torch.float),) * 2)


def reduction(
    function: Callable[..., Any], *, several: bool = True, squares: bool = False
) -> Iterator[Case]:
    """Yield all types, special values, axes of both signs, kept axes, and empty tensors."""
    for dtype in TYPES:
        yield Case(f"all {name_type(dtype)}", function, (plain(dtype),))
        yield Case(f"axis {name_type(dtype)}", lambda x: function(x, dim=1), (plain(dtype),))
    rows = torch.tensor([[NAN, 1.0, 2.0], [1.0, NAN, 0.0], [INF, -INF, 1.0], [INF, 1.0, 1.0],
                         [-0.0, 0.0, 1e-40], [1e30, 1e30, -1e30], [-INF, -INF, -INF]])  # fmt: skip
    if squares:
        rows = rows[rows.abs().amax(1) != 1e30]  # its square is no float
    for name, given in (("float", rows), ("half", rows.half())):
        yield Case(f"special {name}", lambda x: function(x, dim=1), (given,))
    for dim, keep in itertools.product((0, -1, -2), (False, True)):
        yield Case(
            f"dim {dim} keepdim {keep}",
            lambda x, d=dim, k=keep: function(x, dim=d, keepdim=k),
            (draw(2, 3, 4),),
        )
    if several:
        yield Case("two axes", lambda x: function(x, dim=(0, -1)), (draw(2, 3, 4),))
        yield Case("no axes", lambda x: function(x, dim=()), (draw(2, 3),))
    yield Case("one", function, (draw(1),))
    yield Case("0-d", function, (torch.tensor(2.5),))
    yield Case("empty", lambda x: function(x[:0]), (draw(2, 3),))
    yield Case("empty axis", lambda x: function(x[:0], dim=0), (draw(2, 3),))


_UNARY = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh exp expm1 floor frac log log10 "
    "log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc isnan "
    "isinf isfinite logical_not erf erfc"
).split()
_BINARY = (
    "add sub mul div true_divide floor_divide fmod remainder eq ne ge gt le lt "
    "pow bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor atan2 maximum minimum"
).split()
_SCALARLESS = {"logical_and", "logical_or", "logical_xor", "atan2", "maximum", "minimum"}
_REFLECTED = {"pow", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"}
_NORMAL = {"fmod", "remainder", "floor_divide"}
"""Operators of which torch on the CPU makes NaN, some of the time, for a subnormal divisor."""
_LEAST = 1e-30
_REDUCTIONS = "sum mean amax amin std var all any logsumexp count_nonzero".split()
_SINGLE = "argmax argmin prod median".split()


def _rsub() -> Iterator[Case]:
    for dtype, number in itertools.product(TYPES, SCALARS):
        yield Case(f"{number!r} - {name_type(dtype)}", lambda x, n=number: n - x, (plain(dtype),))
        yield Case(f"{number!r} / {name_type(dtype)}", lambda x, n=number: n / x, (plain(dtype),))
        yield Case(f"{number!r} // {name_type(dtype)}", lambda x, n=number: n // x, (plain(dtype),))


def _alpha() -> Iterator[Case]:
    for dtype, alpha in itertools.product(TYPES, (0, 1, -2, 0.5)):
        for function in (torch.add, torch.sub):
            yield Case(
                f"{function.__name__} {name_type(dtype)} {alpha}",
                lambda x, y, a=alpha, f=function: f(x, y, alpha=a),
                (plain(dtype), plain(dtype, 1)),
            )
    for alpha in (0, 2.0):
        yield Case(
            f"special {alpha}", lambda x, y, a=alpha: torch.add(x, y, alpha=a), pairs_of(special())
        )


def _clamp(*names: str) -> Iterator[Case]:
    bounds: list[dict[str, Any]] = [
        {"min": -1, "max": 2}, {"min": 0.5}, {"max": 0.5}, {"min": 2, "max": -1}, {"min": NAN},
        {"min": -INF, "max": INF}, {"min": 1.5, "max": 3},
    ]  # fmt: skip
    for dtype, given in itertools.product(TYPES, bounds):
        yield Case(
            f"{name_type(dtype)} {given}", lambda x, g=given: torch.clamp(x, **g), (special(dtype),)
        )
    x, y = pairs_of(special())
    yield Case("tensors", lambda x, y: torch.clamp(x, y, y + 1), (x, y))
    yield Case("tensor min", lambda x, y: torch.clamp(x, min=y), (x, y))
    for name, x, y in itertools.islice(iter_type_pairs(), 0, None, 3):
        yield Case(f"{name} tensor", lambda x, y: torch.clamp(x, max=y), (x, y))
    for function in (torch.clamp_min, torch.clamp_max):
        for dtype in TYPES:
            yield Case(
                f"{function.__name__} {name_type(dtype)}",
                lambda x, f=function: f(x, 1), (special(dtype),),
            )  # fmt: skip


def _ternary(function: Callable[..., Any]) -> Iterator[Case]:
    for dtype, value in itertools.product((torch.int32, *FLOATS), (0, 1, -0.5, 2)):
        yield Case(
            f"{name_type(dtype)} value {value}",
            lambda x, y, z, v=value: function(x, y, z, value=v),
            (plain(dtype), plain(dtype, 1), plain(dtype, 2)),
        )
    a, b = pairs_of(special())
    for value in (0, 1):
        yield Case(f"special {value}", lambda x, y, v=value: function(x, y, x, value=v), (a, b))
    for one, other in itertools.permutations(FLOATS, 2):
        yield Case(
            f"{name_type(one)}, {name_type(other)}", function,
            (plain(one), plain(other, 1), plain(one, 2)),
        )  # fmt: skip
    yield Case("broadcast", function, (draw(4), draw(3, 1), draw(1, 4)))


def _div_modes() -> Iterator[Case]:
    for mode, dtype in itertools.product(("floor", "trunc"), TYPES):
        function = partial(torch.div, rounding_mode=mode)
        values = special(dtype)
        if dtype.is_floating_point:
            values = values[~((values != 0) & (values.abs() < _LEAST))]
        yield Case(f"{mode} special {name_type(dtype)}", function, pairs_of(values))
        for number in (3, -2, 2.5):
            yield Case(
                f"{mode} {name_type(dtype)}, {number}",
                lambda x, n=number, f=function: f(x, n),
                (plain(dtype),),
            )
    for (name, x, y), mode in itertools.product(iter_type_pairs(), ("floor", "trunc")):
        yield Case(f"{mode} {name}", partial(torch.div, rounding_mode=mode), (x, y))


def _norms() -> Iterator[Case]:
    x, wide = draw(3, 4), draw(2, 3, 4)
    rows = torch.tensor([[NAN, 1.0], [INF, 1.0], [0.0, -0.0], [-INF, INF]])
    for p, dim, keep in itertools.product((0, 1, 2, 3, 0.5, INF, -INF, -1, "fro"), (None, 1, -1),
                                          (False, True)):  # fmt: skip
        yield Case(
            f"norm {p} {dim} {keep}",
            lambda x, p=p, d=dim, k=keep: torch.norm(x, p=p, dim=d, keepdim=k),
            (x,),
        )
    for p, dim in itertools.product((0, 1, 2, 3.5, INF, -INF, -2), (None, 0, (0, 1))):
        yield Case(
            f"vector_norm {p} {dim}",
            lambda x, p=p, d=dim: torch.linalg.vector_norm(x, p, d), (x,),
        )  # fmt: skip
        yield Case(
            f"vector_norm special {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, 1), (rows,)
        )
    for p in ("fro", 1, -1, INF, -INF):
        yield Case(f"matrix_norm {p}", lambda x, p=p: torch.linalg.matrix_norm(x, p), (wide,))
        yield Case(
            f"matrix_norm {p} kept",
            lambda x, p=p: torch.linalg.matrix_norm(x, p, dim=(0, 2), keepdim=True), (wide,),
        )  # fmt: skip
        yield Case(f"linalg.norm {p}", lambda x, p=p: torch.linalg.norm(x, p), (x,))
    for dtype in FLOATS:
        yield Case(f"linalg.norm {name_type(dtype)}", torch.linalg.norm, (plain(dtype),))
    yield Case("dtype", lambda x: torch.linalg.vector_norm(x, dtype=torch.float), (x.half(),))


def _extremes(function: Callable[..., Any]) -> Iterator[Case]:
    yield from reduction(function, several=False)
    yield from binary(function, scalars=False)


def _products() -> Iterator[Case]:
    scales = list(itertools.product((0, 1, 0.5, -2), (0, 1, 0.5, -2)))
    poison = draw(3, 3).clone()
    poison[0, 0], poison[1, 2] = NAN, INF
    x, y = draw(3, 4), draw(4, 3)
    bad, batch = x.clone(), draw(2, 3, 4)
    bad[0, 1], bad[2, 0] = NAN, -INF
    bad_batch = batch.clone()
    bad_batch[0, 0, 0] = NAN
    sides: list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [
        ("addmm", torch.addmm, (poison, x, y), (draw(3), bad, y)),
        ("addmv", torch.addmv, (poison[0], x, y[:, 0]), (draw(3), bad, y[:, 0])),
        ("addr", torch.addr, (poison, draw(3), draw(3, seed=1)), (draw(3), bad[:, 0], draw(3))),
        ("baddbmm", torch.baddbmm, (poison, batch, batch.transpose(1, 2)),
         (draw(2, 3, 3), bad_batch, batch.transpose(1, 2))),
        ("addbmm", torch.addbmm, (poison, batch, batch.transpose(1, 2)),
         (draw(3, 3), bad_batch, batch.transpose(1, 2))),
    ]  # fmt: skip
    for (name, function, one, other), (alpha, beta) in itertools.product(sides, scales):
        call = partial(function, alpha=alpha, beta=beta)
        yield Case(f"{name} input {alpha} {beta}", call, one)
        yield Case(f"{name} factor {alpha} {beta}", call, other)
    for name, function, one, _ in sides:
        for dtype in (torch.half, torch.double, torch.int32):
            given = tuple(torch.nan_to_num(each, 1, 2, 3).to(dtype) for each in one)
            yield Case(f"{name} {name_type(dtype)}", function, given)
    yield Case("addmm broadcast", torch.addmm, (torch.tensor(2.0), x, y))


def _matmuls() -> Iterator[Case]:
    shapes = [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 3)), ((3, 4), (4, 3)), ((2, 3, 4), (4, 3)),
              ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((1, 4), (4, 1))]  # fmt: skip
    for one, other in shapes:
        for dtype in (torch.float, torch.half, torch.double, torch.int32):
            yield Case(
                f"matmul {one} {other} {name_type(dtype)}",
                torch.matmul,
                (plain(dtype, shape=one), plain(dtype, 1, other)),
            )
    poison = torch.tensor([[NAN, 1.0], [INF, 0.0]])
    yield Case("matmul special", torch.matmul, (poison, torch.tensor([[0.0, 1], [2, 0]])))
    yield Case("matmul empty", lambda x, y: torch.matmul(x[:, :0], y[:0]), (draw(3, 4), draw(4, 3)))
    batch = draw(2, 3, 4)
    yield Case("bmm", torch.bmm, (batch, draw(2, 4, 3)))
    yield Case("mm", torch.mm, (draw(3, 4), draw(4, 3)))
    yield Case("mv", torch.mv, (draw(3, 4), draw(4)))
    yield Case("dot", torch.dot, (draw(4), draw(4, seed=1)))
    yield Case("outer", torch.outer, (draw(4), draw(3)))
    yield Case("mixed", torch.matmul, (draw(3, 4).half(), draw(4, 3)))


def _cdist() -> Iterator[Case]:
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, INF):
        yield Case(f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p), (draw(3, 4), draw(5, 4)))
        yield Case(
            f"cdist batch {p}",
            lambda x, y, p=p: torch.cdist(x, y, p), (draw(2, 3, 4), draw(2, 5, 4)),
        )  # fmt: skip


def _moments(function: Callable[..., Any]) -> Iterator[Case]:
    for dtype in FLOATS:
        yield Case(f"all {name_type(dtype)}", function, (plain(dtype),))
    for dim, keep, correction in itertools.product((None, 1, (0, -1)), (False, True), (0, 1, 2, 5)):
        yield Case(
            f"{dim} {keep} {correction}",
            lambda x, d=dim, k=keep, c=correction: function(x, d, correction=c, keepdim=k),
            (draw(3, 4),),
        )
    yield Case("unbiased", lambda x: function(x, unbiased=False), (draw(3, 4),))
    yield Case("unbiased dim", lambda x: function(x, 1, True), (draw(3, 4),))
    rows = torch.tensor([[NAN, 1.0], [2.0, 5.0]])
    yield Case("special", lambda x: function(x, 1), (rows,))


def _typed_reductions() -> Iterator[Case]:
    for name, dtype, to in itertools.product(("sum", "mean", "prod", "cumsum", "cumprod"), TYPES,
                                             (torch.float, torch.half, torch.int32)):  # fmt: skip
        if name == "mean" and not to.is_floating_point:
            continue
        function = getattr(torch, name)
        yield Case(
            f"{name} {name_type(dtype)} to {name_type(to)}",
            lambda x, f=function, t=to: f(x, 1, dtype=t),
            (plain(dtype),),
        )


POINTWISE: Table = {
    **{f"torch.{name}": partial(unary, getattr(torch, name)) for name in _UNARY},
    **{
        f"torch.{name}": partial(
            binary,
            getattr(torch, name),
            scalars=name not in _SCALARLESS,
            reflected=name in _REFLECTED,
            subnormals=name not in _NORMAL,
        )
        for name in _BINARY
    },
    "torch.rsub": _rsub,
    "torch.add(alpha)": _alpha,
    "torch.div(rounding_mode)": _div_modes,
    "torch.clamp": _clamp,
    "torch.addcdiv": partial(_ternary, torch.addcdiv),
    "torch.addcmul": partial(_ternary, torch.addcmul),
    "torch.cdist": _cdist,
    "torch.norm": _norms,
    "torch.isclose": partial(binary, torch.isclose, scalars=False),
    "torch.xlogy": partial(binary, torch.xlogy, scalars=False),
}
REDUCTIONS: Table = {
    **{
        f"torch.{name}": partial(reduction, getattr(torch, name), squares=name in ("std", "var"))
        for name in _REDUCTIONS
    },
    **{
        f"torch.{name}": partial(reduction, getattr(torch, name), several=False) for name in _SINGLE
    },
    "torch.std_mean": partial(_moments, torch.std_mean),
    "torch.var_mean": partial(_moments, torch.var_mean),
    "torch.std(correction)": partial(_moments, torch.std),
    "torch.var(correction)": partial(_moments, torch.var),
    "torch.max": partial(_extremes, torch.max),
    "torch.min": partial(_extremes, torch.min),
    "torch.sum(dtype)": _typed_reductions,
}
BLAS: Table = {"torch.addmm": _products, "torch.matmul": _matmuls}
