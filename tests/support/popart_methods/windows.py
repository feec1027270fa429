"""Convolutions, poolings, paddings and resizings: even and odd sizes, both signs of padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from popart_methods.by_hand import convolve, crop, pool, spread
from popart_methods.cases import VERSIONS, Array, Case, ask_witness, own, standard
from popart_methods.values import FLOATS, TYPES, mixed, plain


def _iter_convolutions() -> Iterator[Case]:
    for size, kernel, stride, pads, dilation in itertools.product(
        (4, 5), (1, 2, 3), (1, 2), ([0, 0], [1, 0], [0, 2], [-1, 0]), (1, 2)
    ):
        x, w = plain((1, 2, size)), plain((3, 2, kernel), seed=1)
        label = f"size {size} kernel {kernel} stride {stride} pads {pads} dilation {dilation}"
        named = {"strides": [stride], "pads": pads}

        def conv(
            x: Array, w: Array, s: int = stride, p: Any = tuple(pads), d: int = dilation
        ) -> Array:
            x = x[..., max(0, -p[0]) : x.shape[2] - max(0, -p[1])]
            return convolve(x, w, None, [s], [max(0, each) for each in p], [d])

        def turned(x: Array, w: Array, s: int = stride, p: Any = tuple(pads)) -> Array:
            return crop(spread(x, w, [s]), [p[0]], [p[1]])

        yield standard("conv", label, [x, w], dilations=[dilation], expect=conv, **named)
        parts = [x, plain((2, 3, kernel), seed=1)]
        yield standard("convtranspose", label, parts, dilations=[dilation], expect=turned, **named)
    for dtype in FLOATS:
        x = mixed((1, 4, 5, 5), dtype)
        for group in (1, 2, 4):
            w = plain((4, 4 // group, 3, 3), dtype, 1)
            yield standard("conv", f"{np.dtype(dtype)} special group {group}", [x, w], group=group)
            yield standard(
                "conv",
                f"{np.dtype(dtype)} group {group} with bias",
                [plain(x.shape, dtype), w, plain((4,), dtype, 2)],
                group=group,
            )
            w = plain((4, 4 // group, 3, 3), dtype, 1)
            yield standard(
                "convtranspose",
                f"{np.dtype(dtype)} group {group}",
                [plain(x.shape, dtype), w],
                group=group,
            )
            yield standard(
                "convtranspose",
                f"{np.dtype(dtype)} group {group} with bias",
                [plain(x.shape, dtype), w, plain((4 // group * group,), dtype, 2)],
                group=group,
            )
    for name, shape in (("conv", (3, 2, 2, 2)), ("convtranspose", (2, 3, 2, 2))):
        for left, right in itertools.product(TYPES[:5], TYPES[:5]):
            yield standard(
                name,
                f"{np.dtype(left)} with {np.dtype(right)}",
                [plain((1, 2, 3, 3), left), plain(shape, right)],
            )
        for kwargs in (
            {"kernel_shape": [2, 2]},
            {"kernel_shape": [3, 3]},
            {"kernel_shape": [2]},
            {"strides": [0, 1]},
            {"strides": [1]},
            {"strides": [1, 1, 1]},
            {"strides": [-1, 1]},
            {"pads": [1, 1]},
            {"pads": [1] * 4},
            {"dilations": [1]},
            {"dilations": [0, 1]},
            {"group": 0},
            {"group": 2},
            {"group": -1},
            {"group": 3},
        ):
            made: Callable[..., Any] | None = None
            if (
                name == "convtranspose" and "group" not in kwargs
            ):  # PopART ignores the kernel's shape, and makes lists longer
                pads = [*kwargs.get("pads", []), *[0] * 4][:4]
                made = lambda x, w, p=pads: crop(spread(x, w, [1, 1]), p[:2], p[2:])
            inputs = [plain((1, 2, 3, 3)), plain(shape, seed=1)]
            yield standard(name, f"{kwargs}", inputs, expect=made, **kwargs)
        for x, w in (
            ((1, 2), (3, 2)),
            ((2, 3, 3), (3, 2, 2, 2)),
            ((1, 2, 3), (3, 2)),
            ((0, 2, 3, 3), shape),
            ((1, 2, 0, 3), shape),
            ((1, 0, 3, 3), (3, 0, 2, 2)),
            ((1, 5, 3, 3), shape),
            ((1, 2, 2, 2, 2), (3, 2, 1, 1, 1) if name == "conv" else (2, 3, 1, 1, 1)),
        ):
            yield standard(name, f"{x} with {w}", [plain(x), plain(w, seed=1)])
        yield standard(
            name, "bias of another size", [plain((1, 2, 3, 3)), plain(shape), plain((5,))]
        )
        yield standard(name, "bias of 2 axes", [plain((1, 2, 3, 3)), plain(shape), plain((3, 1))])
        for version in VERSIONS:
            yield standard(
                name, f"opset {version}", [plain((1, 2, 4, 4)), plain(shape, seed=1)], opset=version
            )
    for total, more in itertools.product(range(-3, 5), (0, 1)):
        full = 2 * 3 + 3
        for shape in ([full - total], [1, 3, full - total], [2, 3, full - total]):
            half = (total + more) // 2
            pads = [half, total - half]
            if len(shape) > 1 and total == -more:
                pads = [0, -more]  # the sizes are those of the pads
            yield standard(
                "convtranspose",
                f"output_shape {shape} output_padding {more}",
                [plain((1, 2, 4)), plain((2, 3, 3), seed=1)],
                strides=[2],
                output_shape=shape,
                output_padding=[more],
                expect=lambda x, w, p=tuple(pads): crop(spread(x, w, [2]), p[:1], p[1:]),
            )
    for kind in ([1, 0], [0, 1], [1, 1]):
        yield standard(
            "convtranspose",
            f"output_padding {kind}",
            [plain((1, 2, 3, 3)), plain((2, 3, 2, 2), seed=1)],
            strides=[2, 2],
            output_padding=kind,
        )


def _iter_poolings() -> Iterator[Case]:
    for name in ("averagepool", "maxpool", "lppool"):
        for size, kernel, stride, pads, ceil in itertools.product(
            (4, 5, 6), (1, 2, 3), (1, 2, 3), ([0, 0], [1, 0], [0, 1], [1, 1], [-1, 0]), (0, 1)
        ):
            if name == "lppool" and ceil:
                continue
            more: dict[str, Any] = {"ceil_mode": ceil} if ceil else {}
            args = (1, [kernel]) if name == "maxpool" else ([kernel],)
            label = f"size {size} kernel {kernel} stride {stride} pads {pads} ceil {ceil}"
            kind = name.removesuffix("pool")
            yield standard(
                name,
                label,
                [plain((1, 2, size))],
                *args,
                pads=pads,
                strides=[stride],
                expect=lambda x, a=(kind, kernel, stride, tuple(pads), ceil): pool(x, *a),
                **more,
            )
        for dtype in TYPES:
            args = (1, [2, 2]) if name == "maxpool" else ([2, 2],)
            kind = name.removesuffix("pool")
            yield standard(
                name,
                f"{np.dtype(dtype)}",
                [plain((1, 2, 4, 4), dtype)],
                *args,
                expect=lambda x, k=kind: _pool_squares(x, k),
            )
        for dtype in FLOATS:
            args = (1, [2, 2]) if name == "maxpool" else ([2, 2],)
            squares = (lambda x: _pool_squares(x, "max")) if name == "maxpool" else None
            yield standard(
                name,
                f"{np.dtype(dtype)} special",
                [mixed((1, 2, 4, 4), dtype)],
                *args,
                expect=squares,
            )
        for shape, kernel in (
            ((1, 2), []),
            ((2, 3, 3), [2, 2]),
            ((1, 1, 2), [3]),
            ((0, 1, 3), [2]),
            ((1, 1, 0), [1]),
            ((1, 1, 2, 3, 4), [2, 2, 2]),
            ((1, 1, 3), [0]),
            ((1, 1, 3), [2, 2]),
        ):
            args = (1, kernel) if name == "maxpool" else (kernel,)
            yield standard(name, f"shape {shape} kernel {kernel}", [plain(shape)], *args)
        for version in VERSIONS:
            args = (1, [2, 2]) if name == "maxpool" and version >= 8 else ([2, 2],)
            kind = name.removesuffix("pool")
            yield standard(
                name,
                f"opset {version}",
                [plain((1, 2, 4, 4))],
                *args,
                opset=version,
                expect=lambda x, k=kind: _pool_squares(x, k),
            )
    for p in (0, 1, 2, 3):
        yield standard("lppool", f"p {p}", [plain((1, 2, 4, 4))], [2, 2], p)
        yield standard("globallppool", f"p {p}", [plain((1, 2, 4, 4))], p)
    yield standard("maxpool", "two outputs", [plain((1, 1, 4, 4))], 2, [2, 2])
    yield standard("maxpool", "dilations", [plain((1, 1, 5))], 1, [2], dilations=[2])
    yield standard("maxpool", "storage order", [plain((1, 1, 4, 4))], 1, [2, 2], storage_order=1)
    yield standard(
        "averagepool", "counted padding", [plain((1, 1, 4))], [2], count_include_pad=1, pads=[1, 1]
    )
    for name in ("globalaveragepool", "globalmaxpool", "globallppool"):
        for dtype in TYPES:
            yield standard(name, f"{np.dtype(dtype)}", [plain((1, 2, 3, 4), dtype)])
        for dtype in FLOATS:
            largest = (lambda x: x.max(2, keepdims=True)) if "max" in name else None
            yield standard(
                name, f"{np.dtype(dtype)} special", [mixed((2, 2, 3), dtype)], expect=largest
            )
        for shape in ((2, 3), (2,), (), (1, 2, 0), (0, 2, 3), (1, 2, 2, 2, 2)):
            yield standard(name, f"shape {shape}", [plain(shape)])
    yield standard(
        "maxroipool",
        "regions",
        [plain((1, 1, 6, 6)), np.array([[0, 0, 0, 3, 3]], np.float32)],
        [2, 2],
    )
    indices = np.array([[[[5, 7], [13, 15]]]], np.int64)
    yield standard(
        "maxunpool",
        "2 by 2",
        [np.array([[[[1, 2], [3, 4]]]], np.float32), indices],
        [2, 2],
        strides=[2, 2],
    )


def _pool_squares(x: Array, kind: str) -> Array:
    """Return a pooling of windows of 2 by 2 at every place."""
    x = x.astype(np.float64)
    parts = np.stack([x[..., i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)])
    if kind == "lp":
        return np.sqrt((parts**2).sum(0))
    return parts.max(0) if kind == "max" else parts.mean(0)


def _iter_pads() -> Iterator[Case]:
    for mode, pads in itertools.product(
        ("constant", "reflect", "edge"),
        (
            [0, 0, 0, 0],
            [1, 0, 0, 2],
            [0, -1, 0, 0],
            [-1, 0, 0, -1],
            [1, 1, -1, 0],
            [-3, 0, 0, 0],
            [2, 0, 0, 2],
            [0, 3, 0, 3],
        ),
    ):
        for version in (10, 11):
            for dtype in (np.float32, np.float16, np.int32, np.bool_) if version == 11 else FLOATS:
                for value in (None, 1.5, np.nan) if mode == "constant" else (None,):
                    if value is not None and dtype not in FLOATS:
                        continue

                    def build(
                        b: Any,
                        names: list[str],
                        v: int = version,
                        p: Any = tuple(pads),
                        m: str = mode,
                        c: Any = value,
                        d: Any = dtype,
                    ) -> str:
                        o = getattr(b, f"aiOnnxOpset{v}")
                        if v < 11:
                            return o.pad(names, list(p), m, 0.0 if c is None else c)
                        more = [] if c is None else [o.constant(np.array(c, d))]
                        return o.pad([*names, o.constant(np.array(p, np.int64)), *more], m)

                    def expect(x: Any, p: Any = tuple(pads), m: str = mode, c: Any = value) -> Any:
                        rank = x.ndim
                        cut = tuple(
                            slice(max(0, -p[i]), x.shape[i] - max(0, -p[rank + i]))
                            for i in range(rank)
                        )
                        x = x[cut]
                        grown = [(max(0, p[i]), max(0, p[rank + i])) for i in range(rank)]
                        return (
                            np.pad(x, grown, m, constant_values=c or 0)
                            if m == "constant"
                            else np.pad(x, grown, m)
                        )

                    yield Case(
                        "aiOnnx.pad",
                        f"opset {version} {np.dtype(dtype)} {mode} {pads} {value}",
                        (plain((3, 4), dtype),),
                        build,
                        expect,
                        version,
                    )
    for pads in ([0, 0], [1, 1, 1], [0] * 6):
        yield Case(
            "aiOnnx.pad",
            f"wrong {pads}",
            (plain((3, 4)),),
            lambda b, n, p=pads: b.aiOnnxOpset10.pad(n, p),
            lambda x: x,
            10,
        )
    yield Case(
        "aiOnnx.pad",
        "pads at run time",
        (plain((3,)), np.array([1, 1], np.int64)),
        lambda b, n: b.aiOnnxOpset11.pad(n),
        None,
    )
    yield Case(
        "aiOnnx.pad",
        "no elements",
        (plain((0, 2)),),
        lambda b, n: b.aiOnnxOpset10.pad(n, [1, 0, 1, 0]),
        lambda x: np.zeros((2, 2)),
        10,
    )
    yield Case(
        "aiOnnx.pad",
        "a scalar",
        (plain(()),),
        lambda b, n: b.aiOnnxOpset10.pad(n, []),
        lambda x: x,
        10,
    )


def _iter_resizings() -> Iterator[Case]:
    for mode, transformation, nearest, scale in itertools.product(
        ("nearest", "linear", "cubic"),
        (
            "half_pixel",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "tf_crop_and_resize",
            "tf_half_pixel_for_nn",
        ),
        ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        (0.5, 1.0, 1.6, 2.0, 3.0),
    ):
        if mode != "nearest" and nearest != "round_prefer_floor":
            continue
        if transformation == "align_corners" and (4 * scale % 1 or 5 * scale % 1):
            continue  # PopART aligns the unrounded size

        def build(
            b: Any,
            names: list[str],
            m: str = mode,
            t: str = transformation,
            n: str = nearest,
            s: float = scale,
        ) -> str:
            o = b.aiOnnxOpset11
            roi = o.constant(np.zeros(8 if t == "tf_crop_and_resize" else 0, np.float32))
            scales = o.constant(np.array([1, 1, s, s], np.float32))
            return o.resize(
                [*names, roi, scales], coordinate_transformation_mode=t, mode=m, nearest_mode=n
            )

        yield Case(
            "aiOnnx.resize",
            f"{mode} {transformation} {nearest} {scale}",
            (plain((1, 1, 4, 5)),),
            build,
            None,
            rtol=1e-4,
        )
    for sizes in ([1, 1, 2, 3], [1, 1, 7, 8], [1, 2, 4, 5]):

        def by_sizes(b: Any, names: list[str], s: Any = tuple(sizes)) -> str:
            o = b.aiOnnxOpset11
            empty = [o.constant(np.zeros(0, np.float32)) for _ in range(2)]
            return o.resize([*names, *empty, o.constant(np.array(s, np.int64))])

        yield Case("aiOnnx.resize", f"sizes {sizes}", (plain((1, 1, 4, 5)),), by_sizes, None)
    older: Case | None = None
    for mode, scale in itertools.product(("nearest", "linear"), (0.5, 1.0, 2.0, 1.5)):
        for version in VERSIONS:

            def upsample(
                b: Any, names: list[str], v: int = version, m: str = mode, s: float = scale
            ) -> str:
                o = getattr(b, f"aiOnnxOpset{v}")
                if v == 6:
                    return o.upsample(names, s, s, m)
                if v < 9:
                    return o.upsample(names, [1, 1, s, s], m)
                scales = o.constant(np.array([1, 1, s, s], np.float32))
                return (
                    (o.upsample if v < 10 else o.resize)([*names, scales], m)
                    if v < 11
                    else o.upsample([*names, scales], m)
                )

            expect: Callable[[Array], Any] | None = None
            if mode == "nearest":
                expect = lambda x, s=scale: _repeat(_repeat(x, 2, s), 3, s)
            elif scale < 1 or version in (6, 10):
                continue  # ONNX Runtime has no such one, or counts from the edges of the elements
            elif version == 11:
                expect = lambda x, c=older: tuple(ask_witness(c))
            name = "aiOnnx.resize" if version == 10 else "aiOnnx.upsample"
            older = Case(
                name,
                f"opset {version} {mode} {scale}",
                (plain((1, 1, 2, 3)),),
                upsample,
                expect,
                version,
                rtol=1e-4,
            )
            yield older
    yield Case(
        "aiOnnx.roialign",
        "a region",
        (plain((1, 1, 6, 6)), np.array([[0, 0, 4, 4]], np.float32), np.array([0], np.int64)),
        lambda b, n: b.aiOnnxOpset11.roialign(n, output_height=2, output_width=3, sampling_ratio=2),
        None,
        rtol=1e-4,
    )
    for mode in ("avg", "max"):
        for ratio in (0, 1, 2):
            for scale in (1.0, 0.5):
                build = lambda b, n, m=mode, r=ratio, s=scale: b.aiOnnxOpset10.roialign(
                    n, mode=m, output_height=2, output_width=2, sampling_ratio=r, spatial_scale=s
                )
                x, regions = plain((2, 2, 6, 6)), np.array([[0, 0, 4, 4], [1, 2, 5, 5]], np.float32)
                wide = Case(
                    "aiOnnx.roialign",
                    f"{mode} {ratio} {scale}",
                    (x, regions, np.array([0, 1], np.int64)),
                    build,
                    None,
                    10,
                    rtol=1e-4,
                )
                yield wide
                yield Case(
                    "aiOnnx.roialign",
                    f"{mode} {ratio} {scale} int32",
                    (x, regions, np.array([0, 1], np.int32)),
                    build,
                    lambda *_, c=wide: tuple(ask_witness(c)),
                    10,
                    rtol=1e-4,
                )


def _repeat(x: Array, axis: int, scale: float) -> Array:
    """Return the elements of an axis that are nearest below."""
    places = np.arange(int(np.floor(x.shape[axis] * scale))) / scale
    return np.take(x, np.minimum(places.astype(int), x.shape[axis] - 1), axis)


def _iter_strides() -> Iterator[Case]:
    for shape, strides in (
        ((5, 4), [2, 3]),
        ((5,), [1]),
        ((2, 3), [1, 5]),
        ((0,), [2]),
        ((4, 4), [2]),
        ((4,), [2, 2]),
        ((3,), [-1]),
        ((4, 4), [0, 1]),
    ):
        yield own(
            "subsample",
            f"{shape} {strides}",
            [plain(shape)],
            lambda x, s=tuple(strides): x[tuple(slice(None, None, e) for e in s)],
            strides,
        )


def iter_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _iter_convolutions()
    yield from _iter_poolings()
    yield from _iter_pads()
    yield from _iter_resizings()
    yield from _iter_strides()
