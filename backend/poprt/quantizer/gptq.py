"""Rounding of weights to 8 bits so that the answers stay closer to those of half than with the
nearest values. Later weights compensate for the rounding errors of earlier ones.

After "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (Frantar
et al., 2022), in the form of LDLQ ("QuIP", Chee et al., 2023, which proves the two equal). The
Hessian of the activations is H = X'X = (A + 1) D (A + 1)', with A above the diagonal. The rule is

    for each input channel i:   q_i = round(w_i + (w - q)_<i A_<i,i)

It keeps (w - q) H (w - q)', the error of the answers, small. Format and scale of a weight do not
change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import attribute
from simipu.numerics import HALF_MAX, Convolution

from popef._tools.arrays import Array
from poprt.quantizer.search import ScaledFormat

MAX_CHANNELS = 8192
"""Maximum number of channels of an output. The Hessian of more would take half a gigabyte; such
weights are rounded to the nearest value."""
MAX_ROWS = 4096
"""Maximum number of rows of a batch that go into a layer's Hessian; of more rows, as in large
pictures, evenly spaced ones are taken."""
_DAMPING = 0.01
"""Share of the mean of the diagonal that is added to the diagonal, as in the paper."""
_BLOCK = 128
"""Number of channels whose corrections are made one by one before they are applied to later
channels."""
_MATRIX = 2
"""Number of axes of a matrix."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Layout of a product's weight as one matrix [groups, outputs, channels].

    Its activation becomes rows of channels [groups, rows, channels].
    """

    shape: tuple[int, ...]
    to_matrix: Callable[[Array], Array]
    from_matrix: Callable[[Array], Array]
    to_rows: Callable[[Array], Array]

    @staticmethod
    def of(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> WeightLayout | None:
        """Return the layout of a Conv, Gemm or MatMul whose operand `place` is a weight of that
        shape.

        Returns None for a product of stacks of matrices, and for one with more than `MAX_CHANNELS`
        channels.
        """
        if node.op_type == "Conv":
            layout = _of_convolution(node, shape)
        elif len(shape) == _MATRIX:
            layout = _of_matrix(node, place, shape)
        else:
            return None
        return layout if layout.shape[-1] <= MAX_CHANNELS else None


def _of_matrix(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> WeightLayout:
    """Return the layout of a matrix.

    A right operand has its channels along the first axis, a left one along the last; Gemm may
    transpose both.
    """
    # weight at place 0 (A)   [outputs, channels]; with transA [channels, outputs]: swaps
    # weight at place 1 (B)   [channels, outputs]: swaps; with transB [outputs, channels]
    # The activation has its channels last as A, and first as B, unless it is transposed.
    turned = ("transA", "transB")
    own, others = turned[place], turned[1 - place]
    swaps = bool(attribute(node, own, 0)) != (place == 1)
    swaps_other = bool(attribute(node, others, 0)) != (place == 0)
    outputs, channels = shape[::-1] if swaps else shape

    def to_rows(values: Array) -> Array:
        if swaps_other and values.ndim > 1:
            values = np.swapaxes(values, -1, -2)
        return np.ascontiguousarray(values).reshape(1, -1, channels)

    def turn(values: Array) -> Array:
        return values.T if swaps else values

    return WeightLayout(
        (1, outputs, channels),
        lambda values: turn(values)[None],
        lambda values: turn(values[0]),
        to_rows,
    )


def _of_convolution(node: onnx.NodeProto, shape: tuple[int, ...]) -> WeightLayout:
    """Return the layout of a convolution.

    Channels are those of a group at all kernel positions.
    """
    geometry = Convolution.of(node, shape)
    groups, rank = geometry.groups, len(geometry.kernel)
    matrix = (groups, shape[0] // groups, math.prod(shape[1:]))

    def to_rows(values: Array) -> Array:
        # Windows as large as a dilated kernel, at every position: strides thin out the positions,
        # dilations the inside of the windows. A row is what one result position sees of a group.
        begins, ends = geometry.padding(node, values.shape[2:])
        padded = np.pad(values, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        kernel = zip(geometry.kernel, geometry.dilations, strict=True)
        reach = tuple((taps - 1) * step + 1 for taps, step in kernel)
        axes: Any = tuple(range(2, 2 + rank))  # numpy's annotation allows one axis only
        windows: Array = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
        steps = (1, 1, *geometry.strides, *geometry.dilations)
        seen = windows[tuple(slice(None, None, step) for step in steps)]
        split = seen.reshape(seen.shape[0], groups, -1, *seen.shape[2:])
        moved = np.moveaxis(
            split, (1, 2), (0, 2 + rank)
        )  # [group, row, position ..., channel, tap ...]
        positions = _thin(math.prod(moved.shape[1 : 2 + rank]))
        chosen = np.unravel_index(positions, moved.shape[1 : 2 + rank])
        places: Any = (slice(None), *chosen)
        rows: Array = moved[places]
        return rows.reshape(groups, len(positions), -1)

    return WeightLayout(
        matrix, lambda values: values.reshape(matrix), lambda values: values.reshape(shape), to_rows
    )


def _thin(count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the rows to use out of `count`."""
    return (
        np.arange(count)
        if count <= MAX_ROWS
        else np.linspace(0, count - 1, MAX_ROWS).astype(np.int64)
    )


