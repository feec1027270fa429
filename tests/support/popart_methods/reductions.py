"""Reductions, extremes, sorts, and sums along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from popart_methods.cases import VERSIONS, Array, Case, own, standard
from popart_methods.values import FLOATS, TYPES, mixed, plain

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reducel1": lambda x, **k: np.abs(x).sum(**k),
    "reducel2": lambda x, **k: np.sqrt((x.astype(np.float64) ** 2).sum(**k)),
    "reducelogsum": lambda x, **k: np.log(x.sum(**k)),
    "reducelogsumexp": lambda x, **k: _log_sum_exp(x, **k),
    "reducemax": lambda x, **k: x.max(**k, **({} if x.size else {"initial": -np.inf})),
    "reducemean": lambda x, **k: x.mean(**k),
    "reducemin": lambda x, **k: x.min(**k, **({} if x.size else {"initial": np.inf})),
    "reduceprod": lambda x, **k: x.prod(**k),
    "reducesum": lambda x, **k: x.sum(**k),
    "reducesumsquare": lambda x, **k: (x * x).sum(**k),
}
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"keepdims": 0},
    {"axes": [0]},
    {"axes": [-1], "keepdims": 0},
    {"axes": [0, 2]},
    {"axes": [2, 0], "keepdims": 0},
    {"axes": []},
    {"axes": [0, 1, 2], "keepdims": 0},
)


def _log_sum_exp(x: Array, **named: Any) -> Array:
    largest = x.max(axis=named["axis"], keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    found = np.log(np.exp(x - shift).sum(**named))
    axis = named["axis"]
    return found + (shift if named["keepdims"] else shift.squeeze(axis))


def _reduced(function: Callable[..., Any], form: dict[str, Any]) -> Callable[[Array], Array]:
    def compute(x: Array) -> Array:
        axes = tuple(form["axes"]) if "axes" in form else tuple(range(x.ndim))
        axes = tuple({axis % x.ndim: None for axis in axes if axis < x.ndim})
        wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
        if not axes:
            return np.asarray(function(wide[..., None], axis=(-1,), keepdims=False))
        return np.asarray(function(wide, axis=axes, keepdims=bool(form.get("keepdims", 1))))

    return compute


def _iter_reductions() -> Iterator[Case]:
    for name, function in REDUCTIONS.items():
        for form in FORMS:
            expect = _reduced(function, form)
            for dtype in TYPES if form in FORMS[2:4] else FLOATS:
                label = f"{np.dtype(dtype)} {form}"
                yield standard(
                    name, label, [plain((2, 3, 4), dtype)], expect=expect, rtol=1e-4, **form
                )
                if dtype in FLOATS:
                    x = mixed((2, 3, 4), dtype)
                    yield standard(name, f"{label} special", [x], expect=expect, rtol=1e-4, **form)
        for shape, form in (
            ((), {}),
            ((), {"axes": []}),
            ((0, 3), {"axes": [0]}),
            ((0, 3), {"axes": [1]}),
            ((2, 0), {}),
            ((1,), {"axes": [0], "keepdims": 0}),
            ((5,), {}),
            ((2, 3), {"axes": [5]}),
            ((2, 3), {"axes": [-3]}),
            ((2, 3), {"axes": [1, 1]}),
            ((2, 3), {"axes": [1, -1]}),
        ):
            yield standard(
                name,
                f"shape {shape} {form}",
                [plain(shape)],
                expect=_reduced(function, form),
                rtol=1e-4,
                **form,
            )
        for place in range(6):
            x = plain((6,), seed=3)
            x[place] = np.nan
            yield standard(name, f"NaN at {place}", [x], expect=_reduced(function, {}), rtol=1e-4)
        for version in VERSIONS:
            yield standard(
                name,
                f"opset {version}",
                [plain((2, 3, 4))],
                expect=_reduced(function, FORMS[2]),
                opset=version,
                rtol=1e-4,
                **FORMS[2],
            )


def _iter_extremes() -> Iterator[Case]:
    for name, function in (("argmax", np.argmax), ("argmin", np.argmin)):
        for dtype in TYPES:
            for axis, keepdims in ((0, 1), (1, 0), (-1, 1)):

                def expect(
                    x: Array, f: Any = function, axis: int = axis, k: int = keepdims
                ) -> Array:
                    return f(x, axis=axis, keepdims=bool(k))

                label = f"{np.dtype(dtype)} axis {axis} keepdims {keepdims}"
                x = plain((3, 4, 2), dtype, axis + 1)
                yield standard(name, label, [x], axis, keepdims, expect=expect)
        for dtype in FLOATS:
            for values in (
                [np.inf, -np.inf, 0.0],
                [-0.0, 0.0],
                [1.0, 1.0],
                [-np.inf, -np.inf],
                [np.nan, 1.0],
            ):
                yield standard(
                    name,
                    f"{np.dtype(dtype)} {values}",
                    [np.array(values, dtype)],
                    expect=lambda x, f=function: f(x, keepdims=True),
                )
        for shape, axis in (((), 0), ((2, 3), 2), ((2, 3), -3), ((0, 3), 0), ((0, 3), 1)):
            yield standard(
                name,
                f"shape {shape} axis {axis}",
                [plain(shape)],
                axis,
                expect=lambda x, f=function, a=axis: f(x, axis=a, keepdims=True),
            )
        for version in VERSIONS:
            yield standard(
                name,
                f"opset {version}",
                [plain((3, 4), seed=5)],
                opset=version,
                expect=lambda x, f=function: f(x, axis=0, keepdims=True),
            )


def _top(x: Array, count: int, axis: int, largest: bool) -> tuple[Array, Array]:
    order = np.argsort(
        -x.astype(np.float64) if largest else x.astype(np.float64), axis=axis, kind="stable"
    )
    order = np.take(order, range(count), axis=axis)
    return np.take_along_axis(x, order, axis), order


def _iter_sorts() -> Iterator[Case]:
    for dtype in TYPES:
        values = np.random.default_rng(1).permutation(24).reshape(2, 3, 4)
        x = values.astype(dtype) if dtype != np.bool_ else values % 2 > 0
        for axis in (-1, 0, 1):
            for descending in (0, 1):
                if dtype == np.bool_ and axis != 0:
                    continue
                yield own(
                    "sort",
                    f"{np.dtype(dtype)} axis {axis} descending {descending}",
                    [x],
                    lambda x, a=axis, d=descending: _top(x, x.shape[a], a, bool(d)),
                    axis,
                    descending,
                )
            for largest in (0, 1):

                def build(
                    b: Any, names: list[str], axis: int = axis, largest: int = largest
                ) -> Any:
                    k = b.aiOnnxOpset11.constant(np.array([2], np.int64))
                    return b.aiOnnxOpset11.topk([*names, k], axis, largest, 1)

                yield Case(
                    "aiOnnx.topk",
                    f"{np.dtype(dtype)} axis {axis} largest {largest}",
                    (x,),
                    build,
                    lambda x, a=axis, big=largest: _top(x, 2, a, bool(big)),
                )
        yield own("reducemedian", f"{np.dtype(dtype)}", [x], lambda x: _median(x, (1,), True), [1])
    for dtype in FLOATS:
        x = np.array([[3, np.nan, 1, np.inf], [-np.inf, 0.0, -0.0, 2]], dtype)
        for descending in (0, 1):
            yield own(
                "sort",
                f"{np.dtype(dtype)} special {descending}",
                [x[1:]],
                lambda x, d=descending: _top(x, 4, 1, bool(d)),
                -1,
                descending,
            )
        yield own(
            "sort",
            f"{np.dtype(dtype)} equal",
            [np.array([1, 0, 1, 0, 1], dtype)],
            lambda x: _top(x, 5, 0, False),
            0,
            0,
            1,
        )
    for shape, axis in (((), 0), ((2, 3), 2), ((0, 3), 0), ((2, 0), 0), ((1,), 0)):
        yield own(
            "sort",
            f"shape {shape} axis {axis}",
            [plain(shape)],
            lambda x, a=axis: _top(x, x.shape[a], a, False),
            axis,
        )
    for axes, keepdims in ((None, 1), ([0, 1], 0), ([1], 1), ([-1], 0), ([2, 0], 1), ([], 1)):
        for shape in ((2, 3, 4), (1, 1, 1), (3, 3, 3)):
            x = (
                np.random.default_rng(2)
                .permutation(int(np.prod(shape)))
                .reshape(shape)
                .astype(np.float32)
            )
            yield own(
                "reducemedian",
                f"{shape} axes {axes} keepdims {keepdims}",
                [x],
                lambda x, a=axes, k=keepdims: _median(
                    x, tuple(range(x.ndim)) if a is None else tuple(e % x.ndim for e in a), bool(k)
                ),
                axes,
                keepdims,
            )
    for version in VERSIONS:
        for count in (0, 1, 4, 5):

            def make(b: Any, names: list[str], count: int = count, version: int = version) -> Any:
                o = getattr(b, f"aiOnnxOpset{version}")
                if version < 10:
                    return o.topk(names, k=count)
                return o.topk([*names, o.constant(np.array([count], np.int64))])

            yield Case(
                "aiOnnx.topk",
                f"opset {version} k {count}",
                (np.array([[3, 1, 4, 2]], np.float32),),
                make,
                lambda x, c=count: _top(x, c, 1, True),
                version,
            )


def _median(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[Array, Array]:
    if not axes:
        return x, np.zeros(x.shape, np.int64)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    flat = x.transpose([*kept, *sorted(axes)]).reshape([*(x.shape[a] for a in kept), -1])
    order = np.argsort(flat, axis=-1, kind="stable")
    place = order[..., (flat.shape[-1] - 1) // 2]
    values = np.take_along_axis(flat, place[..., None], -1)[..., 0]
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)] if keepdims else place.shape
    return values.reshape(shape), place.reshape(shape)


def _iter_sums() -> Iterator[Case]:
    for dtype in (np.float32, np.float16, np.int32, np.int64, np.uint32, np.int8, np.bool_):
        for axis in (0, 1, -1, 2, -3):
            for exclusive in (0, 1):
                for reverse in (0, 1):

                    def build(
                        b: Any,
                        names: list[str],
                        axis: int = axis,
                        e: int = exclusive,
                        r: int = reverse,
                    ) -> str:
                        o = b.aiOnnxOpset11
                        return o.cumsum([*names, o.constant(np.array(axis, np.int64))], e, r)

                    def expect(
                        x: Array, axis: int = axis, e: int = exclusive, r: int = reverse
                    ) -> Array:
                        x = x.astype(np.float64)
                        x = np.flip(x, axis) if r else x
                        found = np.cumsum(x, axis)
                        found = found - x if e else found
                        return np.flip(found, axis) if r else found

                    yield Case(
                        "aiOnnx.cumsum",
                        f"{np.dtype(dtype)} {axis} {exclusive} {reverse}",
                        (plain((2, 3), dtype),),
                        build,
                        expect,
                    )
    for dtype in FLOATS:
        for right in (0, 1):
            for boundaries in (
                [1.0, 2.0, 3.0],
                [3.0, 1.0, 2.0],
                [2.0],
                [],
                [1.0, 1.0, 1.0],
                [5, 4, 3, 2, 1],
                [np.nan, 1.0],
                [-np.inf, 0.0, np.inf],
            ):
                x = np.array([[0.5, 1, 1.5, 2, 2.5], [3, 3.5, np.nan, np.inf, -np.inf]], dtype)
                yield own(
                    "bucketize",
                    f"{np.dtype(dtype)} {boundaries} right {right}",
                    [x, np.array(boundaries, dtype)],
                    lambda x, b, r=right: _search(x, b, bool(r)),
                    right,
                )
    for dtype in (np.int32, np.int64, np.uint32, np.int8):
        yield own(
            "bucketize",
            f"{np.dtype(dtype)}",
            [np.arange(8).astype(dtype), np.array([2, 5], dtype)],
            lambda x, b: _search(x, b, False),
        )
    yield own(
        "bucketize",
        "two types",
        [plain((3,)), plain((2,), np.float16)],
        lambda x, b: _search(x, b, False),
    )
    yield own(
        "bucketize",
        "boundaries of 2 axes",
        [plain((3,)), plain((1, 2))],
        lambda x, b: _search(x, b, False),
    )
    yield own(
        "bucketize",
        "no elements",
        [plain((0, 2)), plain((2,))],
        lambda x, b: np.zeros(x.shape, int),
    )
    yield own(
        "bucketize",
        "a scalar",
        [plain(()), np.array([-1, 4], np.float32)],
        lambda x, b: _search(x, b, False),
    )


def _search(x: Array, boundaries: Array, right: bool) -> Array:
    """Search each value by halving, as torch.bucketize does."""

    def find(value: float) -> int:
        first, end = 0, len(boundaries)
        while first < end:
            middle = (first + end) // 2
            if (boundaries[middle] > value) if right else (boundaries[middle] >= value):
                end = middle
            else:
                first = middle + 1
        return first

    return np.array([find(value) for value in x.ravel()], np.int32).reshape(x.shape)


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_reductions()
    yield from _iter_extremes()
    yield from _iter_sorts()
    yield from _iter_sums()
