"""Losses, and writing by indices, of `aiGraphcore`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import popart

from popart_methods.cases import Array, Case, own
from popart_methods.values import FLOATS, mixed, plain

REDUCTIONS = {"Mean": np.mean, "Sum": np.sum, "NoReduction": lambda x: x}
SCATTERS = {"Sum": np.add, "Max": np.maximum, "Min": np.minimum, "Mul": np.multiply}
NEUTRAL = {"Sum": 0.0, "Mul": 1.0, "Max": -3.4028234663852886e38, "Min": 3.4028234663852886e38}


def _double(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _iter_losses() -> Iterator[Case]:
    for name, reduce in REDUCTIONS.items():
        kind = getattr(popart.ReductionType, name)
        for dtype in FLOATS:
            for shape in ((2, 3), (1,), ()):
                for make in (plain, mixed):
                    x = make(shape, dtype)
                    label = f"{np.dtype(dtype)} {shape} {name} {make.__name__}"
                    yield own("identityloss", label, [x], lambda x, r=reduce: r(_double(x)), kind)
                    for factor in (0.5, 0.0, -1.0):
                        yield own(
                            "l1loss",
                            f"{label} {factor}",
                            [x],
                            lambda x, r=reduce, f=factor: r(f * np.abs(_double(x))),
                            factor,
                            kind,
                        )
            scores = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]], dtype)
            for labels, ignored, logs in itertools.product(
                ([1, 0, 0], [0, 0, 1], [1, 1, 1]), (None, 0, 1, -1), (False, True)
            ):
                for index in (np.int32, np.int64, np.uint32):
                    if index is not np.int32 and (dtype is not np.float32 or ignored):
                        continue
                    yield own(
                        "nllloss",
                        f"{np.dtype(dtype)} {name} {labels} {ignored} {logs} {np.dtype(index)}",
                        [scores, np.array(labels, index)],
                        lambda p, t, n=name, i=ignored, g=logs: _nll(p, t, n, i, g),
                        kind,
                        ignored,
                        logs,
                    )
    yield own(
        "nllloss",
        "labels out of range",
        [plain((2, 3)) + 5, np.array([3, -1], np.int32)],
        lambda p, t: np.full(2, -np.log(1e-7)),
        popart.ReductionType.NoReduction,
    )
    for shapes in (((2, 3), (3,)), ((), ()), ((2, 3), (2, 1)), ((0, 3), (0,))):
        yield own(
            "nllloss",
            f"{shapes}",
            [np.asarray(plain(shapes[0]) + np.float32(5)), plain(shapes[1], np.int32)],
            lambda p, t: np.nan,
        )


def _nll(scores: Array, labels: Array, name: str, ignored: int | None, logs: bool) -> Array:
    tiny = 1e-7 if scores.dtype == np.float32 else 6.104e-5
    chosen = _double(scores)[np.arange(len(labels)), labels.astype(int)]
    losses = -chosen if logs else -np.log(np.maximum(chosen, tiny))
    counts = np.ones(len(labels), bool) if ignored is None else labels != ignored
    losses = losses * counts
    if name == "NoReduction":
        return losses
    total = losses.sum()
    return total if name == "Sum" else total / max(1, counts.sum())


def _iter_scatters() -> Iterator[Case]:
    for name, function in SCATTERS.items():
        kind = getattr(popart.ScatterReduction, name)
        for dtype, index in itertools.product(
            (np.float32, np.float16, np.int32), (np.int32, np.int64, np.uint32)
        ):
            x = plain((4, 3), dtype)
            places = np.array([0, 2, 0, 1], index)
            wide = np.broadcast_to(places[:, None], x.shape).copy()

            def expect(
                x: Array, i: Array, start: Array | None = None, f: Any = function, n: str = name
            ) -> Array:
                i = i if i.ndim > 1 else np.broadcast_to(i[:, None], x.shape)
                ends = np.iinfo(np.int32)
                neutral = (
                    NEUTRAL[n]
                    if x.dtype.kind == "f"
                    else {"Max": ends.min, "Min": ends.max}.get(n, NEUTRAL[n])
                )
                made = (
                    np.full((4, x.shape[1]), neutral, np.float64)
                    if start is None
                    else _double(start).copy()
                )
                for row, column in np.ndindex(*x.shape):
                    place = int(i[row, column])
                    made[place, column] = f(made[place, column], x[row, column])
                return made

            label = f"{name} {np.dtype(dtype)} {np.dtype(index)}"
            yield own("scatterreduce", f"{label} row", [x, places], expect, 4, 0, kind)
            yield own("scatterreduce", f"{label} all", [x, wide], expect, 4, 0, kind)
            yield own(
                "scatterreduce", f"{label} all, no broadcast", [x, wide], expect, 4, 0, kind, 0
            )
            yield own(
                "scatterreduce",
                f"{label} initial",
                [x, places, plain((4, 3), dtype, 5)],
                expect,
                4,
                0,
                kind,
            )

            def grouped(x: Array, i: Array, e: Any = expect) -> Array:
                return np.stack([e(x[g], i[g]) for g in range(2)])

            yield own(
                "groupedscatterreduce",
                label,
                [np.stack([x, x[::-1]]), np.stack([places, places[::-1]])],
                grouped,
                4,
                1,
                kind,
                2,
            )
            if dtype == np.float32 and index == np.int32:
                for axis in (-1, 1, 2, -3):
                    yield own(
                        "scatterreduce",
                        f"{name} axis {axis}",
                        [x.T.copy(), places],
                        lambda x, i, e=expect: e(x.T, i).T,
                        4,
                        axis,
                        kind,
                    )
                yield own(
                    "scatterreduce",
                    f"{name} rank",
                    [x[:, 0].copy(), places],
                    lambda x, i, e=expect: e(x[:, None], i)[:, 0],
                    4,
                    0,
                    kind,
                )
    for size, axis in ((0, 0), (-1, 0), (4, 5)):
        yield own(
            "scatterreduce",
            f"size {size} axis {axis}",
            [plain((4, 3)), np.zeros(4, np.int32)],
            lambda x, i: x,
            size,
            axis,
        )
    yield own(
        "scatterreduce",
        "places out of range",
        [plain((4, 3)), np.array([0, 9, -9, 1], np.int32)],
        lambda x, i: x,
        4,
        0,
    )
    for groups in (0, 3):
        yield own(
            "groupedscatterreduce",
            f"groups {groups}",
            [plain((2, 4, 3)), np.zeros((2, 4), np.int32)],
            lambda x, i: x,
            4,
            1,
            popart.ScatterReduction.Sum,
            groups,
        )
    for axis, groups in ((0, 2), (1, 3), (3, 2), (-1, 2)):
        yield own(
            "groupedgather",
            f"axis {axis} groups {groups}",
            [plain((2, 3, 4)), np.array([[2, 0], [1, 1]], np.int32)],
            lambda x, i: np.stack([x[g][:, i[g]] for g in range(2)]),
            axis,
            groups,
        )


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_losses()
    yield from _iter_scatters()
