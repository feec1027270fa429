"""Layers that torch's exporter writes wrongly or not at all, and those that PopTorch refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from poptorch.errors import Error

aten = torch.ops.aten


def _conv3d(x: Any, weight: Any, bias: Any = None, *args: Any, **keywords: Any) -> Any:
    """Give a convolution a bias: torch's exporter makes one of a wrong shape if there is none."""
    if bias is not None:
        return NotImplemented
    nothing = torch.zeros(weight.shape[0], dtype=weight.dtype)
    is_named = args and isinstance(args[1] if len(args) > 1 else keywords.get("padding"), str)
    operator = aten.conv3d.padding if is_named else aten.conv3d.default
    return operator(x, weight, nothing, *args, **keywords)


def _average(axes: int) -> Callable[..., Any]:
    """Return an average pool whose divisor may be given, which torch's exporter leaves out."""
    operator = getattr(aten, f"avg_pool{axes}d").default

    def pool(
        x: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,  # noqa: ARG001 # the divisor is given
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None:
            return NotImplemented
        sizes = list(kernel_size) * (axes // len(kernel_size))
        strides = list(stride) * (axes // len(stride)) if stride else sizes
        pads = list(padding) * (axes // len(padding))
        around = [amount for pad in pads[::-1] for amount in (pad, pad)]
        padded = torch.constant_pad_nd(x, around)
        summed = operator(padded, sizes, strides, [0] * axes, ceil_mode, False)
        count = math.prod(sizes)
        if ceil_mode:  # windows past the end are averaged over fewer elements
            ones = torch.ones(padded.shape, dtype=x.dtype)
            inside = operator(
                torch.constant_pad_nd(ones, [amount for s in sizes for amount in (0, s)]),
                sizes,
                strides,
                [0] * axes,
                False,
                True,
            )
            place = tuple(slice(0, size) for size in summed.shape)
            return summed * (inside[place] * count) / divisor_override
        return summed * (count / divisor_override)

    return pool


def _adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    """Return the means of cells: cell i of n covers i * size // n to its successor's start."""
    axes = len(output_size)
    cells = [
        [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip(x.shape[-axes:], output_size, strict=True)
    ]
    means = []
    for bounds in itertools.product(*cells):
        place = (..., *(slice(start, end) for start, end in bounds))
        means.append(x[place].mean(list(range(-axes, 0))))
    return torch.stack(means, -1).reshape([*x.shape[:-axes], *output_size])


def _log_sigmoid(x: Any) -> Any:
    """Return the logarithm, also where the sigmoid is less than every float."""
    zero = torch.zeros([], dtype=x.dtype)
    return torch.minimum(x, zero) - torch.log1p(torch.exp(-torch.abs(x)))


DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.conv3d.default: _conv3d,
    aten.conv3d.padding: _conv3d,
    aten.avg_pool2d.default: _average(2),
    aten.avg_pool3d.default: _average(3),
    aten.adaptive_avg_pool3d.default: _adaptive_average,
    aten.log_sigmoid.default: _log_sigmoid,
}
"""What computes torch's operators."""
_BIAS, _DIVISOR = 2, 6
"""Places of arguments."""


def is_plain(node: Any) -> bool:
    """Return whether torch's exporter computes an operator of DECOMPOSITIONS as torch does.

    Args:
        node: A node of a program of torch.export.
    """
    packet = node.target.overloadpacket
    if packet is aten.conv3d:
        return len(node.args) > _BIAS and node.args[_BIAS] is not None
    if packet in (aten.avg_pool2d, aten.avg_pool3d):
        return len(node.args) <= _DIVISOR or node.args[_DIVISOR] is None
    return packet is aten.adaptive_avg_pool3d and all(size == 1 for size in node.args[1])


def _check_bilinear(node: Any) -> str | None:
    """Return why PopTorch refuses a bilinear upsampling by scales, or None."""
    scales = node.args[3] if len(node.args) > _SCALES else node.kwargs.get("scale_factors")
    if not scales or (len(node.args) > 1 and node.args[1] is not None):
        return None
    if scales[0] != scales[1]:
        return "Non-uniform bilinear upsampling not supported"
    if scales[0] != math.floor(scales[0]):
        return "Bilinear upsampling with non-integer factor not supported"
    return None


_SCALES: Final = 3


def _check_bicubic(node: Any) -> str | None:
    return "Only support align_corners=False." if node.args[2] else None


def _refuse_mode(node: Any) -> str:
    name = node.target._schema.name  # noqa: SLF001 # torch has no other way
    return f"Unsupported upsample mode {name}: currently only 'nearest' is supported"


_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "aten::upsample_linear1d": _refuse_mode,
    "aten::upsample_trilinear3d": _refuse_mode,
    "aten::_upsample_nearest_exact1d": _refuse_mode,
    "aten::_upsample_nearest_exact2d": _refuse_mode,
    "aten::_upsample_nearest_exact3d": _refuse_mode,
    "aten::upsample_bilinear2d": _check_bilinear,
    "aten::upsample_bicubic2d": _check_bicubic,
}
"""Why PopTorch refuses an upsampling, by its name."""


def check_layers(program: Any) -> None:
    """Refuse upsampling that PopTorch refuses.

    Args:
        program: A program of torch.export.

    Raises:
        Error: If it has such an operator.
    """
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        check = _CHECKS.get(schema.name) if schema is not None else None
        if check is not None and (message := check(node)) is not None:
            raise Error(message, type="poptorch_cpp_error")
