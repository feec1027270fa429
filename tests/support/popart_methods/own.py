"""Methods of `aiGraphcore` that have no like in the standard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import popart

from popart_methods.cases import Array, Case, own
from popart_methods.values import FLOATS, TYPES, mixed, plain


def _double(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _iter_layers() -> Iterator[Case]:
    for kind, groups, shape in itertools.product(
        FLOATS, (1, 2, 4, 3), ((2, 4, 3), (1, 4), (2, 4, 2, 2))
    ):
        parts = [plain((4,), kind, 1), plain((4,), kind, 2)]
        for epsilon in (1e-5, 1.0):
            yield own(
                "groupnormalization",
                f"{np.dtype(kind)} {groups} {shape} {epsilon}",
                [plain(shape, kind, 4), *parts],
                lambda x, s, b, g=groups, e=epsilon: _group_norm(x, s, b, g, e),
                groups,
                epsilon,
                rtol=1e-3,
            )
    yield own(
        "groupnormalization",
        "equal values",
        [np.ones((1, 2, 3), np.float32), plain((2,)), plain((2,))],
        lambda x, s, b: _group_norm(x, s, b, 1, 1e-5),
        1,
    )
    for kind, full in itertools.product(FLOATS, (0, 1)):
        x, w = plain((3, 2, 4), kind), plain((4, 9, 5), kind, 1) / 4
        for more in (
            [],
            [plain((4, 5), kind, 2)],
            [plain((4, 5), kind, 2), plain((2, 2, 5), kind, 3) / 4],
        ):
            inputs = [x, w.astype(kind), *[each.astype(kind) for each in more]]
            if not more:  # the bias may be left out by its name
                build = lambda b, n, f=full: b.aiGraphcore.lstm([*n, ""], f)
                yield Case(
                    "aiGraphcore.lstm",
                    f"{np.dtype(kind)} {full} no bias",
                    tuple(inputs),
                    build,
                    lambda *e, f=full: _lstm(*e, full=f),
                    rtol=1e-4,
                )
                continue
            yield own(
                "lstm",
                f"{np.dtype(kind)} {full} {len(inputs)} inputs",
                inputs,
                lambda *e, f=full: _lstm(*e, full=f),
                full,
                rtol=1e-4,
            )
    for shapes in (
        ((3, 2, 4), (4, 8, 5), (4, 5)),
        ((3, 2, 4), (4, 9, 5), (4, 4)),
        ((3, 2), (4, 9, 5), (4, 5)),
        ((0, 2, 4), (4, 9, 5), (4, 5)),
        ((3, 2, 4), (9, 5), (4, 5)),
    ):
        yield own("lstm", f"{shapes}", [plain(each) for each in shapes], lambda *e: (e[0], e[0]))
    for kind in (np.float32, np.float16, np.uint8):
        x = plain((1, 2, 2, 3), kind)
        half = np.float16 if kind == np.float16 else np.float32
        parts = [plain((3,), half, 1), plain((3,), half, 2)]
        for scale in (1.0, 0.0, 0.5):
            yield own(
                "normalize_image",
                f"{np.dtype(kind)} {scale}",
                [x, *parts],
                lambda x, o, s, f=scale: np.pad(
                    (_double(x) * f - _double(o)) * _double(s), [(0, 0)] * 3 + [(0, 1)]
                ),
                scale,
            )
    for shape in ((1, 2, 2, 4), (1, 3, 2, 2)):
        yield own(
            "normalize_image",
            f"{shape}",
            [plain(shape), plain((3,)), plain((3,))],
            lambda x, o, s: x,
            1.0,
        )
    for kind in FLOATS:
        yield own(
            "shapeddropout", f"{np.dtype(kind)}", [mixed((2, 3), kind)], lambda x: x, [2, 1], 0.5
        )
    yield own("shapeddropout", "a wrong shape", [plain((2, 3))], lambda x: x, [5, 5], 0.5)
    for name in ("replicatedallreduce", "replicatedreducescatter"):
        for kind in TYPES:
            yield own(name, f"{np.dtype(kind)}", [mixed((4,), kind)], lambda x: x)
        yield own(
            name,
            "2 axes",
            [plain((2, 3))],
            lambda x, n=name: x if n.endswith("reduce") else x.ravel(),
        )
    for domain_outputs in (1, 2, 5):
        parts = [
            plain((2, 3, 4)),
            *[np.abs(plain((3,), seed=i)) + np.float32(0.5) for i in range(4)],
        ]
        build = lambda b, n, c=domain_outputs: b.aiGraphcore.batchnormalization(n, c, 1e-3, 0.75)
        yield Case(
            "aiGraphcore.batchnormalization",
            f"{domain_outputs} outputs",
            tuple(parts),
            build,
            lambda *e, c=domain_outputs: _batch_norm(*e, count=c),
            rtol=1e-4,
        )
    for momentum in (0.0, 1.0):
        build = lambda b, n, m=momentum: b.aiGraphcore.batchnormalization(n, 1, 1e-3, m)
        yield Case(
            "aiGraphcore.batchnormalization",
            f"momentum {momentum}",
            tuple(parts),
            build,
            lambda *e: _batch_norm(*e, count=1),
            rtol=1e-4,
        )


def _batch_norm(*parts: Array, count: int) -> Any:
    x, scale, bias, mean, spread = map(_double, parts)
    old, column = (mean, spread), (1, -1, 1)
    if count > 1:
        mean, spread = x.mean((0, 2)), x.var((0, 2))
    y = (x - mean.reshape(column)) / np.sqrt(spread.reshape(column) + 1e-3) * scale.reshape(
        column
    ) + bias.reshape(column)
    if count == 1:
        return y
    n = x.shape[0] * x.shape[2]
    spread = (spread + 1e-3) * n / (n - 1) - 1e-3
    moved = [0.75 * a + 0.25 * b for a, b in zip(old, (mean, spread), strict=True)]
    return (y, *moved, mean, spread)[:count]


def _group_norm(x: Array, scale: Array, bias: Array, groups: int, epsilon: float) -> Any:
    rows = _double(x).reshape(x.shape[0] * groups, -1)
    mean, spread = rows.mean(1), rows.var(1)
    inverse = 1 / np.sqrt(spread + epsilon)
    normed = ((rows - mean[:, None]) * inverse[:, None]).reshape(x.shape)
    column = [1, -1, *[1] * (x.ndim - 2)]
    return normed * _double(scale).reshape(column) + _double(bias).reshape(column), mean, inverse


def _lstm(
    x: Array, weights: Array, bias: Array | None = None, state: Array | None = None, *, full: int
) -> Any:
    """Gates in the order of poplibs: forget, input, candidate, output."""
    x, weights = _double(x), _double(weights)
    bias = np.zeros((4, 1)) if bias is None else _double(bias)
    shape = (x.shape[1], weights.shape[2])
    h, c = (np.zeros(shape), np.zeros(shape)) if state is None else _double(state)
    outputs = []
    for row in x:
        gates = [np.concatenate([row, h], 1) @ weights[g] + bias[g] for g in range(4)]
        forget, take, give = (1 / (1 + np.exp(-gates[g])) for g in (0, 1, 3))
        c = forget * c + take * np.tanh(gates[2])
        h = give * np.tanh(c)
        outputs.append(h)
    return (np.stack(outputs) if full else h), c


def _iter_others() -> Iterator[Case]:
    for kind in (1, 10, 6):
        for shape in ([2, 3], [], [0]):
            names = {1: "FLOAT", 10: "FLOAT16", 6: "INT32"}
            data = int(getattr(popart.DataType, names[kind]))
            build = lambda b, n, s=shape, d=data: b.aiGraphcore.init(s, d, 1)
            yield Case(
                "aiGraphcore.init", f"{names[kind]} {shape}", (), build, lambda s=shape: np.zeros(s)
            )
    yield Case(
        "aiGraphcore.abort",
        "no condition, 0",
        (np.array(0, np.int32), plain((2,))),
        lambda b, n: (b.aiGraphcore.abort(n[:1]), b.aiOnnxOpset11.neg(n[1:]))[1],
        lambda c, x: -x,
    )
    for value in (1, 0):
        for kind in (np.int32, np.float32, np.bool_, np.uint32):
            yield Case(
                "aiGraphcore.abort",
                f"{value} {np.dtype(kind)}",
                (np.array(value, kind), plain((2,))),
                lambda b, n: (b.aiGraphcore.abort(n[:1]), b.aiOnnxOpset11.neg(n[1:]))[1],
                lambda c, x: -x,
            )

    def call(b: Any, names: list[str]) -> Any:
        inner = b.createSubgraphBuilder()
        inner.addOutputTensor(inner.aiOnnxOpset11.neg([inner.addUntypedInputTensor()]))
        return b.aiGraphcore.call(names, 1, inner)

    for kind in FLOATS:
        yield Case(
            "aiGraphcore.call", f"{np.dtype(kind)}", (mixed((2, 3), kind),), call, lambda x: -x
        )

    def update(b: Any, names: list[str]) -> Any:
        weight = b.addInitializedInputTensor(np.zeros(3, np.float32))
        return b.aiGraphcore.copyvarupdate([weight, *names])

    yield Case("aiGraphcore.copyvarupdate", "a weight", (mixed((3,)),), update, lambda x: x)
    for left, right in ((False, False), (True, False), (False, True)):

        def convs(b: Any, n: list[str], one: bool = left, two: bool = right) -> Any:
            return b.aiGraphcore.multiconv([[*n[:2], *n[4:5] * one], [*n[2:4], *n[4:5] * two]])

        parts = (
            plain((1, 2, 4)),
            plain((3, 2, 1), seed=1),
            plain((1, 2, 4), seed=2),
            plain((3, 2, 1), seed=3),
            plain((3,), seed=4),
        )
        yield Case(
            "aiGraphcore.multiconv",
            f"biases {left} {right}",
            parts,
            convs,
            lambda x, v, y, w, b, o=left, t=right: tuple(
                np.einsum("ncl,dck->ndl", p, q) + (b[:, None] if has else 0)
                for p, q, has in ((x, v, o), (y, w, t))
            ),
        )
    lengths = [np.array(each, np.uint32) for each in ([2, 1], [0, 3], [1, 0])]
    for kind, zero in itertools.product((np.float32, np.float16, np.int32), (0, 1)):
        yield own(
            "sequenceslice",
            f"{np.dtype(kind)} {zero}",
            [plain((4, 2), kind), plain((4, 2), kind, 1), *lengths],
            lambda s, d, n, f, t, z=zero: _move_rows(s, d, n, f, t, z),
            zero,
        )
    scores = np.log(np.full((3, 2, 4), 0.25, np.float32))
    targets, sizes = (
        np.array([[1, 2], [3, 3]], np.uint32),
        [np.array(e, np.uint32) for e in ([3, 3], [2, 1])],
    )
    for name in ("Mean", "Sum", "NoReduction"):
        kind = getattr(popart.ReductionType, name)
        build = lambda b, n, k=kind: b.aiGraphcore.ctcloss(n, k)
        losses = -np.log(np.array([5, 6]) / 64)
        expect = {"NoReduction": losses, "Sum": losses.sum(), "Mean": (losses / [2, 1]).mean()}[
            name
        ]
        yield Case(
            "aiGraphcore.ctcloss",
            name,
            (scores, targets, *sizes),
            build,
            lambda *_, e=expect: e,
            rtol=1e-4,
        )
    beam = np.log(np.array([[[0.1, 0.8, 0.1]], [[0.1, 0.1, 0.8]]], np.float32))
    build = lambda b, n: b.aiGraphcore.ctcbeamsearchdecoder(n, 0, 4, 1)[1:]
    yield Case(
        "aiGraphcore.ctcbeamsearchdecoder",
        "two labels",
        (beam, np.array([2], np.uint32)),
        build,
        lambda p, n: (np.array([[2]]), np.array([[[1, 2]]])),
    )

    def packed(b: Any, n: list[str]) -> Any:
        inner = b.createSubgraphBuilder()
        inner.addOutputTensor(
            inner.aiOnnxOpset11.neg([inner.addInputTensor(popart.TensorInfo("FLOAT", [1, 2]))])
        )
        return b.aiGraphcore.packedDataBlock([*n, n[1], n[2]], [2], 3, 1, inner)

    yield Case(
        "aiGraphcore.packedDataBlock",
        "two sequences",
        (plain((3,)), np.array([0, 2], np.uint32), np.array([2, 1], np.uint32)),
        packed,
        lambda x, o, n: -x,
    )
    for degree in (0, 1, 2, 3, 4):
        parts = [
            np.array([[0.1], [0.6]], np.float32),
            np.array([5], np.int32),
            np.array([1], np.uint8),
        ]
        yield own(
            "splinebasis",
            f"degree {degree}",
            parts,
            lambda p, k, o, d=degree: _splines(p, d),
            degree,
        )
    basis, places = (
        np.array([[0.25, 0.75], [1, 0]], np.float32),
        np.array([[0, 1], [2, 0]], np.int32),
    )
    yield own(
        "splineweighting",
        "plain",
        [plain((2, 3)), plain((3, 3, 4), seed=1), basis, places],
        lambda x, w, b, i: np.stack(
            [sum(b[e, s] * x[e] @ w[i[e, s]] for s in range(2)) for e in range(2)]
        ),
    )


def _splines(pseudo: Array, degree: int) -> Any:
    """An open spline of 5 knots: the basis by de Boor's recursion on whole knots."""

    def bspline(k: int, t: float) -> float:
        if k == 0:
            return float(0 <= t < 1)
        return t / k * bspline(k - 1, t) + (k + 1 - t) / k * bspline(k - 1, t - 1)

    v = pseudo[:, 0].astype(np.float64) * (5 - degree)
    first = np.floor(v)
    basis = [
        [bspline(degree, x - f + degree - s) for s in range(degree + 1)]
        for x, f in zip(v, first, strict=True)
    ]
    return np.array(basis), (first[:, None] + np.arange(degree + 1)).astype(int) % 5


def _move_rows(
    source: Array, target: Array, counts: Array, froms: Array, tos: Array, zero: int
) -> Array:
    made = np.zeros_like(target) if zero else target.copy()
    for count, first, place in zip(counts, froms, tos, strict=True):
        made[int(place) : int(place + count)] = source[int(first) : int(first + count)]
    return made


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_layers()
    yield from _iter_others()
