"""Pools and convolutions with every padding, in all opsets, and Slices in their old and new form,
beside numpy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from exact_operators.forms import Array, Case, make_case

_AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
_CEILS, _DILATES = (
    {"MaxPool": 10, "AveragePool": 10, "LpPool": 18},
    {"MaxPool": 10, "AveragePool": 19, "LpPool": 18},
)
_COUNTS_PADS = 7
_OPSETS = {
    "MaxPool": (1, 8, 10, 11, 12, 22),
    "AveragePool": (1, 7, 10, 11, 19, 22),
    "LpPool": (2, 11, 18, 22),
}


def _place(
    auto: str, size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], ceil: int
) -> tuple[int, int, int]:
    """Return the number of windows and the padding before and behind an axis."""
    extent = (kernel - 1) * dilation + 1
    if auto.startswith("SAME"):
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + extent - size)
        half = total // 2
        return (count, half, total - half) if auto == "SAME_UPPER" else (count, total - half, half)
    before, behind = (0, 0) if auto == "VALID" else pads
    room = size + before + behind - extent
    count = -(-room // stride) + 1 if ceil else room // stride + 1
    if ceil and (count - 1) * stride >= size + before:
        count -= 1
    return count, before, behind


def pool(
    op_type: str,
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    auto: str,
    pads: Sequence[tuple[int, int]],
    ceil: int,
    counts_pads: int,
) -> Array | None:
    """Return the pool of a tensor with two spatial axes, or None without any window."""
    places = [
        _place(auto, *axis, ceil)
        for axis in zip(x.shape[2:], kernel, strides, dilations, pads, strict=True)
    ]
    if min(count for count, *_ in places) < 1:
        return None
    out = np.zeros((*x.shape[:2], *(count for count, *_ in places)), np.float64)
    for at in np.ndindex(*out.shape[2:]):
        inside, counted = [], 1
        for axis, (position, (_, before, behind)) in enumerate(zip(at, places, strict=True)):
            size = x.shape[2 + axis]
            taken = [
                position * strides[axis] - before + k * dilations[axis] for k in range(kernel[axis])
            ]
            inside.append([t for t in taken if 0 <= t < size])
            counted *= len([t for t in taken if t < size + behind])
        place = (slice(None), slice(None), *at)
        if 0 in x.shape[2:]:
            mean = 0 if counts_pads else np.nan
            out[place] = {"MaxPool": -np.inf, "LpPool": 0, "AveragePool": mean}[op_type]
            continue
        if not all(inside):
            return None
        window = x[:, :, inside[0]][:, :, :, inside[1]].astype(np.float64)
        if op_type == "MaxPool":
            value = window.max((2, 3))
        elif op_type == "LpPool":
            value = np.sqrt((window**2).sum((2, 3)))
        else:
            value = window.sum((2, 3)) / (
                counted if counts_pads else window[0, 0].size if window.size else 1
            )
        out[place] = value
    return out.astype(np.float32)


def _iter_pools() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield operators, opsets and attributes, all of which are given."""
    for op_type, opsets in _OPSETS.items():
        sizes = ((1, 2), (2, 3), (3, 1)), ((1, 1), (2, 3), (3, 2), (4, 5)), ((1, 1), (2, 1))
        forms = itertools.product(opsets, _AUTO, *sizes, (0, 1), (0, 1))
        # Every fifth: all of them take a quarter of an hour, and five is no size of a list above.
        for opset, *values in itertools.islice(forms, 0, None, 5):
            auto, kernel, strides, dilations, ceil, counts_pads = cast("list[Any]", values)
            if max(dilations) > 1 and opset < _DILATES[op_type]:
                dilations = (1, 1)
            yield (
                op_type,
                opset,
                {
                    "auto_pad": auto,
                    "kernel_shape": kernel,
                    "strides": strides,
                    "dilations": dilations,
                    "ceil_mode": ceil if opset >= _CEILS[op_type] else 0,
                    "count_include_pad": (
                        counts_pads if op_type == "AveragePool" and opset >= _COUNTS_PADS else 0
                    ),
                },
            )


_IMAGES = (
    ((1, 2, 5, 7), ((0, 1), (1, 0))),
    ((2, 1, 4, 6), ((0, 0), (0, 0))),
    ((0, 1, 5, 5), ((0, 0), (0, 0))),
    ((1, 2, 0, 5), ((1, 1), (1, 0))),
)
"""Shapes, with padding of the rows and columns."""


def draw_pools() -> Iterator[Case]:
    """Yield pools whose windows are below, at and above their strides, with every padding."""
    rng = np.random.default_rng(7)
    for (op_type, opset, given), (shape, sides) in itertools.product(_iter_pools(), _IMAGES):
        kernel, auto = given["kernel_shape"], given["auto_pad"]
        fits = all(max(side) < size for side, size in zip(sides, kernel, strict=True))
        pads = sides if auto == "NOTSET" and fits else ((0, 0), (0, 0))
        x = rng.standard_normal(shape).astype(np.float32)
        attributes = {name: value for name, value in given.items() if value not in (0, (1, 1))}
        attributes |= {"kernel_shape": kernel, "strides": given["strides"]}
        if auto == "NOTSET":
            del attributes["auto_pad"]
            if any(map(any, pads)):
                attributes["pads"] = [pads[0][0], pads[1][0], pads[0][1], pads[1][1]]
        out = pool(
            op_type, x, kernel, given["strides"], given["dilations"], auto, pads,
            given["ceil_mode"], given["count_include_pad"],
        )  # fmt: skip
        if out is not None:
            words = f"{op_type} {shape} {attributes}"
            yield make_case(words, (op_type, attributes), [x], [out], opset, error=1e-5)