class Hessian:
    """Sum of the products of all pairs of channels over the activations that were added."""

    def __init__(self, layout: WeightLayout) -> None:
        self._layout = layout
        groups, _, channels = layout.shape
        self.sums = np.zeros((groups, channels, channels), np.float32)

    @staticmethod
    def size_bytes(layout: WeightLayout) -> int:
        """Return the number of bytes of a Hessian."""
        groups, _, channels = layout.shape
        return 4 * groups * channels**2

    def add(self, values: Array) -> None:
        """Add an activation; values that are not finite count as 0."""
        rows = self._layout.to_rows(
            np.nan_to_num(values.astype(np.float32), posinf=HALF_MAX, neginf=-HALF_MAX)
        )
        rows = rows[:, _thin(rows.shape[1])]
        self.sums += rows.swapaxes(-1, -2) @ rows


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A weight whose values are already 8-bit ones, and the errors of the answers over all
    activations that were added.

    `loss` is the error of these weights, `rounded_loss` that of the nearest ones.
    """

    values: Array
    loss: float
    rounded_loss: float


def adjust(
    weight: Array, layout: WeightLayout, candidate: ScaledFormat, hessian: Hessian
) -> Adjusted:
    """Return the 8-bit weights of a format and scale whose answers are nearest to the original
    ones.

    No output is worse than with the nearest weights, which are used if they are better.
    """
    matrix = layout.to_matrix(weight.astype(np.float32))
    sums = hessian.sums
    nearest = _round(matrix, candidate)
    fed_back = _feed_back(matrix, candidate, _factor(sums))
    of_nearest, of_found = _losses(matrix, nearest, sums), _losses(matrix, fed_back, sums)
    better = of_found < of_nearest
    values = np.where(better[..., None], fed_back, nearest)
    losses = np.where(better, of_found, of_nearest)
    return Adjusted(layout.from_matrix(values), float(losses.sum()), float(of_nearest.sum()))


def _losses(matrix: Array, rounded: Array, sums: Array) -> Array:
    """Return the error of each output."""
    # With e = rounded - matrix and H = X'X, e H e' is the sum of (X e')**2: the squared error of an
    # output over all rows X that were added.
    apart = (rounded - matrix).astype(np.float64)
    return np.asarray(((apart @ sums) * apart).sum(-1))


def _round(values: Array, candidate: ScaledFormat) -> Array:
    """Return the nearest 8-bit values that a half can hold."""
    within = np.clip(candidate.quantise(values), -HALF_MAX, HALF_MAX).astype(np.float16)
    return candidate.quantise(within).astype(np.float32)


def _factor(sums: Array) -> Array:
    """Return the matrix A of the Hessians.

    It has the share of each earlier channel's error that each channel compensates.
    """
    # H = U U' with U upper triangular, and U = (A + 1) sqrt(D): dividing each column by its
    # diagonal element leaves A + 1. The damping makes H invertible if channels depend on each
    # other; a Hessian of zeros becomes the unit matrix.
    damped = sums.astype(np.float64)
    diagonal = np.einsum("gii->gi", damped)
    mean = diagonal.mean(-1, keepdims=True)
    diagonal += np.where(mean > 0, _DAMPING * mean, 1.0)
    # A Cholesky factor is lower triangular. Reversing the matrix and its factor gives an upper one.
    upper = np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.asarray(upper / np.einsum("gii->gi", upper)[:, None, :], np.float32)


def _feed_back(matrix: Array, candidate: ScaledFormat, factor: Array) -> Array:
    # wanted_i = w_i + sum over all earlier j of (w - q)_j A_ji. The part of earlier blocks is one
    # product for a whole block; only the part within the block is computed channel by channel.
    channels = matrix.shape[-1]
    rounded, apart = np.empty_like(matrix), np.zeros_like(matrix)
    for start in range(0, channels, _BLOCK):
        end = min(start + _BLOCK, channels)
        targets = matrix[..., start:end] + apart[..., :start] @ factor[:, :start, start:end]
        for i in range(start, end):
            corrections = apart[..., start:i] @ factor[:, start:i, i, None]
            rounded[..., i] = _round(targets[..., i - start] + corrections[..., 0], candidate)
            apart[..., i] = matrix[..., i] - rounded[..., i]
    return rounded
