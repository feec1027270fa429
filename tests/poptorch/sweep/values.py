"""Tensors of the sweep: ordinary and special values of all types, and pairs of types."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, -0.0, 0.0, 1e-40, -1e-45, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, -1e30, 2.5]
FLOATS = (torch.half, torch.float, torch.double)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = (torch.bool, *WHOLE, *FLOATS)


@dataclass(frozen=True)
class Case:
    """A call: a function of tensors, and the tensors."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def draw(*shape: int, seed: int = 0) -> Any:
    """Return draws of the normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def special(dtype: Any = torch.float, shift: int = 0) -> Any:
    """Return the special values of a type, from another one on."""
    if dtype is torch.bool:
        values: list[Any] = [True, False, True, True, False]
    elif dtype.is_floating_point:
        values = SPECIAL
    else:
        ends = torch.iinfo(torch.int32 if dtype is torch.int64 else dtype)
        values = [ends.min, ends.max, 0, 1, 2, 3, 5, 7, 100, ends.max // 2]
        values += [-1, -2, -7] if ends.min else [254, 253, 9]
    return torch.tensor(values[shift:] + values[:shift], dtype=dtype)


def pairs_of(values: Any) -> tuple[Any, Any]:
    """Return two vectors with every pair of some values."""
    pairs = list(itertools.product(values.tolist(), repeat=2))
    return tuple(torch.tensor(side, dtype=values.dtype) for side in zip(*pairs, strict=True))


def plain(dtype: Any, seed: int = 0, shape: tuple[int, ...] = (3, 4)) -> Any:
    """Return small values of a type, without zeros unless they are truth values."""
    x = draw(*shape, seed=seed) * 2
    if dtype is torch.bool:
        return x > 0
    if dtype.is_floating_point:
        return x.to(dtype)
    x = x.abs().ceil() if dtype is torch.uint8 else torch.sign(x) * x.abs().ceil()
    return x.to(dtype)


def name_type(dtype: Any) -> str:
    """Return the short name of a type."""
    return str(dtype).removeprefix("torch.")


def iter_type_pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield every pair of types, with tensors of dimensions and without."""
    for one, other in itertools.product(TYPES, repeat=2):
        if one is other:
            continue
        x, y = plain(one), plain(other, seed=1)
        yield f"{name_type(one)}, {name_type(other)}", x, y
        yield f"{name_type(one)}, 0-d {name_type(other)}", x, y[1, 1]
        yield f"0-d {name_type(one)}, {name_type(other)}", x[1, 1], y


SCALARS = (True, 3, -2, 2.5, 2**11 + 1, 0.1)
"""Numbers of Python beside tensors; 0.1 and 2049 are no half numbers."""
