"""Values of inputs: plain ones, and those that kernels treat otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from popart_methods.cases import Array

FLOATS = (np.float32, np.float16)
INTS = (np.int32, np.int64, np.uint32, np.int8, np.uint8, np.int16, np.uint16, np.uint64)
TYPES: tuple[type, ...] = (*FLOATS, *INTS, np.bool_)
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (), (1,), (0,), (2, 0, 3), (5,), (1, 2, 2, 3))
"""Shapes of inputs that may have any; some have no elements."""


def plain(shape: Sequence[int], dtype: npt.DTypeLike = np.float32, seed: int = 0) -> Array:
    """Return small numbers, which no type has to round much."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if kind.kind == "f":
        return np.asarray((rng.integers(-32, 33, shape) / 8).astype(kind))
    return np.asarray(rng.integers(0 if kind.kind == "u" else -5, 8, shape).astype(kind))


def specials(dtype: npt.DTypeLike) -> Array:
    """Return the values of a type that have rules of their own."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([True, False])
    if kind.kind != "f":
        info = np.iinfo(kind)
        ends = [0, 1, info.max, info.min] if kind.itemsize < 8 else [0, 1, 2**31 - 1]
        return np.array(ends, kind)
    tiny = np.finfo(kind).smallest_subnormal * 8
    numbers = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5]
    return np.array(numbers, kind)


def mixed(shape: Sequence[int], dtype: npt.DTypeLike = np.float32, seed: int = 0) -> Array:
    """Return plain numbers, every other one replaced by a special one."""
    values = plain(shape, dtype, seed).reshape(-1)
    chosen = np.resize(np.roll(specials(dtype), seed), len(values[::2]))
    values[::2] = chosen
    return values.reshape(shape)


def pairs(dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Return all pairs of special values, as two vectors."""
    values = specials(dtype)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def iter_inputs(dtype: npt.DTypeLike) -> Iterator[tuple[str, Array]]:
    """Yield inputs of one type: special values, then shapes."""
    yield "special", specials(dtype)
    for shape in SHAPES:
        yield f"shape {shape}", plain(shape, dtype, len(shape))