def draw_convolutions() -> Iterator[Case]:
    """Yield convolutions with SAME and VALID, windows below their strides, of no rows and channels."""
    rng = np.random.default_rng(8)
    forms = itertools.product(
        (1, 11, 22),
        _AUTO[:3],
        ((1, 1), (2, 3), (3, 1)),
        ((1, 1), (2, 3), (4, 5)),
        ((1, 1), (2, 1)),
        ((1, 2, 5, 7), (2, 2, 4, 6), (0, 2, 5, 5), (1, 0, 5, 5)),
    )
    for opset, auto, kernel, strides, dilations, shape in forms:
        x = rng.standard_normal(shape).astype(np.float32)
        w = rng.standard_normal((3, shape[1], *kernel)).astype(np.float32)
        bias = rng.standard_normal(3).astype(np.float32)
        places = [
            _place(auto, *axis, (0, 0), 0)
            for axis in zip(shape[2:], kernel, strides, dilations, strict=True)
        ]
        if min(count for count, *_ in places) < 1:
            continue
        padded = np.pad(x, ((0, 0), (0, 0), *((before, behind) for _, before, behind in places)))
        out = np.zeros((shape[0], 3, *(count for count, *_ in places)))
        for at in np.ndindex(*out.shape[2:]):
            rows, columns = (
                [p * s + k * d for k in range(n)]
                for p, s, n, d in zip(at, strides, kernel, dilations, strict=True)
            )
            place = (slice(None), slice(None), *at)
            out[place] = np.einsum("ncij,ocij->no", padded[:, :, rows][:, :, :, columns], w) + bias
        attributes = {
            "auto_pad": auto,
            "strides": strides,
            "dilations": dilations,
            "kernel_shape": kernel,
        }
        yield make_case(
            f"Conv {shape} {attributes}",
            ("Conv", attributes),
            [x, w, bias],
            [out.astype(np.float32)],
            opset,
            constants=(1, 2),
            error=1e-5,
        )


def draw_slices() -> Iterator[Case]:
    """Yield Slices with axes in any order, negative ones, without axes, and with steps, in every
    opset."""
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    orders: tuple[tuple[int, ...] | None, ...] = (
        None,
        (0,),
        (2,),
        (1, 0),
        (2, 0),
        (2, 1, 0),
        (0, 2),
        (1, 2, 0),
        (-1, 0),
        (-1, -3),
        (0, -1),
    )
    bounds = ((0, 2), (1, 1000), (-2, -1), (2, 1), (-1000, 3), (1, 2**31 - 1), (0, 0))
    for opset, axes, shift, dtype in itertools.product(
        (1, 10, 11, 13), orders, range(len(bounds)), (np.float32, np.int32)
    ):
        count = len(axes) if axes is not None else 3
        chosen = [bounds[(shift + place) % len(bounds)] for place in range(count)]
        starts, ends = [low for low, _ in chosen], [high for _, high in chosen]
        if opset < 11 and axes is not None and min(axes) < 0 and opset > 1:
            continue
        index: list[Any] = [slice(None)] * 3
        for axis, low, high in zip(axes or range(count), starts, ends, strict=True):
            index[axis] = slice(low, high)
        value = x.astype(dtype)
        out = np.ascontiguousarray(value[tuple(index)])
        words = f"Slice {np.dtype(dtype).name} {axes} {chosen}"
        if opset < 10:
            attributes = {"starts": starts, "ends": ends} | (
                {"axes": axes} if axes is not None else {}
            )
            yield make_case(words, ("Slice", attributes), [value], [out], opset)
            continue
        inputs: list[Array | None] = [value, *(np.array(n, np.int64) for n in (starts, ends))]
        inputs += [np.array(axes, np.int64)] if axes is not None else []
        yield make_case(words, ("Slice", {}), inputs, [out], opset, constants=range(1, len(inputs)))
    for some_axes, step in itertools.product(((0,), (2, 0), (-1, 1)), (-1, -2, 2)):
        index = [slice(None)] * 3
        for axis in some_axes:
            index[axis] = slice(None, None, step)
        out = np.ascontiguousarray(x[tuple(index)])
        low, high = (2**31 - 1, -(2**31)) if step < 0 else (0, 2**31 - 1)
        inputs = [
            x,
            *(np.array([n] * len(some_axes), np.int64) for n in (low, high)),
            np.array(some_axes, np.int64),
            np.array([step] * len(some_axes), np.int64),
        ]
        yield make_case(
            f"Slice {some_axes} step {step}",
            ("Slice", {}),
            inputs,
            [out],
            13,
            constants=range(1, 5),
        )
