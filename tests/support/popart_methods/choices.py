"""Methods that choose or write elements by indices, and that make tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from popart_methods.cases import Array, Case, own, standard
from popart_methods.shapes import with_constants
from popart_methods.values import TYPES, mixed, plain


def _iter_choices() -> Iterator[Case]:
    for dtype in TYPES:
        x = mixed((3, 4), dtype)
        for kind in (np.int32, np.int64, np.uint32, np.int16, np.uint8):
            places = np.array([[2, 0], [1, 1]], kind)
            if dtype == np.float32 or kind == np.int32:
                yield standard(
                    "gather",
                    f"{np.dtype(dtype)} {np.dtype(kind)}",
                    [x, places],
                    expect=lambda x, i: x[i],
                )
                yield standard(
                    "gather",
                    f"{np.dtype(dtype)} {np.dtype(kind)} axis 1",
                    [x, places],
                    1,
                    expect=lambda x, i: np.take(x, i, 1),
                )
                yield own(
                    "groupedgather",
                    f"{np.dtype(dtype)} {np.dtype(kind)}",
                    [np.stack([x, x[::-1]]), np.array([[2, 0], [1, 1]], kind)],
                    lambda x, i: np.stack([x[g][i[g]] for g in range(2)]),
                    1,
                    2,
                )
                picks = np.array([[2, 0, 1, 1]], kind)
                yield standard(
                    "gatherelements",
                    f"{np.dtype(dtype)} {np.dtype(kind)}",
                    [x, picks],
                    expect=lambda x, i: np.take_along_axis(x, i.astype(int), 0),
                )
                for name in ("scatterelements", "scatter"):
                    yield standard(
                        name,
                        f"{np.dtype(dtype)} {np.dtype(kind)}",
                        [x, picks, plain((1, 4), dtype, 3)],
                        expect=_scatter,
                    )
                yield standard(
                    "gathernd",
                    f"{np.dtype(dtype)} {np.dtype(kind)}",
                    [x, np.array([[2, 0], [1, 1]], kind)],
                    expect=lambda x, i: x[i[:, 0], i[:, 1]],
                )
                yield standard(
                    "scatternd",
                    f"{np.dtype(dtype)} {np.dtype(kind)}",
                    [x, np.array([[2], [1]], kind), plain((2, 4), dtype, 3)],
                    expect=_scatter_rows,
                )
        yield standard(
            "gather",
            f"{np.dtype(dtype)} negative",
            [x, np.array([-1, 0], np.int32)],
            expect=lambda x, i: x[i],
        )
    for indices in ([], [3], [-4], [0]):
        yield standard(
            "gather",
            f"indices {indices}",
            [plain((3, 2)), np.array(indices, np.int32)],
            expect=lambda x, i: x[i] if i.size == 0 or -3 <= i[0] < 3 else np.zeros((1, 2)),
        )
    yield standard(
        "gather",
        "a scalar index",
        [plain((3, 2)), np.array(1, np.int32)],
        expect=lambda x, i: x[int(i)],
    )
    yield standard("gather", "axis 5", [plain((3, 2)), np.array([1], np.int32)], 5)
    yield standard(
        "gather",
        "axis -1",
        [plain((3, 2)), np.array([1], np.int32)],
        -1,
        expect=lambda x, i: x[:, i],
    )
    yield standard(
        "gather",
        "no rows",
        [plain((0, 2)), np.array([], np.int32)],
        expect=lambda x, i: np.zeros((0, 2)),
    )
    for axis in (0, 1, -1, 2):
        for depth in (3, 1):
            for kind in (np.float32, np.float16, np.int32, np.int64, np.bool_):
                for on in (np.int32, np.int64, np.float32):

                    def build(
                        b: Any, names: list[str], axis: int = axis, d: int = depth, k: Any = kind
                    ) -> str:
                        o = b.aiOnnxOpset11
                        return o.onehot(
                            [
                                *names,
                                o.constant(np.array(d, np.int64)),
                                o.constant(np.array([0, 1]).astype(k)),
                            ],
                            axis,
                        )

                    yield Case(
                        "aiOnnx.onehot",
                        f"{axis} {depth} {np.dtype(kind)} {np.dtype(on)}",
                        (np.array([0, 2, -1, 5], on),),
                        build,
                        lambda i, a=axis, d=depth: _one_hot(i, d, a),
                    )
    for shape in ((2, 3), (0,), ()):
        for kind in ("float32", "int32", "int64", "bool", "float16"):
            yield Case(
                "aiOnnx.constantofshape",
                f"{shape} {kind}",
                (),
                lambda b, n, s=shape, k=kind: b.aiOnnxOpset11.constantofshape(
                    [b.aiOnnxOpset11.constant(np.array(s, np.int64))], np.array([1], k)
                ),
                lambda s=shape, k=kind: np.ones(s, k),
            )
    for dtype in TYPES:
        for shape in ((2, 3), (), (0,)):
            value = mixed(shape, dtype)
            yield Case(
                "aiOnnx.constant",
                f"{np.dtype(dtype)} {shape}",
                (),
                lambda b, n, v=value: b.aiOnnxOpset11.identity([b.aiOnnxOpset11.constant(v)]),
                lambda v=value: v,
            )
        yield standard("nonzero", f"{np.dtype(dtype)}", [plain((2, 3), dtype)])
        yield standard(
            "compress", f"{np.dtype(dtype)}", [plain((3,), dtype), np.array([True, False, True])]
        )
        yield standard("unique", f"{np.dtype(dtype)}", [plain((3,), dtype)], 1)
        for k in (0, 1, -1, 5):
            yield standard(
                "eyelike",
                f"{np.dtype(dtype)} {k}",
                [plain((2, 3), dtype)],
                k=k,
                expect=lambda x, k=k: np.eye(2, 3, k),
            )
    for start, end, step in ((0, 5, 1), (5, 0, -2), (0, 0, 1), (1, 4, 5), (0, 1, 0), (0, -3, 1)):
        for kind in (np.int32, np.int64, np.float32):
            yield with_constants(
                "range",
                f"{start} {end} {step} {np.dtype(kind)}",
                [],
                [np.array(e, kind) for e in (start, end, step)],
                expect=lambda s=start, e=end, t=step: np.arange(s, e, t),
            )
    for lengths in ([1, 3, 2], [0, 0, 0], [3, 3, 3]):
        for kind in (np.int64, np.int32):
            yield standard(
                "reversesequence",
                f"{lengths} {np.dtype(kind)}",
                [plain((3, 3)), np.array(lengths, kind)],
                expect=lambda x, n: np.stack(
                    [np.concatenate([x[: n[i], i][::-1], x[n[i] :, i]]) for i in range(3)], 1
                ),
            )
    words: dict[str, Any] = {
        "max_gram_length": 1,
        "max_skip_count": 0,
        "min_gram_length": 1,
        "mode": "TF",
        "ngram_counts": [0],
        "ngram_indexes": [0, 1],
        "pool_int64s": [2, 3],
    }
    yield standard("tfidfvectorizer", "counts", [np.array([2, 3, 3], np.int32)], **words)
    yield standard(
        "nonmaxsuppression",
        "boxes",
        [
            np.array([[[0, 0, 1, 1], [0, 0, 1, 1]]], np.float32),
            np.array([[[0.9, 0.8]]], np.float32),
        ],
    )
    x = plain((2, 3, 4))
    yield standard("sequenceconstruct", "two", [x, x])
    yield Case(
        "aiOnnx.sequenceempty", "empty", (), lambda b, n: b.aiOnnxOpset11.sequenceempty(), None
    )
    yield Case(
        "aiOnnx.sequenceat",
        "first",
        (x,),
        lambda b, n: b.aiOnnxOpset11.sequenceat(
            [b.aiOnnxOpset11.sequenceconstruct(n), b.aiOnnxOpset11.constant(np.array(0, np.int64))]
        ),
        lambda x: x,
    )
    for name in ("sequenceerase", "sequencelength", "concatfromsequence"):
        yield Case(
            f"aiOnnx.{name}",
            "of one",
            (x,),
            lambda b, n, m=name: getattr(b.aiOnnxOpset11, m)(
                [b.aiOnnxOpset11.sequenceconstruct(n)], *([0] if m.startswith("concat") else [])
            ),
            None,
        )
    yield Case(
        "aiOnnx.sequenceinsert",
        "one",
        (x,),
        lambda b, n: b.aiOnnxOpset11.sequenceinsert([b.aiOnnxOpset11.sequenceconstruct(n), *n]),
        None,
    )
    yield standard("splittosequence", "one", [x])
    yield Case(
        "aiOnnx.stringnormalizer",
        "texts",
        (x,),
        lambda b, n: b.aiOnnxOpset11.stringnormalizer(n),
        None,
    )


def _scatter(x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    np.put_along_axis(made, indices.astype(int), updates, 0)
    return made


def _scatter_rows(x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    made[indices[:, 0]] = updates
    return made


def _one_hot(indices: Array, depth: int, axis: int) -> Array:
    places = np.where(indices < 0, indices + depth, indices).astype(int)
    made = (places[:, None] == np.arange(depth)).astype(int)
    return made if axis in (1, -1) else made.T


def _iter_dynamic() -> Iterator[Case]:
    x = plain((4, 5))
    for kind in (np.uint32, np.int32, np.int64, np.float32):
        for place in (0, 1, 3, 4, 9):
            index = np.array([place], kind)
            label = f"{np.dtype(kind)} at {place}"
            if place > 3:
                continue  # beyond the end nothing is said
            yield own(
                "dynamicslice",
                label,
                [x, index],
                lambda x, i: x[int(i[0]) : int(i[0]) + 1],
                [0],
                [1],
            )
            yield own(
                "dynamiczero",
                label,
                [x, index],
                lambda x, i: _changed(x, int(i[0]), 0 * x[:1]),
                [0],
                [1],
            )
            row = plain((1, 5), seed=4)
            yield own(
                "dynamicupdate",
                label,
                [x, index, row],
                lambda x, i, r: _changed(x, int(i[0]), r),
                [0],
                [1],
            )
            yield own(
                "dynamicadd",
                label,
                [x, index, row],
                lambda x, i, r: _changed(x, int(i[0]), x[int(i[0]) : int(i[0]) + 1] + r),
                [0],
                [1],
            )
    for axes, sizes, index in (([1], [2], [3]), ([0, 1], [2, 2], [1, 2]), ([1, 0], [3, 1], [0, 2])):

        def window(i: Array, axes: Any = tuple(axes), sizes: Any = tuple(sizes)) -> Any:
            place: list[Any] = [slice(None)] * 2
            for axis, size, start in zip(axes, sizes, i, strict=True):
                place[axis] = slice(int(start), int(start) + size)
            return tuple(place)

        label = f"{axes} {sizes} {index}"
        start = np.array(index, np.uint32)
        yield own("dynamicslice", label, [x, start], lambda x, i, w=window: x[w(i)], axes, sizes)
        part = plain(
            [sizes[axes.index(a)] if a in axes else n for a, n in enumerate(x.shape)], seed=4
        )
        yield own(
            "dynamicupdate",
            label,
            [x, start, part],
            lambda x, i, p, w=window: _put(x, w(i), p),
            axes,
            sizes,
        )
        yield own(
            "dynamicadd",
            label,
            [x, start, part],
            lambda x, i, p, w=window: _put(x, w(i), x[w(i)] + p),
            axes,
            sizes,
        )
        yield own(
            "dynamiczero", label, [x, start], lambda x, i, w=window: _put(x, w(i), 0), axes, sizes
        )
    for dtype in TYPES:
        x = mixed((4, 5), dtype)
        yield own(
            "dynamicslice",
            f"{np.dtype(dtype)}",
            [x, np.array([1], np.uint32)],
            lambda x, i: x[1:3],
            [0],
            [2],
        )
        yield own(
            "dynamicupdate",
            f"{np.dtype(dtype)}",
            [x, np.array([1], np.uint32), plain((2, 5), dtype, 3)],
            lambda x, i, p: _put(x, (slice(1, 3),), p),
            [0],
            [2],
        )
        yield own(
            "dynamiczero",
            f"{np.dtype(dtype)}",
            [x, np.array([1], np.uint32)],
            lambda x, i: _put(x, (slice(1, 3),), 0),
            [0],
            [2],
        )
    for axes, sizes in (([2], [1]), ([0], [9]), ([0, 1], [1]), ([-1], [1]), ([0], [0])):
        yield own(
            "dynamicslice",
            f"wrong {axes} {sizes}",
            [plain((4, 5)), np.zeros(len(axes), np.uint32)],
            lambda x, i, a=axes, s=sizes: x[:, : s[0]] if a == [-1] else x[: s[0]],
            axes,
            sizes,
        )


def _changed(x: Array, place: int, row: Array) -> Array:
    made = x.copy()
    made[place : place + 1] = row
    return made


def _put(x: Array, place: Any, values: Any) -> Array:
    made = x.copy()
    made[place] = values
    return made


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_choices()
    yield from _iter_dynamic()
