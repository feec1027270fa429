"""ATen operators that torch's exporter cannot express in ONNX, written with others that it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx import TensorProto
from poprt.passes.precision.floats import retype_floats

from poptorch.errors import Error

INPUT_TYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
"""Types of inputs that the IPU has, or that are narrowed to one of its types."""
OPSET = 18
"""Opset that torch's translations are written in."""

_NARROWED = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
}
aten = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""Functions of torch for operators that torch's exporter does not know."""


def decompose(program: Any) -> Any:
    """Return a program without the operators of DECOMPOSITIONS.

    Args:
        program: A program of torch.export. It is returned as it is if it has none of them.
    """
    targets = {node.target for node in program.graph.nodes} & DECOMPOSITIONS.keys()
    if not targets:
        return program
    return program.run_decompositions({each: DECOMPOSITIONS[each] for each in targets})


def _decomposes(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


@_decomposes(aten.cdist.default)
def _cdist(x: Any, y: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:  # noqa: ARG001
    difference = torch.abs(x.unsqueeze(-2) - y.unsqueeze(-3))
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == float("inf"):
        return difference.amax(-1)
    if p == 1:
        return difference.sum(-1)
    if p == 2:  # noqa: PLR2004
        return torch.sqrt((difference * difference).sum(-1))
    return torch.pow(torch.pow(difference, p).sum(-1), 1 / p)


@_decomposes(aten.median.default)
def _median(x: Any) -> Any:
    flat = x.reshape(-1)
    return torch.sort(flat).values[(flat.shape[0] - 1) // 2]


@_decomposes(aten.median.dim)
def _median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _pick_sorted(x, (x.shape[dim] - 1) // 2, dim, keepdim)


@_decomposes(aten.kthvalue.default)
def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _pick_sorted(x, k - 1, dim, keepdim)


def _pick_sorted(x: Any, place: int, dim: int, keepdim: bool) -> Any:
    values, indices = torch.sort(x, dim=dim)
    picked = [each.select(dim, place) for each in (values, indices)]
    return tuple(each.unsqueeze(dim) if keepdim else each for each in picked)


@_decomposes(aten.sort.stable)
def _stable_sort(
    x: Any,
    *,
    stable: bool | None = None,  # noqa: ARG001
    dim: int = -1,
    descending: bool = False,
) -> Any:
    """Sort by TopK, which puts the lower index first among equal elements."""
    return torch.topk(x, x.shape[dim], dim, largest=descending, sorted=True)


@_decomposes(aten.argsort.stable)
def _stable_argsort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return _stable_sort(x, stable=stable, dim=dim, descending=descending)[1]


@_decomposes(aten.cumprod.default)
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Multiply in rounds: after round k each element is the product of the 2^k before it."""
    x = x.to(dtype) if dtype is not None else x
    if x.dim() == 0:
        return x.clone()
    reach, length = 1, x.shape[dim]
    while reach < length:
        shape = list(x.shape)
        shape[dim] = reach
        shifted = torch.cat([x.new_ones(shape), x.narrow(dim, 0, length - reach)], dim)
        x, reach = x * shifted, 2 * reach
    return x


@_decomposes(aten.bincount.default)
def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if minlength <= 0:
        raise Error(
            "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 "
            "platform the minimum length is also the maximum length"
        )
    counted = x.new_ones(x.shape) if weights is None else weights
    return counted.new_zeros(minlength).scatter_add(0, x.to(torch.int64), counted)


def narrow(tensor: Any) -> Any:
    """Return a tensor in the IPU's type.

    Args:
        tensor: The tensor.
    """
    return tensor.to(_NARROWED.get(tensor.dtype, tensor.dtype))


def narrow_bfloat16(model: onnx.ModelProto) -> None:
    """Turn the BFLOAT16 of a model into FLOAT: the IPU has no such type.

    Args:
        model: The model, which is changed.
    """
    retype_floats(model, TensorProto.BFLOAT16, TensorProto.FLOAT, "single")
