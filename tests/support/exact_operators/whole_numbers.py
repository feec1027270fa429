"""Ranges, the largest elements, scatters that reduce, and casts of integers, beside numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import helper

from exact_operators.forms import Array, Case, make_case
from exact_operators.integers import TYPES, list_ends, to_exact, versions, wrap


def draw_others() -> Iterator[Case]:
    """Yield ranges, the largest elements, scatters that reduce, and casts."""
    rng = np.random.default_rng(2)
    for dtype in (np.int16, np.int32, np.int64):
        for start, limit, step in (
            (0, 5, 1),
            (5, 0, -2),
            (0, 0, 1),
            (3, 1, 1),
            (-7, 8, 5),
            (1, 3, 3),
            (2, -9, -1),
        ):
            numbers = [np.array(v, dtype) for v in (start, limit, step)]
            yield make_case(
                f"Range {dtype.__name__} {start} {limit} {step}",
                ("Range", {}),
                numbers,
                [np.arange(start, limit, step).astype(dtype)],
                11,
                constants=range(3),
            )
    for dtype in TYPES:
        ends = list_ends(dtype)
        x = np.stack([rng.permutation(ends), ends[::-1], rng.choice(ends, len(ends))])
        for opset, largest, count in itertools.product(
            versions("TopK", dtype), (1, 0), (0, 1, 4, len(ends))
        ):
            if not largest and opset < 11:
                continue
            order = np.argsort(
                -x.astype(np.int64) if largest else x.astype(np.int64), 1, kind="stable"
            )[:, :count]
            attributes = {"largest": largest} if opset >= 11 else {}
            yield make_case(
                f"TopK {dtype.__name__} {largest} {count}",
                ("TopK", attributes),
                [x, np.array([count], np.int64)],
                [np.take_along_axis(x, order, 1), order],
                opset,
                constants=(1,),
            )
        for op_type, way in itertools.product(
            ("ScatterElements", "ScatterND"), ("none", "add", "mul", "max", "min")
        ):
            for opset in versions(op_type, dtype):
                if opset < (16 if way in ("none", "add", "mul") else 18) and way != "none":
                    continue
                yield _scatter(op_type, way, rng.choice(ends, (4, 3)), rng, opset, dtype)


_WAYS: dict[str, Callable[[int, int], int]] = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}


def _scatter(
    op_type: str, way: str, x: Array, rng: np.random.Generator, opset: int, dtype: Any
) -> Case:
    out, ends = to_exact(x), list_ends(dtype)
    if op_type == "ScatterElements":
        indices = np.array([[0, 1, 2], [-1, 1, 3]])
        if way == "none":
            indices = np.array([[0, 1, 2], [-1, 2, 3]])
        updates = rng.choice(ends, indices.shape)
        for (row, column), value in np.ndenumerate(updates):
            place = indices[row, column] % 4, column
            out[place] = _WAYS[way](out[place], int(value))
    else:
        indices = np.array([[0], [2], [-1]]) if way == "none" else np.array([[0], [2], [0]])
        updates = rng.choice(ends, (3, 3))
        for (row, column), value in np.ndenumerate(updates):
            place = indices[row, 0] % 4, column
            out[place] = _WAYS[way](out[place], int(value))
    attributes = {} if way == "none" else {"reduction": way}
    return make_case(
        f"{op_type} {np.dtype(dtype).name} {way}",
        (op_type, attributes),
        [x, indices, updates],
        [wrap(out, dtype)],
        opset,
    )


def draw_casts() -> Iterator[Case]:
    """Yield casts between the types: integers wrap, fractions are cut off."""
    for dtype, to in itertools.product(TYPES, TYPES):
        ends = list_ends(dtype)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        for opset in (6, 13, 21):
            yield make_case(
                f"Cast {dtype.__name__} {to.__name__}",
                ("Cast", {"to": kind}),
                [ends],
                [wrap(to_exact(ends), to)],
                opset,
            )
    for to in TYPES:
        info = np.iinfo(to)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        low, high = max(info.min, -(2**24)), min(info.max, 2**24)
        x = np.array(
            [0, 0.5, 0.99, 1.5, low, high, min(high, 2.5), max(low, -0.9), -0.0], np.float32
        )
        yield make_case(
            f"Cast float {to.__name__}", ("Cast", {"to": kind}), [x], [np.trunc(x).astype(to)], 13
        )
        yield make_case(
            f"Cast {to.__name__} float",
            ("Cast", {"to": 1}),
            [list_ends(to)],
            [list_ends(to).astype(np.float32)],
            13,
        )
        yield make_case(
            f"Cast {to.__name__} bool",
            ("Cast", {"to": 9}),
            [list_ends(to)],
            [list_ends(to).astype(bool)],
            13,
        )
        yield make_case(
            f"Cast bool {to.__name__}",
            ("Cast", {"to": kind}),
            [np.array([True, False])],
            [np.array([1, 0], to)],
            13,
        )
