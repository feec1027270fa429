"""Layouts of tensors on the tiles: which operator placed them, which elements stay together, and
the effect of views.

PopART moves nothing for a Transpose, Reshape, Slice, Split, Concat or Expand: each is another view
of the same bytes (docs/ipu-performance.md, section 6.1). The reader that needs another layout pays
for a view, at most once per operand, in pieces as long as the layout keeps together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnxgraph import TensorSize, attribute

from simipu.chip.target import HALF_BYTES
from simipu.operators.formulas.spread import Spread
from simipu.operators.formulas.vertices import REARRANGE_CYCLES_PER_BYTE

BLOCK = 16
"""Output channels that the AMP units compute together: results of products lie in pieces of this
size."""
WHOLE_ATOM_BYTES = 8
"""Minimum bytes of a whole atom: data moved in pieces of 64 bits is mostly moved in whole rows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a tensor on the tiles."""

    identity: Hashable
    """What decides on which tile the element of an index is, counted row after row: an even spread,
    a product's plan, or the name of a tensor that nothing else lies like. Tensors of equal
    identities are on the same tiles, whoever placed them."""
    axis: int
    """Dimension whose elements are adjacent in memory."""
    piece: int
    """Number of adjacent elements before those of another row."""
    grain: int
    """Common divisor of all pieces: the elements that can be moved together. It is less than a
    piece if the last piece is shorter."""
    imbalance: float = 1.0
    """Elements of the fullest tile relative to an even spread, at least 1."""
    row_parts: int = 1
    """Number of tiles over which a row along `axis` is spread."""
    spread: Spread | None = field(default=None, compare=False)
    """Elements of the tensor that was placed on each tile, if a plan placed it. A view of another
    size has only some of them, or some several times."""

    def cut(self, size: int) -> Layout:
        """Return the layout of a part with `size` elements along the pieces."""
        return replace(self, piece=max(1, min(self.piece, size)), grain=math.gcd(self.grain, size))


def operand_atom(value: TensorSize, layout: Layout | None, axis: int) -> int:
    """Return the bytes that stay together when an operand is brought into rows along `axis`.

    Pieces along another axis are first transposed in blocks on their tile, if both sizes are
    multiples of a vector (popops' regroupTensor). So only odd sizes are moved element by element.
    """
    if layout is None or not value.shape:
        return WHOLE_ATOM_BYTES
    # Halves in pieces of 16 channels, of which the channels are the sum: 32 bytes stay together. If
    # the rows are the sum, blocks of 16 channels are transposed: 64 rows come in whole vectors, but
    # 77 rows element by element. No regression exists for other sizes than 8, 4 and 2 bytes.
    width = value.bytes_per_element
    axis %= len(value.shape)
    grain = layout.grain if layout.axis == axis else math.gcd(layout.grain, value.shape[axis])
    together = math.gcd(grain * width, WHOLE_ATOM_BYTES)
    return max(HALF_BYTES, together) if together in REARRANGE_CYCLES_PER_BYTE else HALF_BYTES


def moved_atom(value: TensorSize, source: Layout, target: Layout) -> int:
    """Return the bytes that stay together when a tensor is brought from one layout to another."""
    # Whole rows follow one another: only the last one of a tile ends within a vector.
    if _has_whole_rows(source, value) and _has_whole_rows(target, value):
        return WHOLE_ATOM_BYTES
    return operand_atom(value, source, target.axis)


def turning_cycles(value: TensorSize, source: Layout, target: Layout, moved: float) -> float:
    """Return the cycles of a tile that copies `moved` received bytes of a tensor into the pieces of
    another layout: none if they arrive so, in whole vectors along the same axis."""
    atom = moved_atom(value, source, target)
    arrives = atom == WHOLE_ATOM_BYTES and source.axis == target.axis
    return 0.0 if arrives else moved * REARRANGE_CYCLES_PER_BYTE[atom]


def _has_whole_rows(layout: Layout, value: TensorSize) -> bool:
    rank = len(value.shape)
    return layout.axis == rank - 1 and layout.row_parts == 1 and layout.piece >= value.shape[-1]


@dataclass(frozen=True, slots=True)
class View:
    """A node that moves nothing, with its inputs that have data, the source first, and its
    result."""

    node: onnx.NodeProto
    layouts: Sequence[Layout]
    inputs: Sequence[TensorSize]
    result: TensorSize
    strided: bool
    """True for a slice that skips or reverses elements."""
    source: Layout
    value: TensorSize


ViewRule = Callable[[View], Layout]
"""Function that returns the layout of a view, as far as it keeps elements together."""


def linear(value: TensorSize, identity: Hashable = None) -> Layout:
    """Return the layout row after row, in equal parts: that of inputs from the host, and of results
    that no product made. With an `identity` the parts are not those of all such tensors."""
    length = max(1, value.shape[-1]) if value.shape else 1
    even = ("even", value.size, value.bytes_per_element)
    return Layout(identity or even, max(0, len(value.shape) - 1), length, length)


def follow(view: View, rule: ViewRule | None) -> Layout:
    """Return the layout of a view by the rule of its operator; without one its elements lie as its
    source's, or row after row if the shape changes."""
    source, value, result = view.source, view.value, view.result
    if rule is None or not value.shape or not result.shape:
        return source if value.shape == result.shape else linear(result, view.node.output[0])
    followed = rule(view)
    parts = min(followed.row_parts, max(1, result.shape[followed.axis]))
    # Elements keep their index, as in every Reshape, unless some are left out or repeated.
    identity = followed.identity if value.size == result.size else view.node.output[0]
    return replace(followed, identity=identity, row_parts=parts)


def transposed_view(view: View) -> Layout:
    """Layout of a Transpose."""
    order = list(attribute(view.node, "perm", list(reversed(range(len(view.result.shape))))))
    # Elements keep their index if only axes of one element change their places.
    wide = [axis for axis in order if view.value.shape[axis] > 1]
    identity = view.source.identity if wide == sorted(wide) else view.node.output[0]
    return replace(view.source, identity=identity, axis=order.index(view.source.axis))


def reshaped_view(view: View) -> Layout:
    """Return a layout whose pieces lie along the dimension with the same stride, as far as whole
    pieces fit into it."""
    source, value, result = view.source, view.value, view.result
    # A reshape keeps the row-major order, so that elements that are `stride` apart stay so:
    #     [rows, 768] -> [rows, 12, 64]     stride 1: the 64; 12 row parts become one
    #     [n, c, h, w] -> [n, c, h * w]     pieces along c, stride h * w: still c
    # If no dimension has that stride, neighbours are spread over two: only single elements stay.
    stride = math.prod(value.shape[source.axis + 1 :])
    inner = 1
    for axis in reversed(range(len(result.shape))):
        size = result.shape[axis]
        if inner == stride and size > 1:
            parts = max(1, source.row_parts * size // max(1, value.shape[source.axis]))
            return replace(source.cut(size), axis=axis, row_parts=parts)
        inner *= size
    return replace(source, axis=len(result.shape) - 1, piece=1, grain=1, row_parts=1)


def cut_view(view: View) -> Layout:
    """Return the layout of a slice or a padded tensor. Along the pieces' dimension it keeps their
    common divisor; along others whole pieces stay."""
    source, value = view.source, view.value
    if view.strided:  # it may be as large as its source, but the other way round
        source = replace(source, identity=view.node.output[0])
    size = view.result.shape[source.axis]
    if size == value.shape[source.axis]:
        return source
    parts = max(1, source.row_parts * size // max(1, value.shape[source.axis]))
    if view.strided:
        return replace(source, piece=1, grain=1, row_parts=parts)
    return replace(source.cut(size), row_parts=parts)


def joined_view(view: View) -> Layout:
    """Layout of a Concat."""
    # The parts stay where they are; the largest stands for all of them. Joined along its pieces'
    # dimension, a piece ends where a part ends.
    source = max(zip(view.layouts, view.inputs, strict=True), key=lambda each: each[1].size)[0]
    axis = attribute(view.node, "axis", 0) % len(view.result.shape)
    if source.axis != axis:
        return source
    sizes = [value.shape[axis] for value in view.inputs if len(value.shape) > axis]
    piece = min(source.piece, *sizes, source.piece)
    return replace(source, piece=piece, grain=math.gcd(source.grain, *sizes))


def spread_out_view(view: View) -> Layout:
    """Layout of an Expand or a Tile."""
    source, value, result = view.source, view.value, view.result
    # New dimensions come first, as in broadcasting. If the pieces' own dimension is repeated,
    # nothing longer than an element is certain to stay together.
    axis = source.axis + len(result.shape) - len(value.shape)
    keeps_axis = axis >= 0 and result.shape[axis] == value.shape[source.axis]
    moved = replace(source, axis=max(axis, 0))
    return moved if keeps_axis else replace(moved, piece=1, grain=1)
