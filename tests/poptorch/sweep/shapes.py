"""Cases of PopTorch's operators that create, index, slice, join, sort and accumulate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tests.poptorch.sweep.pointwise import Table
from tests.poptorch.sweep.values import (
    INF,
    NAN,
    TYPES,
    WHOLE,
    Case,
    draw,
    name_type,
    plain,
    special,
)

X = draw(3, 4)


def _arange() -> Iterator[Case]:
    ranges: list[tuple[Any, ...]] = [
        (4,), (0,), (2.5,), (1, 5), (5, 1, -1), (0, 1, 0.25), (0, 7, 3), (1.5, 4), (-2, 2),
        (3, -3, -2.5), (2, 2), (0, 2**20 + 3, 2**18),
    ]  # fmt: skip
    for given, dtype in itertools.product(ranges, (None, *TYPES[1:])):
        if dtype is not None and dtype in (torch.uint8,) and min(given) < 0:
            continue
        yield Case(
            f"arange {given} {dtype}",
            lambda x, g=given, d=dtype: torch.arange(*g, dtype=d) + x[0, 0] * 0,
            (torch.ones(1, 1),),
        )


def _creation(function: Callable[..., Any]) -> Iterator[Case]:
    for dtype in (None, *TYPES):
        yield Case(
            f"of {dtype}", lambda x, d=dtype: function(x, d) + x[:1, :1] * 0, (draw(3, 4),)
        )  # fmt: skip
        if dtype is not None:
            yield Case(f"like {name_type(dtype)}", lambda x: function(x, None), (plain(dtype),))


def _full(x: Any, dtype: Any) -> Any:
    return torch.full_like(x, 2, dtype=dtype) if dtype is not torch.bool else x > 0


def _each(cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> Iterator[Case]:
    for name, (function, inputs) in cases.items():
        yield Case(name, function, inputs)


def _of_types(function: Callable[..., Any], *more: Any) -> Iterator[Case]:
    for dtype in TYPES:
        yield Case(name_type(dtype), function, (plain(dtype), *more))
        yield Case(
            f"special {name_type(dtype)}", function, (special(dtype)[:4].repeat(3, 1), *more)
        )


PLACES = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2], [2, 0, 2, 1]])
ROW = torch.tensor([2, 0, 2])
PUT = draw(3, 4, seed=5)


def _indexing() -> dict[str, Callable[[], Iterator[Case]]]:
    return {
        "torch.cat": lambda: itertools.chain(
            _of_types(lambda x: torch.cat([x, x], -1)),
            _each({
                "mixed": (lambda x, y: torch.cat([x, y]), (X, X.half())),
                "mixed int": (lambda x, y: torch.cat([x, y]), (X, X.int())),
                "empty": (lambda x: torch.cat([x, x[:0]]), (X,)),
            }),
        ),
        "torch.chunk": lambda: _each({
            f"{n} {d}": (lambda x, n=n, d=d: torch.chunk(x, n, d), (draw(5, 4),))
            for n in (1, 2, 3, 7) for d in (0, -1)
        }),
        "torch.split": lambda: _each({
            f"{n} {d}": (lambda x, n=n, d=d: torch.split(x, n, d), (draw(5, 5),))
            for n in (1, 2, 5, 9, [2, 3], [0, 5]) for d in (0, -1)
        }),
        "torch.gather": lambda: itertools.chain(
            _of_types(lambda x: torch.gather(x, 0, PLACES)),
            _each({
                "axis -1": (lambda x, i: torch.gather(x, -1, i), (X, PLACES)),
                "part": (lambda x, i: torch.gather(x, 1, i[:2, :1]), (X, PLACES)),
                "0-d": (lambda x, i: torch.gather(x, 0, i), (torch.tensor(2.0), torch.tensor(0))),
                "int index": (lambda x, i: torch.gather(x, 0, i.long()), (X, PLACES.int())),
            }),
        ),
        "torch.index_select": lambda: itertools.chain(
            _of_types(lambda x: torch.index_select(x, 0, ROW)),
            _each({
                "axis -1": (lambda x, i: torch.index_select(x, -1, i), (X, ROW)),
                "int": (lambda x, i: torch.index_select(x, -2, i), (X, ROW.int())),
                "0-d": (lambda x, i: torch.index_select(x, 0, i[0]), (X, ROW)),
            }),
        ),
        "torch.take_along_dim": lambda: _each({
            "dim": (lambda x, i: torch.take_along_dim(x, i, 0), (X, PLACES)),
            "flat": (lambda x, i: torch.take_along_dim(x, i), (X, PLACES)),
            "broadcast": (lambda x, i: torch.take_along_dim(x, i[:, :1], 0), (X, PLACES)),
        }),
        "torch.reshape": lambda: _of_types(lambda x: x.reshape(2, -1).reshape(12).view(3, 4)),
        "torch.roll": lambda: _each({
            f"{s} {d}": (lambda x, s=s, d=d: torch.roll(x, s, d), (X,))
            for s, d in ((1, None), (-1, 0), (5, 1), ((1, -2), (0, 1)), (0, 0), (-7, -1))
        }),
        "torch.stack": lambda: _of_types(lambda x: torch.stack([x, x], 1)),
        "torch.squeeze": lambda: _each({
            "all": (torch.squeeze, (draw(1, 3, 1),)), "one": (lambda x: x.squeeze(0), (X,)),
            "dims": (lambda x: x.squeeze((0, 2)), (draw(1, 3, 1),)),
            "negative": (lambda x: x.squeeze(-1), (draw(1, 3, 1),)),
        }),
        "torch.unsqueeze": lambda: _of_types(lambda x: x.unsqueeze(-1).unsqueeze(0)),
        "torch.t": lambda: _of_types(torch.t),
        "torch.transpose": lambda: _of_types(lambda x: torch.transpose(x, 0, -1)),
        "torch.unbind": lambda: _each({
            f"{d}": (lambda x, d=d: torch.unbind(x, d), (X,)) for d in (0, 1, -1)
        }),
        "torch.where": lambda: itertools.chain(
            _of_types(lambda x: torch.where(x > 0, x, x)),
            _each({
                f"{name_type(a)} {name_type(b)}": (
                    lambda x, y: torch.where(x > 0, x, y), (plain(a), plain(b, 1)))
                for a, b in itertools.permutations(TYPES, 2)
            }),
            _each({
                f"{name_type(a)} {n}": (lambda x, n=n: torch.where(x > 0, x, n), (plain(a),))
                for a in TYPES for n in (0, 1.5)
            }),
            _each({"nan": (lambda x: torch.where(x > 0, x, NAN), (X,))}),
        ),
        "tensor.expand": lambda: _of_types(lambda x: x[:, :1].expand(2, -1, 5)),
        "tensor.expand_as": lambda: _each({"": (lambda x, y: x[:1].expand_as(y), (X, X))}),
        "tensor.masked_fill": lambda: itertools.chain(
            _of_types(lambda x: x.masked_fill(x > 0, 0)),
            _each({
                f"{name_type(a)} {n}": (lambda x, n=n: x.masked_fill(PLACES > 1, n), (plain(a),))
                for a in TYPES for n in (1, -INF, NAN, 2.5)
            }),
            _each({"tensor": (lambda x, y: x.masked_fill(PLACES > 1, y), (X, torch.tensor(2.0)))}),
        ),
        "tensor.index_fill_": lambda: itertools.chain(
            _of_types(lambda x: x.clone().index_fill_(0, ROW, 1)),
            _each({
                "axis": (lambda x: x.index_fill(-1, ROW, 2.5), (X,)),
                "tensor": (lambda x, y: x.index_fill(0, ROW, y), (X, torch.tensor(2.0))),
                "nan": (lambda x: x.index_fill(0, ROW, NAN), (X,)),
            }),
        ),
        "torch.bincount": lambda: _each({
            "plain": (lambda i: torch.bincount(i, minlength=5), (PLACES.reshape(-1),)),
            "weights": (
                lambda i, w: torch.bincount(i, w, minlength=3), (PLACES.reshape(-1), draw(12))),
        }),
        "torch.bucketize": lambda: _each({
            f"{name_type(d)} {r} {o}": (
                lambda x, r=r, o=o: torch.bucketize(
                    x, torch.tensor([-1.0, 0.0, 0.5, 3.0]), right=r, out_int32=o),
                (special(d),))
            for d in (torch.float, torch.half, torch.int32) for r in (False, True)
            for o in (False, True)
        }),
        "tensor[...] = ": lambda: _each({
            "slice": (_set(lambda x: (slice(1, None), 2)), (X,)),
            "row": (_set(lambda x: (ROW,)), (X,)),
            "two": (_set(lambda x: (ROW[:2], torch.tensor([1, 3]))), (X,)),
            "mask": (_set(lambda x: x > 0), (X,)),
            "column": (_set(lambda x: (slice(None), torch.tensor([3, 1]))), (X,)),
            "put": (lambda x: x.index_put((ROW, torch.tensor([1, 3, 1])), PUT[:, 0]), (X,)),
            "accumulate": (
                lambda x: x.index_put((ROW, torch.tensor([1, 3, 1])), PUT[:, 0], accumulate=True),
                (X,)),
            "accumulate rows": (
                lambda x: x.index_put((ROW,), PUT, accumulate=True), (X,)),
            "mask put": (lambda x: x.index_put((x > 0,), torch.tensor(5.0)), (X,)),
        }),
        "tensor[...]": lambda: _each({
            "row": (lambda x: x[ROW], (X,)), "two": (lambda x: x[ROW, torch.tensor([1, 3, 0])], (X,)),
            "column": (lambda x: x[:, torch.tensor([[3, 1]])], (X,)),
            "negative": (lambda x: x[-1, -2:], (X,)), "step": (lambda x: x[::2, 1::3], (X,)),
            "ellipsis": (lambda x: x[..., None, 1], (X,)),
            "negative index": (lambda x: x[torch.tensor([-1, 0])], (X,)),
            "apart": (lambda x: x[ROW, :, torch.tensor([1, 3, 0])], (draw(3, 2, 4),)),
        }),
    }  # fmt: skip


def _set(find: Callable[[Any], Any]) -> Callable[..., Any]:
    def change(x: Any) -> Any:
        y = x.clone()
        y[find(x)] = 7.5
        return y

    return change


def _scatters() -> Iterator[Case]:
    src = draw(3, 4, seed=3)
    for dtype in TYPES:
        if dtype is torch.bool:
            continue
        yield Case(
            f"scatter {name_type(dtype)}",
            lambda x, s: torch.scatter(x, 1, PLACES[:, :1], s), (plain(dtype), src.to(dtype)),
        )  # fmt: skip
        yield Case(
            f"scatter value {name_type(dtype)}",
            lambda x: torch.scatter(x, 1, PLACES[:, :1], 3), (plain(dtype),),
        )  # fmt: skip
        for name in ("add", "multiply"):
            yield Case(
                f"scatter {name} {name_type(dtype)}",
                lambda x, s, n=name: torch.scatter(x, 0, PLACES, s, reduce=n),
                (plain(dtype), plain(dtype, 3)),
            )
            yield Case(
                f"scatter value {name} {name_type(dtype)}",
                lambda x, n=name: torch.scatter(x, -1, PLACES, 2, reduce=n),
                (plain(dtype),),
            )
        yield Case(
            f"scatter_add {name_type(dtype)}",
            lambda x, s: torch.scatter_add(x, 0, PLACES, s),
            (plain(dtype), plain(dtype, 3)),
        )
    for name, own, axis in itertools.product(("sum", "prod", "mean", "amax", "amin"),
                                             (True, False), (0, -1)):  # fmt: skip
        for dtype in (torch.float, torch.half, torch.int32):
            yield Case(
                f"scatter_reduce {name} {own} {axis} {name_type(dtype)}",
                lambda x, s, n=name, o=own, a=axis: torch.scatter_reduce(
                    x, a, PLACES, s, n, include_self=o
                ),
                (plain(dtype), plain(dtype, 3)),
            )
        if name != "sum":
            yield Case(
                f"index_reduce {name} {own} {axis}",
                lambda x, s, n=name, o=own, a=axis: torch.index_reduce(
                    x, a, ROW[: 3 if a == 0 else 2], s[:3, :2] if a else s, n, include_self=o
                ),
                (X, src),
            )
    yield Case("index_add", lambda x, s: x.index_add(0, ROW, s, alpha=0.5), (X, src))
    yield Case("index_copy", lambda x, s: x.index_copy(0, ROW[:2], s[:2]), (X, src))
    yield Case("scatter into views", lambda x: torch.zeros(3, 4).scatter(1, PLACES[:, :1], x), (X,))
    yield Case("one class", lambda i: torch.zeros(3, 4).scatter_(1, i[:, :1], 1.0), (PLACES,))
    yield Case("bool", lambda i: torch.zeros(3, 4, dtype=torch.bool).scatter(1, i, True), (PLACES,))
    special_src = torch.tensor([[NAN, INF, 1, 2.0]] * 3)
    yield Case("special add", lambda x, s: x.scatter_add(0, PLACES, s), (X, special_src))
    for name in ("amax", "amin", "prod"):
        yield Case(
            f"special {name}",
            lambda x, s, n=name: x.scatter_reduce(0, PLACES, s, n),
            (X, special_src),
        )


def _sorting() -> Iterator[Case]:
    for dtype in TYPES[1:]:
        x = special(dtype) if not dtype.is_floating_point else plain(dtype, shape=(13,))
        for descending in (False, True):
            yield Case(
                f"sort {name_type(dtype)} {descending}",
                lambda x, d=descending: torch.sort(x, descending=d),
                (torch.unique(x),),
            )
            yield Case(
                f"argsort {name_type(dtype)} {descending}",
                lambda x, d=descending: torch.argsort(x, -1, d, stable=True),
                (x,),
            )
        for largest, dim in itertools.product((True, False), (0, -1)):
            yield Case(
                f"topk {name_type(dtype)} {largest} {dim}",
                lambda x, g=largest, d=dim: torch.topk(x, 2, d, g).values,
                (plain(dtype),),
            )
    ends = torch.tensor([3.0, INF, -INF, 0.0, 1e-40, 2.0])
    yield Case("sort special", torch.sort, (ends,))
    yield Case("sort 0-d", torch.sort, (torch.tensor(2.0),))
    yield Case("topk 0-d", lambda x: torch.topk(x, 1), (torch.tensor(2.0),))
    yield Case("topk 0", lambda x: torch.topk(x, 0), (draw(3),))
    yield Case("kthvalue", lambda x: torch.kthvalue(x, 2), (X,))
    yield Case("randperm", lambda x: torch.sort(torch.randperm(4)).values + x, (torch.ones(4),))


def _scans() -> Iterator[Case]:
    rows = torch.tensor([[1.0, NAN, 2.0], [INF, -INF, 1.0], [2.0, 1.0, INF]])
    for name in ("cumsum", "cumprod"):
        function = getattr(torch, name)
        for dtype, dim in itertools.product(TYPES, (0, -1)):
            yield Case(
                f"{name} {name_type(dtype)} {dim}",
                lambda x, f=function, d=dim: f(x, d), (plain(dtype),),
            )  # fmt: skip
        yield Case(f"{name} special", lambda x, f=function: f(x, 1), (rows,))
        yield Case(f"{name} 0-d", lambda x, f=function: f(x, 0), (torch.tensor(2.0),))
    for name in ("cummax", "cummin"):
        function = getattr(torch, name)
        yield Case(name, lambda x, f=function: f(x, 1), (X,))
        yield Case(f"{name} special", lambda x, f=function: f(x, 1), (rows,))


def _others() -> dict[str, Callable[[], Iterator[Case]]]:
    three = draw(3, 4)
    return {
        "torch.cross": lambda: _each({
            "dim": (lambda x, y: torch.cross(x, y, dim=0), (three, draw(3, 4, seed=2))),
            "linalg": (lambda x, y: torch.linalg.cross(x, y), (draw(4, 3), draw(1, 3))),
            "int": (lambda x, y: torch.cross(x, y, dim=0), (plain(torch.int32), plain(torch.int32))),
        }),
        "torch.meshgrid": lambda: _each({
            k: (lambda x, y, k=k: torch.meshgrid(x, y, indexing=k), (draw(3), draw(2)))
            for k in ("ij", "xy")
        }),
        "torch.cartesian_prod": lambda: _each({
            "two": (torch.cartesian_prod, (draw(3), draw(2))),
            "one": (torch.cartesian_prod, (draw(3),)),
        }),
        "torch.tensordot": lambda: _each({
            f"{d}": (lambda x, y, d=d: torch.tensordot(x, y, d), (draw(2, 3, 4), draw(4, 3, 2)))
            for d in (1, ([2, 1], [0, 1]), ([-1], [0]), ([1], [-2]))
        } | {"0": (lambda x, y: torch.tensordot(x, y, 0), (draw(2), draw(3)))}),
        "torch.einsum": lambda: _each({
            e: (lambda x, y, e=e: torch.einsum(e, x, y), (draw(2, 3, 4), draw(2, 4, 3)))
            for e in ("bij,bjk->bik", "bij,bjk->", "bij,cji->bc", "...ij,...ji->...i")
        }),
        "F.one_hot": lambda: _each({
            name_type(d): (lambda i: F.one_hot(i.long(), 5), (PLACES.to(d),)) for d in WHOLE
        } | {"3": (lambda i: F.one_hot(i, 3), (PLACES,)), "unknown": (F.one_hot, (PLACES,))}),
        "torch.triu": lambda: _each({
            f"{f.__name__} {k}": (lambda x, f=f, k=k: f(x, k), (draw(3, 4),))
            for f in (torch.triu, torch.tril) for k in (0, 1, -2)
        }),
        "torch.flip": lambda: _of_types(lambda x: torch.flip(x, (0, -1))),
    }  # fmt: skip


SHAPES: Table = {
    "torch.arange": _arange,
    "torch.full_like": partial(_creation, _full),
    "torch.ones_like": partial(_creation, lambda x, dtype: torch.ones_like(x, dtype=dtype)),
    "torch.zeros_like": partial(_creation, lambda x, dtype: torch.zeros_like(x, dtype=dtype)),
    "torch.Tensor.new_ones": partial(_creation, lambda x, dtype: x.new_ones((3, 4), dtype=dtype)),
    "torch.Tensor.new_zeros": partial(_creation, lambda x, dtype: x.new_zeros((1, 4), dtype=dtype)),
    "torch.full": partial(
        _creation, lambda x, dtype: torch.full((3, 4), 1, dtype=dtype or x.dtype)
    ),
    "tensor.fill": partial(_creation, lambda x, dtype: torch.zeros(4, dtype=dtype).fill_(1)),
    **_indexing(),
    "torch.scatter": _scatters,
    "torch.sort": _sorting,
    "torch.cumsum": _scans,
    **_others(),
}
