"""Rules of Resize and Upsample, axis by axis as PopART does.

Source: graphcore/popart, willow/src/op/resize.cpp, popx/op/resizex.cpp. Along an axis whose scale
is not 1 the nearest elements are gathered; linear and cubic interpolation are products with a
matrix that holds the weight of each element in each result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnxgraph import Results
from onnxgraph.opsets import RESIZE_SCALES_FROM_MIDDLES

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import FLOATS, Operation, check_floats, rule

_F = np.float32
_CUBIC = -0.75
"""Default coefficient of cubic interpolation."""
_TAPS = 4
"""Number of elements that a cubic result is made of."""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis that is resized."""

    before: int
    after: int
    scale: np.float32

    def coordinates(self, transformation: str) -> Floats:
        """Return where in the input each element of the result is."""
        index = np.arange(self.after, dtype=_F)
        size = _F(self.before) * self.scale
        places: npt.NDArray[Any] = np.zeros(self.after, _F)
        match transformation:
            case "half_pixel":
                places = (index + _F(0.5)) / self.scale - _F(0.5)
            case "pytorch_half_pixel":
                if size > 1:
                    places = (index + _F(0.5)) / self.scale - _F(0.5)
            case "asymmetric" | "pytorch":
                places = index / self.scale
            case "align_corners":
                if size != 1:
                    places = index * _F(self.before - 1) / (size - _F(1))
            case _:
                raise popart_exception("Unsupported coordinate transformation mode")
        return places.astype(_F)


_ROUNDINGS: MappingProxyType[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "round_prefer_ceil": lambda x: np.sign(x) * np.floor(np.abs(x) + _F(0.5)),
        "round_prefer_floor": lambda x: np.where(
            x - np.floor(x) <= _F(0.5), np.floor(x), np.ceil(x)
        ),
        "floor": np.floor,
        "ceil": np.ceil,
        "pytorch": np.floor,
    }
)
_TRANSFORMATIONS = frozenset(
    ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
)


@rule("Resize")
def _resize(op: Graph, node: Operation) -> Results:
    """Before opset 11 the nearest elements are by default those that PyTorch takes."""
    if node.get("exclude_outside", 0):
        raise popart_exception(
            f"{node.identifier}: Unsupported value '1' for attribute 'exclude_outside'. "
            "Acceptable values are [0]"
        )
    is_new = node.version >= RESIZE_SCALES_FROM_MIDDLES
    default = "round_prefer_floor" if is_new else "pytorch"
    nearest = node.get("nearest_mode", default)
    transformation = node.get("coordinate_transformation_mode", "half_pixel")
    if nearest not in _ROUNDINGS:
        raise popart_exception(f"Unrecognised resize nearest mode {nearest}")
    if transformation not in _TRANSFORMATIONS:
        raise popart_exception(
            f"Unrecognised resize coordinate transformation mode {transformation}"
        )
    return _resize_by(op, node, _scales(node), nearest, transformation)


@rule("RoiAlign")
def _align_regions(op: Graph, node: Operation) -> Results:
    """Regions begin where their coordinates are, and not half an element before."""
    x, regions, indices = (node.input(place) for place in range(3))
    check_floats(node, x, regions)
    attributes = {
        name: node.get(name)
        for name in ("mode", "output_height", "output_width", "sampling_ratio", "spatial_scale")
    }
    aligned = op.RoiAlign(
        op.in_float(x),
        op.in_float(regions),
        op.cast(indices, TensorProto.INT64),
        coordinate_transformation_mode="output_half_pixel",
        **attributes,
    )
    return op.cast(aligned, x.element_type)


@rule("Upsample")
def _upsample(op: Graph, node: Operation) -> Results:
    scales = node.get("scales")
    if node.version < 7:  # noqa: PLR2004
        sides = [float(node.get(f"{name}_scale", 1.0)) for name in ("height", "width")]
        scales = [1.0, 1.0, *sides]
    values = node.value(1) if scales is None else np.asarray(scales, _F)
    if values is None:
        raise popart_exception(f"{node.describe()}: the scales must be a constant")
    return _resize_by(op, node, values.ravel().astype(_F), "pytorch", "asymmetric")


def _scales(node: Operation) -> Floats:
    """Return the scales, which an input gives or which follow from the sizes."""
    if node.version < RESIZE_SCALES_FROM_MIDDLES:
        return _read_scales(node, 1)
    alternatives = [node.optional(place) for place in (2, 3)]
    if alternatives[0] is not None and alternatives[1] is not None:
        if alternatives[0].size and alternatives[1].size:
            raise popart_exception(
                "Resize op has inputs for `sizes` and `scales`. Only one of these tensors should "
                "be present. If `sizes` is needed, please pass an empty string as the name of "
                "`scales` in the input list ( resize([X, roi, '', sizes]) ). If the proto is not "
                "generated from the PopART Builder, please confirm that only one of the two "
                "tensors shall have data."
            )
        if not alternatives[0].size and not alternatives[1].size:
            raise popart_exception(
                "Resize op has  inputs for `sizes` and `scales`,but none of them have data."
            )
    if alternatives[0] is not None and alternatives[0].size:
        return _read_scales(node, 2)
    if alternatives[1] is not None:
        return _scales_of_sizes(node)
    raise popart_exception(
        "Resize op has no input for `size` or `scales`. One of these tensors needs to be present."
    )


