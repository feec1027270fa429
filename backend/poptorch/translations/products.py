"""Products that are added to a tensor, with scales that torch knows: 0 leaves a part out.

A scale of 0 is no factor: torch does not read what it scales, so a NaN there is not seen. ONNX's
Gemm multiplies by it. torch leaves out the tensor for every operator, and the product for those of
`_SKIPPING`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

aten = torch.ops.aten
Decomposition = Callable[..., Any]


def _add(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Return beta * x + alpha * product in the product's shape and type."""
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return scaled + (x if beta == 1 else x * beta).to(product.dtype)


def _addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _skip(x, (a, b), beta, alpha, torch.mm, [a.shape[0], b.shape[1]])


def _addmv(x: Any, matrix: Any, vector: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _skip(x, (matrix, vector), beta, alpha, torch.mv, [matrix.shape[0]])


def _addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    def multiply(a: Any, b: Any) -> Any:
        return torch.bmm(a, b).sum(0, dtype=a.dtype)

    return _skip(x, (a, b), beta, alpha, multiply, [a.shape[1], b.shape[2]])


def _skip(
    x: Any,
    factors: tuple[Any, Any],
    beta: Any,
    alpha: Any,
    multiply: Decomposition,
    shape: list[int],
) -> Any:
    """Add a product, which is not computed if its scale is 0."""
    if alpha == 0:
        nothing = torch.zeros(shape, dtype=factors[0].dtype)
        return _add(x, nothing, beta, 1)
    return _add(x, multiply(*factors), beta, alpha)


def _baddbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add(x, torch.bmm(a, b), beta, alpha)


def _addr(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    scaled = torch.outer(a, b)
    scaled = scaled if alpha == 1 else alpha * scaled
    return scaled if beta == 0 else scaled + (x if beta == 1 else beta * x)


DECOMPOSITIONS: Final[Mapping[Any, Decomposition]] = {
    aten.addmm.default: _addmm,
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addbmm,
    aten.baddbmm.default: _baddbmm,
    aten.addr.default: _addr,
}
"""What computes torch's operators."""


def is_plain(node: Any) -> bool:
    """Return whether torch's exporter computes an operator of DECOMPOSITIONS as torch does.

    Args:
        node: A node of a program of torch.export.
    """
    scales = [node.kwargs.get(name, 1) for name in ("alpha", "beta")]
    value = node.meta["val"]
    kinds = {argument.meta["val"].dtype for argument in node.args}
    return bool(
        all(scales)
        and node.target is not aten.addr.default
        and kinds == {value.dtype}
        and value.dtype.is_floating_point
    )
