"""Products, norms, recurrent layers, quantized products, random numbers and control flow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from popart_methods.by_hand import local_norm
from popart_methods.cases import VERSIONS, Array, Case, Expect, ask_witness, standard
from popart_methods.values import FLOATS, TYPES, mixed, plain


def _double(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _product(x: Array, y: Array) -> Array:
    return _double(x) @ _double(y)


def _iter_products() -> Iterator[Case]:
    shapes = (
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((2, 1, 2, 3), (4, 3, 2)),
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((2, 3), (4, 5)),
        ((), (3, 3)),
        ((1, 1), (1, 1)),
        ((2, 2, 3), (3, 3, 4)),
    )
    for left, right in shapes:
        yield standard(
            "matmul", f"{left} {right}", [plain(left), plain(right, seed=1)], expect=_product
        )
    for left, right in itertools.product(TYPES, TYPES):
        if left is right or {left, right} <= {*FLOATS, np.int32, np.int64}:
            inputs = [plain((2, 3), left), plain((3, 2), right, 1)]
            yield standard(
                "matmul", f"{np.dtype(left)} with {np.dtype(right)}", inputs, expect=_product
            )
    for kind in FLOATS:
        inputs = [mixed((3, 4), kind), plain((4, 2), kind, 1)]
        yield standard("matmul", f"{np.dtype(kind)} special", inputs, expect=_product)
    for alpha, beta, turns in itertools.product((1.0, 0.0, -0.5), (1.0, 0.0, 2.0), range(4)):
        left, right = turns & 1, turns >> 1

        def expect(
            *each: Array, a: float = alpha, b: float = beta, t: Any = (left, right)
        ) -> Array:
            x, y = (_double(m).T if turn else _double(m) for m, turn in zip(each, t, strict=False))
            made = a * (x @ y)
            return made + b * _double(each[2]) if len(each) > 2 else made

        x = plain((3, 2) if left else (2, 3))
        y = plain((4, 3) if right else (3, 4), seed=1)
        for bias in ((2, 4), (4,), (2, 1), (1,), ()):
            label = f"{alpha} {beta} {turns} bias {bias}"
            inputs = [x, y, plain(bias, seed=2)]
            yield standard("gemm", label, inputs, alpha, beta, left, right, expect=expect)
        nans = np.full(4, np.nan, np.float32)
        if beta:
            yield standard(
                "gemm",
                f"{alpha} {beta} {turns} NaN",
                [x, y, nans],
                alpha,
                beta,
                left,
                right,
                expect=expect,
            )
        yield standard(
            "gemm",
            f"{alpha} {beta} {turns} no bias",
            [x, y],
            alpha,
            beta,
            left,
            right,
            expect=expect,
        )
    for kind in TYPES:
        yield standard(
            "gemm",
            f"{np.dtype(kind)}",
            [plain(n, kind) for n in ((2, 3), (3, 4), (4,))],
            expect=lambda x, y, z: _product(x, y) + _double(z),
        )
    for version in VERSIONS:
        parts = [plain(each) for each in ((2, 3), (3, 4), (4,))]
        made: Expect = lambda x, y, z: x @ y + z
        yield standard("gemm", f"opset {version}", parts, expect=made, opset=version)
        yield standard("matmul", f"opset {version}", parts[:2], expect=_product, opset=version)


def _softmax(x: Array, axis: int, kind: str) -> Array:
    """Before opset 13 the axes from `axis` on are one."""
    axis = axis % x.ndim if x.ndim else 0
    rows = _double(x).reshape(int(np.prod(x.shape[:axis])), -1)
    if kind == "hardmax":
        made = np.zeros(rows.shape)
        made[np.arange(len(rows)), rows.argmax(1)] = 1
        return made.reshape(x.shape)
    largest = rows.max(1, keepdims=True)
    shifted = rows - largest
    total = np.log(np.exp(shifted).sum(1, keepdims=True))
    found = shifted - total if kind == "logsoftmax" else np.exp(shifted - total)
    return found.reshape(x.shape)


def _iter_norms() -> Iterator[Case]:
    for kind in ("softmax", "logsoftmax", "hardmax"):
        for dtype in FLOATS:
            for shape, axis in itertools.product(((2, 3, 4), (4,), (1, 1), (2, 5)), (0, 1, 2, -1)):
                if axis < len(shape):
                    yield standard(
                        kind,
                        f"{np.dtype(dtype)} {shape} axis {axis}",
                        [plain(shape, dtype)],
                        axis,
                        expect=lambda x, a=axis, k=kind: _softmax(x, a, k),
                        rtol=1e-4,
                    )
            rows = [[np.inf, 1], [-np.inf, 1], [-np.inf, -np.inf], [1e4, -1e4], [np.nan, 1]]
            if kind != "hardmax":
                yield standard(
                    kind,
                    f"{np.dtype(dtype)} special",
                    [np.array(rows, dtype)],
                    expect=lambda x, k=kind: _softmax(x, 1, k),
                    rtol=1e-4,
                )
        for dtype in TYPES[2:]:
            yield standard(kind, f"{np.dtype(dtype)}", [plain((2, 3), dtype)])
        for shape, axis in (((), 0), ((2, 3), 5), ((0, 3), 1), ((2, 0), 1), ((3,), 1)):
            yield standard(kind, f"{shape} axis {axis}", [plain(shape)], axis)
        for version in VERSIONS:
            yield standard(
                kind,
                f"opset {version}",
                [plain((2, 3, 4), seed=9)],
                opset=version,
                expect=lambda x, k=kind: _softmax(x, 1, k),
                rtol=1e-4,
            )
    for kind, shape in itertools.product(FLOATS, ((2, 3, 4), (2, 3, 2, 2), (1, 1, 1), (2, 3))):
        parts = [plain((shape[1],), kind, 1), plain((shape[1],), kind, 2)]
        for epsilon in (1e-5, 0.0, 1.0):
            yield standard(
                "instancenormalization",
                f"{np.dtype(kind)} {shape} {epsilon}",
                [plain(shape, kind, 4), *parts],
                epsilon,
                rtol=1e-3,
            )
        for count, momentum in itertools.product((1, 5), (0.0, 0.9, 1.0)):
            spread = np.abs(plain((shape[1],), kind, 3)) + kind(0.5)
            yield standard(
                "batchnormalization",
                f"{np.dtype(kind)} {shape} {count} {momentum}",
                [plain(shape, kind, 4), *parts, parts[0], spread],
                count,
                1e-3,
                momentum,
                expect=lambda *e, c=count, m=momentum: _batch_norm(*e, count=c, momentum=m),
                rtol=1e-3,
            )
    for size, kind in itertools.product((0, 1, 2, 3, 4, 6), FLOATS):
        for shape in ((1, 4, 2, 2), (2, 5), (1, 3, 4), (0, 3, 2, 2)):
            yield standard(
                "lrn",
                f"{np.dtype(kind)} {size} {shape}",
                [plain(shape, kind)],
                size,
                0.5,
                0.75,
                2.0,
                expect=lambda x, s=size: local_norm(x, s, 0.5, 0.75, 2.0),
                rtol=1e-4,
            )
    for beta, alpha in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)):
        yield standard(
            "lrn",
            f"alpha {alpha} beta {beta}",
            [plain((1, 4, 2, 2))],
            2,
            alpha,
            beta,
            1.0,
            expect=lambda x, a=alpha, b=beta: local_norm(x, 2, a, b, 1.0),
            rtol=1e-4,
        )
    for p, axis in itertools.product((1, 2, 3), (0, 1, -1, 2)):
        yield standard("lpnormalization", f"p {p} axis {axis}", [plain((2, 3)) + 9], axis, p)
    for axes in ([0, 2, 3], [1], []):
        yield standard(
            "meanvariancenormalization", f"{axes}", [plain((2, 3, 4, 5))], axes, rtol=1e-3
        )
    for ratio in (0.0, 0.5, 1.0):
        yield standard(
            "dropout",
            f"{ratio}",
            [mixed((2, 3))],
            2,
            ratio,
            expect=lambda x: (x, np.ones(x.shape, bool)),
        )
    for dtype in TYPES:
        yield standard(
            "dropout", f"{np.dtype(dtype)}", [plain((2, 3), dtype)], 1, expect=lambda x: x
        )


def _batch_norm(*parts: Array, count: int, momentum: float) -> Any:
    x, scale, bias, mean, spread = map(_double, parts)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    column = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    old = mean, spread
    if count > 1:
        mean, spread = x.mean(axes), x.var(axes)
    off = (x - mean.reshape(column)) / np.sqrt(spread.reshape(column) + 1e-3)
    y = off * scale.reshape(column) + bias.reshape(column)
    if count == 1:
        return y
    moved = [momentum * a + (1 - momentum) * b for a, b in zip(old, (mean, spread), strict=True)]
    return (y, *moved, mean, spread)


def _iter_recurrent() -> Iterator[Case]:
    for name, gates in (("rnn", 1), ("gru", 3), ("lstm", 4)):
        for length, batch, size, hidden in ((3, 2, 4, 5), (1, 1, 1, 1), (4, 3, 1, 2)):
            w = plain((1, gates * hidden, size), seed=1) / 4
            r = plain((1, gates * hidden, hidden), seed=2) / 4
            b = plain((1, 2 * gates * hidden), seed=3) / 4
            state = plain((1, batch, hidden), seed=4)
            x = plain((length, batch, size))
            lengths = np.arange(1, batch + 1, dtype=np.int32)
            count = 3 if name == "lstm" else 2
            named = {"hidden_size": hidden}
            for kind in FLOATS:
                given = [each.astype(kind) for each in (x, w, r)]
                label = f"{np.dtype(kind)} length {length} hidden {hidden}"
                yield standard(name, label, given, count, rtol=1e-4, **named)
                more = [*given, b.astype(kind)]
                yield standard(name, f"{label} with biases", more, count, rtol=1e-4, **named)
            for places in itertools.product((0, 1), repeat=3):
                args = [b, lengths, state]
                chosen = [each for each, has in zip(args, places, strict=True) if has]

                def build(
                    bd: Any,
                    names: list[str],
                    n: str = name,
                    p: Any = places,
                    c: int = count,
                    h: int = hidden,
                ) -> Any:
                    rest = iter(names[3:])
                    more = [next(rest) if has else "" for has in p]
                    while more and not more[-1]:
                        more.pop()
                    return getattr(bd.aiOnnxOpset11, n)([*names[:3], *more], c, hidden_size=h)

                yield Case(
                    f"aiOnnx.{name}",
                    f"inputs {places} length {length} hidden {hidden}",
                    (x, w, r, *chosen),
                    build,
                    None,
                    rtol=1e-4,
                )
        x, w, r = (
            plain((3, 2, 4)),
            plain((1, gates * 5, 4), seed=1),
            plain((1, gates * 5, 5), seed=2),
        )
        for kwargs in (
            {"direction": "reverse"},
            {"direction": "bidirectional"},
            {"clip": 1.0},
            {"hidden_size": 4},
            {"activations": ["Relu"]},
            {"activations": ["Sigmoid", "Tanh", "Tanh"]},
            {"activations": ["Elu"]},
            {"activation_alpha": [0.5]},
        ):
            given = {"hidden_size": 5, **kwargs}
            yield standard(name, f"{kwargs}", [x, w, r], 1, rtol=1e-4, **given)
        for version in VERSIONS:
            expect = None
            if version == 6:  # which no witness has: it is that of opset 7
                made = standard(name, "", [x, w / 4, r / 4], 1, opset=7, hidden_size=5)
                expect = lambda *_, c=made: tuple(ask_witness(c))
            yield standard(
                name,
                f"opset {version}",
                [x, w / 4, r / 4],
                1,
                opset=version,
                hidden_size=5,
                expect=expect,
                rtol=1e-4,
            )
        for shapes in (
            ((3, 2), w.shape, r.shape),
            (x.shape, (1, gates * 5, 3), r.shape),
            (x.shape, w.shape, (1, gates * 4, 5)),
            ((3, 0, 4), w.shape, r.shape),
            ((0, 2, 4), w.shape, r.shape),
        ):
            yield standard(name, f"shapes {shapes}", [plain(each) for each in shapes], 1)
        for y, values in ((x * np.nan, "NaN"), (x * 0 + np.inf, "infinity")):
            yield standard(name, values, [y.astype(np.float32), w, r], 1, hidden_size=5)


def _iter_quantized() -> Iterator[Case]:
    for left, right in itertools.product((np.uint8, np.int8), repeat=2):
        ends = np.iinfo(left)
        x = np.array([[ends.min, ends.max, 3], [7, ends.min, ends.max]], left)
        y = np.full((3, 2), np.iinfo(right).max, right)
        yield standard(
            "matmulinteger",
            f"{np.dtype(left)} {np.dtype(right)}",
            [x, y],
            expect=lambda a, b: a.astype(np.int64) @ b.astype(np.int64),
        )
        image = np.arange(16).reshape(1, 1, 4, 4).astype(left)
        yield standard(
            "convinteger",
            f"{np.dtype(left)} {np.dtype(right)}",
            [image, np.ones((1, 1, 2, 2), right)],
        )
        scale = np.float32(0.5)
        zero = [np.array(3, left), np.array(1, right), np.array(2, left)]
        scales = [np.array(scale)] * 3
        parts = [x, scales[0], zero[0], y, scales[1], zero[1], scales[2], zero[2]]
        yield standard("qlinearmatmul", f"{np.dtype(left)} {np.dtype(right)}", parts)
        parts = [
            image,
            scales[0],
            zero[0],
            np.ones((1, 1, 2, 2), right),
            scales[1],
            zero[1],
            scales[2],
            zero[2],
        ]
        yield standard("qlinearconv", f"{np.dtype(left)} {np.dtype(right)}", parts)
    for kind in (np.uint8, np.int8, np.int32):
        yield standard(
            "dequantizelinear",
            f"{np.dtype(kind)}",
            [plain((2, 3), kind), np.array(0.5, np.float32)],
            expect=lambda x, s: x * s,
        )
        zero = np.array(3, kind) if kind != np.int32 else np.array(0, kind)
        yield standard(
            "quantizelinear", f"{np.dtype(kind)}", [plain((2, 3)), np.array(0.5, np.float32), zero]
        )
    special = np.array([np.nan, np.inf, -np.inf, 0.25, 0.75, 1e9], np.float32)
    yield standard(
        "quantizelinear", "special", [special[1:], np.array(0.5, np.float32), np.array(3, np.uint8)]
    )
    yield standard("dynamicquantizelinear", "plain", [plain((2, 3))])


def _iter_random() -> Iterator[Case]:
    def spread(*_: Array) -> Any:
        raise NotImplementedError

    for name in ("randomnormal", "randomuniform"):
        for dtype in (1, 10, 6, 11):
            yield Case(
                f"aiOnnx.{name}",
                f"dtype {dtype}",
                (),
                lambda b, n, m=name, d=dtype: b.aiOnnxOpset11.shape(
                    [getattr(b.aiOnnxOpset11, m)([2, 3], d)]
                ),
                lambda: np.array([2, 3]),
            )
        for kind in TYPES:
            yield Case(
                f"aiOnnx.{name}like",
                f"{np.dtype(kind)}",
                (plain((2, 3), kind),),
                lambda b, n, m=name: b.aiOnnxOpset11.shape(
                    [getattr(b.aiOnnxOpset11, f"{m}like")(n)]
                ),
                lambda x: np.array([2, 3]),
            )
        low, high = ("mean", "scale") if "normal" in name else ("low", "high")
        named = {low: 3.0, high: 0.0 if "normal" in name else 3.0}
        yield Case(
            f"aiOnnx.{name}",
            "no spread",
            (),
            lambda b, n, m=name, k=named: getattr(b.aiOnnxOpset11, m)([4], **k),
            lambda: np.full(4, 3.0),
        )
        yield Case(
            f"aiOnnx.{name}",
            "empty",
            (),
            lambda b, n, m=name: getattr(b.aiOnnxOpset11, m)([0, 2]),
            lambda: np.zeros((0, 2)),
        )
        yield Case(
            f"aiOnnx.{name}",
            "a seed",
            (),
            lambda b, n, m=name: getattr(b.aiOnnxOpset11, m)([2], seed=1.0),
            spread,
        )
    build = lambda b, n: b.aiOnnxOpset11.shape([b.aiOnnxOpset11.multinomial(n)])
    yield Case("aiOnnx.multinomial", "samples", (plain((2, 3)),), build, lambda x: np.array([2, 1]))


def _iter_control() -> Iterator[Case]:
    for flag in (True, False):
        for kind in (np.float32, np.int32):

            def branch(b: Any, names: list[str]) -> str:
                one, other = b.createSubgraphBuilder(), b.createSubgraphBuilder()
                one.addOutputTensor(one.aiOnnxOpset11.add([names[1], names[1]]))
                other.addOutputTensor(other.aiOnnxOpset11.identity([names[1]]))
                return b.aiOnnxOpset11.logical_if(names[:1], 1, other, one)[0]

            yield Case(
                "aiOnnx.logical_if",
                f"{flag} {np.dtype(kind)}",
                (np.array(flag), plain((2, 3), kind)),
                branch,
                lambda c, x: x + x if c else x,
            )
    for count in (0, 1, 3):
        for kind in (np.int32, np.int64):

            def loop(b: Any, names: list[str], c: int = count, k: Any = kind) -> Any:
                inner = b.createSubgraphBuilder()
                inner.addInputTensor(__import__("popart").TensorInfo(k, []))
                keep = inner.addInputTensor(__import__("popart").TensorInfo("BOOL", []))
                value = inner.addUntypedInputTensor()
                inner.addOutputTensor(keep)
                inner.addOutputTensor(inner.aiOnnxOpset11.add([value, value]))
                o = b.aiOnnxOpset11
                return o.loop(
                    [o.constant(np.array(c, k)), o.constant(np.array(True)), *names], 1, inner
                )[0]

            yield Case(
                "aiOnnx.loop",
                f"{count} {np.dtype(kind)}",
                (plain((2, 3)),),
                loop,
                lambda x, c=count: x * 2**c,
            )

    def scan(b: Any, names: list[str]) -> Any:
        # PopART's bodies see one row with its axis.
        popart = __import__("popart")
        inner = b.createSubgraphBuilder()
        total = inner.addInputTensor(popart.TensorInfo("FLOAT", [1, 3]))
        row = inner.addInputTensor(popart.TensorInfo("FLOAT", [1, 3]))
        moved = inner.aiOnnxOpset11.add([total, row])
        inner.addOutputTensor(moved)
        inner.addOutputTensor(inner.aiOnnxOpset11.identity([moved]))
        return b.aiOnnxOpset11.scan(names, 2, inner, 1)

    for rows in (1, 4):
        yield Case(
            "aiOnnx.scan",
            f"{rows} rows",
            (plain((1, 3)), plain((rows, 3), seed=1)),
            scan,
            lambda t, x: (t + x.sum(0), t + np.cumsum(x, 0)),
        )


def iter_cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _iter_products()
    yield from _iter_norms()
    yield from _iter_recurrent()
    yield from _iter_quantized()
    yield from _iter_random()
    yield from _iter_control()