def _read_scales(node: Operation, place: int) -> Floats:
    value = node.value(place)
    if value is None:
        raise popart_exception(f"{node.describe()}: the scales must be a constant")
    return value.ravel().astype(_F)


def _scales_of_sizes(node: Operation) -> Floats:
    sizes, shape = node.whole_numbers(3, "sizes"), node.x.shape
    if len(sizes) != len(shape):
        raise popart_exception(
            f"ResizeOp, length of sizes ({len(sizes)}) does not match the rank of input shape "
            f"({len(shape)})"
        )
    return np.asarray([_F(size) / _F(before) for size, before in zip(sizes, shape, strict=True)])


def _resize_by(
    op: Graph, node: Operation, scales: Floats, nearest: str, transformation: str
) -> Tensor:
    x, mode = node.x, node.get("mode", "nearest")
    if len(scales) != x.rank:
        raise popart_exception(
            f"The number of dimensions of the resize op scales ({len(scales)}) must match the "
            f"number of dimensions of the input ({x.rank})"
        )
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise popart_exception(f"Unrecognised resize mode {mode}")
    resized = x
    for place, (scale, before) in enumerate(zip(scales, x.shape, strict=True)):
        axis = _Axis(before, int(np.floor(_F(before) * scale)), _F(scale))
        if axis.after < 1:
            raise popart_exception(
                f"{node.describe()}: axis {place} of {format_shape(x.shape)} would have no "
                f"elements with scale {scale}"
            )
        if mode == "nearest":
            if scale != 1 and not (nearest == "pytorch" and axis.after == before):
                places = _nearest(axis, nearest, transformation)
                resized = op.Gather(resized, op.ints(places), axis=place)
        elif scale != 1:
            if mode == "cubic":
                factor = _F(node.get("cubic_coeff_a", _CUBIC))
                weights = _cubic(axis, transformation, factor)
            else:
                weights = _linear(axis, transformation)
            resized = _mix(op, resized, place, weights)
    return resized


def _nearest(axis: _Axis, nearest: str, transformation: str) -> npt.NDArray[np.int64]:
    rounding = _ROUNDINGS[nearest]
    factor = np.round(axis.scale)
    is_whole = abs(factor - axis.scale) <= _F(1e-5) and factor >= 0
    if is_whole and nearest not in ("floor", "ceil") and transformation == "half_pixel":
        return np.repeat(np.arange(axis.before), int(factor))[: axis.after].astype(np.int64)
    where = axis.coordinates("pytorch" if nearest == "pytorch" else transformation)
    return np.clip(rounding(where).astype(np.int64), 0, axis.before - 1)


def _linear(axis: _Axis, transformation: str) -> Floats:
    """Return the matrix [result, input] of linear interpolation."""
    where = axis.coordinates(transformation)
    low, high = (
        np.clip(bound(where).astype(np.int64), 0, axis.before - 1) for bound in (np.floor, np.ceil)
    )
    share = np.maximum(where, _F(0))
    share = share - np.floor(share)
    weights = np.zeros((axis.after, axis.before), _F)
    rows = np.arange(axis.after)
    np.add.at(weights, (rows, low), _F(1) - share)
    np.add.at(weights, (rows, high), share)
    return weights


def _cubic(axis: _Axis, transformation: str, a: np.float32) -> Floats:
    """Return the matrix [result, input] of cubic interpolation; beyond the ends is the end."""
    where = axis.coordinates(transformation)
    first = np.floor(where).astype(np.int64)
    near = where - first.astype(_F)
    far = _F(1) - near
    outer = [((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a for x in (near, far)]
    inner = [((a + 2) * x - (a + 3)) * x * x + 1 for x in (near, far)]
    weights = np.zeros((axis.after, axis.before), _F)
    rows = np.arange(axis.after)
    for tap, share in zip(range(_TAPS), (outer[0], inner[0], inner[1], outer[1]), strict=True):
        places = np.clip(first + tap - 1, 0, axis.before - 1)
        np.add.at(weights, (rows, places), share.astype(_F))
    return weights


def _mix(op: Graph, x: Tensor, axis: int, weights: Floats) -> Tensor:
    """Return the products of an axis with the rows of a matrix."""
    order = [place for place in range(x.rank) if place != axis] + [axis]
    dtype = x.dtype if x.element_type in FLOATS else _F
    matrix = op.constant(np.ascontiguousarray(weights.T), dtype)
    turned = op.transpose(x, order)
    turned = turned if x.element_type in FLOATS else op.in_float(turned)
    mixed = op.MatMul(turned, matrix)
    return op.cast(op.transpose(mixed, [int(place) for place in np.argsort(order)]), x.element_type)
