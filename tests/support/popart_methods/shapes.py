"""Methods that move, choose, join and fill elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from popart_methods.cases import VERSIONS, Array, Case, Expect, own, standard
from popart_methods.values import TYPES, mixed, plain


def with_constants(
    name: str,
    label: str,
    inputs: Sequence[Array],
    constants: Sequence[Any],
    *args: Any,
    expect: Expect | None = None,
    opset: int = 11,
    kind: Any = np.int64,
    **kwargs: Any,
) -> Case:
    """Return a case whose last inputs are constants."""

    def build(b: Any, names: list[str]) -> Any:
        domain = getattr(b, f"aiOnnxOpset{opset}")
        more = [
            domain.constant(each if isinstance(each, np.ndarray) else np.array(each, kind))
            for each in constants
        ]
        return getattr(domain, name)([*names, *more], *args, **kwargs)

    return Case(f"aiOnnx.{name}", label, tuple(inputs), build, expect, opset)


def _same(x: Array) -> Array:
    return x


def _iter_moves() -> Iterator[Case]:
    for dtype in TYPES:
        x = mixed((2, 3, 4), dtype)
        for perm in ([2, 0, 1], [0, 1, 2], []):
            yield standard(
                "transpose",
                f"{np.dtype(dtype)} {perm}",
                [x],
                perm,
                expect=lambda x, p=tuple(perm): x.transpose(p or None),
            )
        for shape in ([6, 4], [-1], [0, -1], [2, 0, -1], [4, 3, 2], [24, 1]):
            if dtype in (np.float32, np.int8):
                yield with_constants("reshape", f"{np.dtype(dtype)} {shape}", [x], [shape])
        for axis in (0, 1, 2, 3, -1):
            yield standard(
                "flatten",
                f"{np.dtype(dtype)} {axis}",
                [x],
                axis,
                expect=lambda x, a=axis: x.reshape(
                    int(np.prod(x.shape[: a % 3 if a < 0 else a])), -1
                ),
            )
        for axis in (0, 1, -1):
            yield standard(
                "concat",
                f"{np.dtype(dtype)} {axis}",
                [x, x[::-1]],
                axis,
                expect=lambda *e, a=axis: np.concatenate(e, a),
            )
        yield standard(
            "split", f"{np.dtype(dtype)}", [x], 2, 2, expect=lambda x: tuple(np.split(x, 2, 2))
        )
        yield standard(
            "split",
            f"{np.dtype(dtype)} uneven",
            [x],
            2,
            -1,
            [1, 3],
            expect=lambda x: (x[..., :1], x[..., 1:]),
        )
        yield with_constants(
            "tile", f"{np.dtype(dtype)}", [x], [[1, 2, 2]], expect=lambda x: np.tile(x, (1, 2, 2))
        )
        yield with_constants(
            "expand",
            f"{np.dtype(dtype)}",
            [x[:, :1]],
            [[2, 3, 1]],
            expect=lambda x: np.broadcast_to(x, (2, 3, 4)),
        )
        yield standard(
            "unsqueeze", f"{np.dtype(dtype)}", [x], [0, 2], expect=lambda x: x[None, :, None]
        )
        yield standard("squeeze", f"{np.dtype(dtype)}", [x[:, :1]], [1], expect=lambda x: x[:, 0])
        for ends, starts, axes in (
            ([2], [0], [0]),
            ([-1], [-3], [2]),
            ([100], [1], [1]),
            ([1, 3], [0, 1], [0, 2]),
            ([2**31 - 1], [1], [1]),
        ):

            def cut(
                x: Array, e: Any = tuple(ends), s: Any = tuple(starts), a: Any = tuple(axes)
            ) -> Array:
                place: list[Any] = [slice(None)] * 3
                for end, start, axis in zip(e, s, a, strict=True):
                    place[axis] = slice(start, end)
                return x[tuple(place)]

            yield own(
                "slice", f"{np.dtype(dtype)} {starts} {ends} {axes}", [x], cut, ends, starts, axes
            )
            yield with_constants(
                "slice",
                f"{np.dtype(dtype)} {starts} {ends} {axes}",
                [x],
                [starts, ends, axes],
                expect=cut,
            )
            if dtype == np.float32:
                for version in (6, 9):
                    yield standard(
                        "slice",
                        f"opset {version} {starts} {ends} {axes}",
                        [x],
                        ends,
                        starts,
                        axes,
                        expect=cut,
                        opset=version,
                    )
        for dims in ([0], [1, 2], [2, 0]):
            yield own(
                "reverse",
                f"{np.dtype(dtype)} {dims}",
                [x],
                lambda x, d=tuple(dims): np.flip(x, d),
                dims,
            )
        yield own("reshape", f"{np.dtype(dtype)}", [x], lambda x: x.reshape(4, 6), [4, 6])
    for dims in ([3], [0, 0], [-1], []):
        yield own("reverse", f"{dims}", [plain((2, 3))], _same, dims)
    for shape in ([3, 2], [-1], [0, 3], [0, -1], [7], [-1, -1], [-2], [6, 1]):
        yield own(
            "reshape",
            f"to {shape}",
            [plain((2, 3))],
            lambda x, s=tuple(shape): x.reshape(
                [x.shape[i] if n == 0 else n for i, n in enumerate(s)]
            ),
            shape,
        )
        yield with_constants("reshape", f"to {shape}", [plain((2, 3))], [shape])
    for step in (1, 2, -1, -2, 0):
        for start, end in ((0, 5), (4, 0), (-1, -6), (1, 100), (-100, 3), (3, 3)):
            yield with_constants(
                "slice",
                f"steps {start} {end} {step}",
                [plain((5,))],
                [[start], [end], [0], [step]],
                expect=lambda x, s=start, e=end, t=step: x[_place(s, e, t)],
            )
    for axes in ([0], [-1], [5], [0, 0], [1, -1], [3, 0]):
        yield standard("unsqueeze", f"axes {axes}", [plain((2, 3))], axes)
    for shape, axes in (
        ((1, 2, 1), []),
        ((1, 2, 1), [0]),
        ((1, 2, 1), [-1]),
        ((1, 2, 1), [1]),
        ((1, 1), [0, 1]),
        ((2,), []),
        ((1, 2), [5]),
    ):
        yield standard("squeeze", f"{shape} {axes}", [plain(shape)], axes)
    for count, sizes, axis in (
        (2, [], 0),
        (3, [], 0),
        (2, [1, 3], 0),
        (2, [1, 2], 0),
        (2, [4, 0], 0),
        (1, [], 0),
        (2, [], 3),
        (2, [2, 2], -1),
        (4, [], -1),
        (3, [2, 2], 0),
    ):
        yield standard("split", f"{count} {sizes} {axis}", [plain((4,))], count, axis, sizes)
    for shapes, axis in (
        (((2, 3), (2, 4)), 0),
        (((2, 3), (3, 3)), 0),
        (((2,), (2, 1)), 0),
        (((0, 3), (2, 3)), 0),
        (((2, 3),), 1),
        (((2, 3), (2, 3)), 5),
        (((), ()), 0),
    ):
        yield standard(
            "concat",
            f"{shapes} {axis}",
            [plain(each, seed=i) for i, each in enumerate(shapes)],
            axis,
        )
    for left, right in itertools.permutations((np.float32, np.float16, np.int32, np.int64), 2):
        yield standard(
            "concat",
            f"{np.dtype(left)} with {np.dtype(right)}",
            [plain((2,), left), plain((2,), right)],
            0,
            expect=lambda x, y: np.concatenate([x, y]),
        )
    for perm in ([1, 0], [0, 0, 1], [0, 1, 3], [-1, 0, 1], [0, 1]):
        yield standard("transpose", f"perm {perm}", [plain((2, 3, 4))], perm)
    for shape in ((), (1,), (0,), (0, 2), (3,)):
        for name in ("transpose", "shape", "size", "identity", "squeeze"):
            yield standard(name, f"shape {shape}", [plain(shape)])
        yield standard("flatten", f"shape {shape}", [plain(shape)], 0)
    for repeats in ([2, 2], [0, 1], [-1, 1], [2], [1, 1, 1]):
        yield with_constants("tile", f"{repeats}", [plain((2, 3))], [repeats])
    for shape in ([2, 3], [3], [4, 2, 3], [1], [2, 1], [3, 3], [0, 3], [5, 1, 1]):
        yield with_constants("expand", f"to {shape}", [plain((2, 3))], [shape])
        yield with_constants("expand", f"1 to {shape}", [plain((1,))], [shape])
    for version in VERSIONS:
        yield standard(
            "concat", f"opset {version}", [plain((2, 3)), plain((2, 3), seed=1)], 1, opset=version
        )
        yield with_constants(
            "reshape", f"opset {version}", [plain((2, 3))], [[3, -1]], opset=version
        )
        yield standard("split", f"opset {version}", [plain((4,))], 2, opset=version)
        yield standard("transpose", f"opset {version}", [plain((2, 3))], opset=version)
    for domain, method in (("aiOnnx", standard),):
        for size, shape in itertools.product(
            (1, 2, 3), ((1, 4, 2, 2), (2, 8, 2, 3), (1, 9, 1, 1), (1, 4, 4), (4, 4), (1, 4, 6, 6))
        ):
            yield method("depthtospace", f"{shape} {size}", [plain(shape)], size)
            yield method("spacetodepth", f"{shape} {size}", [plain(shape)], size)
            yield method(
                "depthtospace", f"{domain} CRD {shape} {size}", [plain(shape)], size, "CRD"
            )
    for mode in ("DCR", "CRD", "XYZ"):
        for shape in ((1, 4, 2, 2), (2, 8, 2, 3), (1, 5, 2, 2)):
            yield own(
                "depthtospace",
                f"{mode} {shape}",
                [plain(shape)],
                lambda x, m=mode: _depth_to_space(x, 2, m),
                2,
                mode,
            )


def _place(start: int, end: int, step: int) -> slice:
    return slice(start, None if step < 0 and end <= -6 else end, step)


def _iter_matrices() -> Iterator[Case]:
    for dtype in TYPES:
        yield standard("det", f"{np.dtype(dtype)}", [plain((2, 3, 3), dtype)], rtol=1e-3)
    for shape in ((2, 2), (1, 1), (2, 3), (3,), (0, 2, 2)):
        yield standard("det", f"{shape}", [plain(shape)], rtol=1e-3)


def _depth_to_space(x: Array, size: int, mode: str) -> Array:
    n, c, h, w = x.shape
    if mode == "DCR":
        y = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // size**2, h * size, w * size)


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_moves()
    yield from _iter_matrices()
