"""PopTorch's documented list of supported operators, each with a small call.

The list is "IPU supported operations" of PopTorch's user guide, under its headings; here are those
on whole tensors. A call is a function and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def _draw(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = _draw(3, 4)
Y = _draw(3, 4, seed=1)
POSITIVE = X.abs() + 0.1
UNIT = torch.tanh(X)
WIDE = _draw(2, 4, 6)
WHOLE = torch.tensor([[5, -7, 2, 0], [1, 9, -3, 4], [8, 6, -1, 7]], dtype=torch.int32)
OTHER = torch.tensor([[3, 2, -2, 1], [4, -5, 6, 7], [2, 3, 9, -4]], dtype=torch.int32)
TRUTH = X > 0


def _unary(*functions: Callable[..., Any], x: Any = X) -> dict[str, Call]:
    return {each.__name__: (each, (x,)) for each in functions}


def _binary(*functions: Callable[..., Any], x: Any = X, y: Any = Y) -> dict[str, Call]:
    return {each.__name__: (each, (x, y)) for each in functions}


CREATION: dict[str, Call] = {
    "arange": (lambda x: x + torch.arange(4), (X,)),
    "fill": (lambda x: x * 1 + torch.empty(4).fill_(2), (X,)),
    "full": (lambda x: x + torch.full((3, 4), 2.5), (X,)),
    "full_like": (lambda x: torch.full_like(x, 2.5) + x, (X,)),
    "new_ones": (lambda x: x.new_ones(3, 1) + x, (X,)),
    "new_zeros": (lambda x: x.new_zeros(3, 1) + x, (X,)),
    "ones": (lambda x: x + torch.ones(4), (X,)),
    "ones_like": (lambda x: torch.ones_like(x) + x, (X,)),
    "zeros": (lambda x: x + torch.zeros(4), (X,)),
    "zeros_like": (lambda x: torch.zeros_like(x) + x, (X,)),
}

_POINTWISE = (
    torch.abs, torch.atan, torch.asinh, torch.ceil, torch.cos, torch.cosh, torch.exp, torch.expm1,
    torch.floor, torch.frac, torch.neg, torch.reciprocal, torch.round, torch.sigmoid, torch.sign,
    torch.sin, torch.sinh, torch.square, torch.tan, torch.tanh, torch.trunc,
)  # fmt: skip

POINTWISE: dict[str, Call] = {
    **_unary(*_POINTWISE),
    **_unary(torch.acos, torch.asin, torch.atanh, x=UNIT),
    "acosh": (torch.acosh, (POSITIVE + 1,)),
    **_unary(torch.log, torch.log10, torch.log1p, torch.log2, torch.rsqrt, torch.sqrt, x=POSITIVE),
    **_binary(
        torch.add, torch.div, torch.floor_divide, torch.fmod, torch.mul, torch.remainder,
        torch.sub, torch.true_divide, torch.atan2, torch.maximum, torch.minimum,
    ),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=2), (X, Y)),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=2), (X, Y)),
    "rsub": (lambda x: torch.rsub(x, 2), (X,)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (X, Y, POSITIVE)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (X, Y, POSITIVE)),
    "amax": (lambda x: torch.amax(x, 1), (X,)),
    "amin": (lambda x: torch.amin(x, (0, 1), keepdim=True), (X,)),
    **_binary(torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, x=WHOLE, y=OTHER),
    "bitwise_not": (torch.bitwise_not, (WHOLE,)),
    "bitwise_not of truth": (torch.bitwise_not, (TRUTH,)),
    "bitwise_and of truth": (torch.bitwise_and, (TRUTH, ~TRUTH)),
    **{
        f"cdist {p}": (lambda x, y, p=p: torch.cdist(x, y, p), (X, Y))
        for p in (0.0, 1.0, 2.0, 3.0, float("inf"))
    },
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.5), (X,)),
    "clamp of tensors": (lambda x, y: torch.clamp(x, -y.abs(), y.abs()), (X, Y)),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.5), (X,)),
    "clamp_min": (lambda x: torch.clamp_min(x, 0.5), (X,)),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, Y)),
    "div of integers": (torch.div, (WHOLE, OTHER)),
    "floor_divide of integers": (torch.floor_divide, (WHOLE, OTHER)),
    "fmod of integers": (torch.fmod, (WHOLE, OTHER)),
    "remainder of integers": (torch.remainder, (WHOLE, OTHER)),
    "logical_and": (torch.logical_and, (X, TRUTH)),
    "logical_or": (torch.logical_or, (WHOLE, TRUTH)),
    "logical_xor": (torch.logical_xor, (WHOLE, TRUTH)),
    "logical_not": (torch.logical_not, (WHOLE,)),
    "norm": (lambda x: torch.norm(x, dim=1), (X,)),
    "norm fro": (lambda x: torch.norm(x, p="fro"), (X,)),
    "norm 1": (lambda x: torch.norm(x, p=1, dim=0, keepdim=True), (X,)),
    "norm inf": (lambda x: torch.norm(x, p=float("inf"), dim=0), (X,)),
    "pow": (torch.pow, (POSITIVE, Y)),
    "pow scalar": (lambda x: torch.pow(x, 3), (X,)),
    "pow of a scalar": (lambda x: torch.pow(2.0, x), (X,)),
    "pow of integers": (lambda x: torch.pow(x, 2), (WHOLE,)),
    "round decimals": (lambda x: torch.round(x, decimals=1), (X,)),
    "erf": (torch.erf, (X,)),
    "isinf": (torch.isinf, (X / 0,)),
    "xlogy": (torch.xlogy, (POSITIVE, POSITIVE)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "nan_to_num": (torch.nan_to_num, (X,)),
}  # fmt: skip

REDUCTIONS: dict[str, Call] = {
    **_unary(torch.all, torch.any, x=TRUTH),
    "all dim": (lambda x: torch.all(x, 1), (TRUTH,)),
    "any dim": (lambda x: torch.any(x, 0, keepdim=True), (TRUTH,)),
    "all of integers": (lambda x: torch.all(x, 1), (WHOLE,)),
    "any of floats": (lambda x: torch.any(x), (X,)),
    **_unary(
        torch.argmax, torch.argmin, torch.count_nonzero, torch.mean, torch.median, torch.prod,
        torch.std, torch.std_mean, torch.sum, torch.var, torch.var_mean,
    ),
    "argmax dim": (lambda x: torch.argmax(x, 1), (X,)),
    "argmin dim": (lambda x: torch.argmin(x, 0, keepdim=True), (X,)),
    "count_nonzero dim": (lambda x: torch.count_nonzero(x, 1), (WHOLE,)),
    "mean dim": (lambda x: torch.mean(x, (0, 1), keepdim=True), (X,)),
    "mean of integers": (lambda x: torch.mean(x, 0, dtype=torch.float), (WHOLE,)),
    "median dim": (lambda x: torch.median(x, 1), (X,)),
    "prod dim": (lambda x: torch.prod(x, 1), (X,)),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), (X,)),
    "std dim": (lambda x: torch.std(x, 1, unbiased=False), (X,)),
    "std_mean dim": (lambda x: torch.std_mean(x, 1), (X,)),
    "sum of integers": (lambda x: torch.sum(x, 1), (WHOLE,)),
    "sum of truth": (lambda x: torch.sum(x, 1), (TRUTH,)),
    "var dim": (lambda x: torch.var(x, (0, 1), correction=2), (X,)),
    "var_mean dim": (lambda x: torch.var_mean(x, 0, keepdim=True), (X,)),
}  # fmt: skip

COMPARISON: dict[str, Call] = {
    **_binary(torch.eq, torch.ge, torch.gt, torch.le, torch.lt, torch.ne, x=WHOLE, y=OTHER),
    "eq scalar": (lambda x: torch.eq(x, 2), (WHOLE,)),
    "max": (torch.max, (X,)),
    "max dim": (lambda x: torch.max(x, 1), (X,)),
    "max of two": (torch.max, (X, Y)),
    "min": (torch.min, (X,)),
    "min dim": (lambda x: torch.min(x, 0, keepdim=True), (X,)),
    "min of two": (torch.min, (X, Y)),
    "isnan": (torch.isnan, (X / X.floor().clamp(0),)),
    "topk": (lambda x: torch.topk(x, 2), (X,)),
    "topk smallest": (lambda x: torch.topk(x, 2, 0, largest=False), (X,)),
    "argsort": (torch.argsort, (X,)),
    "argsort stable": (lambda x: torch.argsort(x, dim=1, stable=True), (WHOLE // 4,)),
    "sort": (torch.sort, (X,)),
    "sort descending": (lambda x: torch.sort(x, 0, descending=True), (X,)),
    "sort stable": (lambda x: torch.sort(x, stable=True), (WHOLE // 4,)),
    "isclose": (torch.isclose, (X, X + 1e-9)),
}

LINALG: dict[str, Call] = {
    "linalg.norm": (torch.linalg.norm, (X,)),
    "linalg.norm of vectors": (lambda x: torch.linalg.norm(x, 3, 1), (X,)),
    "linalg.norm 1": (lambda x: torch.linalg.norm(x, 1), (X,)),
    **{
        f"linalg.matrix_norm {p}": (lambda x, p=p: torch.linalg.matrix_norm(x, p), (WIDE,))
        for p in ("fro", 1, -1, float("inf"), -float("inf"))
    },
    **{
        f"linalg.vector_norm {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, 1), (X,))
        for p in (0, 1, 2, 3.5, float("inf"), -float("inf"))
    },
}

OTHERS: dict[str, Call] = {
    "cumsum": (lambda x: torch.cumsum(x, 1), (X,)),
    "cumsum of integers": (lambda x: torch.cumsum(x, 0), (WHOLE,)),
    "cumprod": (lambda x: torch.cumprod(x, 1), (X,)),
    "cummax": (lambda x: torch.cummax(x, 1), (X,)),
    "cummin": (lambda x: torch.cummin(x, 0), (X,)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), (X,)),
    "cross": (lambda x, y: torch.cross(x, y, dim=0), (X, Y)),
    "linalg.cross": (lambda x, y: torch.linalg.cross(x, y, dim=0), (X, Y)),
    "meshgrid": (lambda x, y: torch.meshgrid(x[0], y[1], indexing="ij"), (X, Y)),
    "meshgrid xy": (lambda x, y: torch.meshgrid(x[0], y[1], indexing="xy"), (X, Y)),
    "cartesian_prod": (lambda x, y: torch.cartesian_prod(x[0], y[1]), (X, Y)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([0], [0])), (X, Y)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (X, Y)),
    "tril": (lambda x: torch.tril(x, 1), (X,)),
    "triu": (lambda x: torch.triu(x, -1), (X,)),
    "flip": (lambda x: torch.flip(x, (0, 1)), (X,)),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, 2, 1), (X,)),
    "tile": (lambda x: torch.tile(x, (2, 2)), (X,)),
    "diag": (lambda x: torch.diag(x), (X,)),
    "diag of a vector": (lambda x: torch.diag(x[0]), (X,)),
    "diff": (lambda x: torch.diff(x), (X,)),
    "unfold": (lambda x: x.unfold(1, 2, 1), (X,)),
    "searchsorted": (
        lambda x: torch.searchsorted(torch.tensor([-0.5, 0.0, 0.5]), x),
        (X,),
    ),
}

BLAS: dict[str, Call] = {
    "addmm": (lambda z, x, y: torch.addmm(z, x, y.t(), beta=0.5, alpha=2), (_draw(3, 3), X, Y)),
    "matmul": (lambda x, y: torch.matmul(x, y.t()), (X, Y)),
    "matmul of vectors": (lambda x, y: torch.matmul(x[0], y[0]), (X, Y)),
    "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), (WIDE,)),
    "baddbmm": (lambda x: torch.baddbmm(x[:, :, :4], x, x.transpose(1, 2), beta=2), (WIDE,)),
    "addmv": (lambda x, y: torch.addmv(x[:, 0], x, y[0], beta=0, alpha=2), (X, Y)),
    "dot": (lambda x, y: torch.dot(x[0], y[0]), (X, Y)),
}

SECTIONS: dict[str, dict[str, Call]] = {
    "creation": CREATION,
    "pointwise": POINTWISE,
    "reductions": REDUCTIONS,
    "comparison": COMPARISON,
    "linalg": LINALG,
    "others": OTHERS,
    "blas": BLAS,
}
