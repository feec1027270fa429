"""Passes that merge two consecutive nodes of a kind into one.

The first of the two stays if other nodes read it too. Arithmetic is not merged in that case,
because nothing would be gained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import GraphEditor, attribute, find_inputs, set_attribute
from onnxgraph.opsets import AXES_ARE_INPUTS
from simipu.operators import names_where, operator_of

from popef._tools.arrays import Array
from poprt.passes.folding.nops import keeps_shape, permutation
from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import GraphRule

_ADDING, _SCALING = ("Add", "Sub"), ("Mul", "Div")


class _ConsecutivePairs(GraphRule):
    """Base class of passes for nodes that read the result of a node of the same family."""

    alone: bool = False
    """Flag that no other node may read the tensor between the two."""

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge a pair at the second of them, so that three consecutive nodes become one."""
        for name in node.input[: 2 if self.alone else 1]:
            first = view.private_maker(name) if self.alone else view.maker(name)
            if first is not None and self.matches(first):
                self.fuse(first, node, view)
                break

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Change `second` in place to compute both, if possible."""
        raise NotImplementedError


@register("fuse_consecutive_cast", stage=Stage.FOLDING, default=True)
class FuseConsecutiveCast(_ConsecutivePairs):
    """Cast at once what is cast twice, where the type between holds every value of the first, or a
    value's range shows that nothing is lost on the way; back to the first type, nothing is left."""

    op_types = frozenset({"Cast"})

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Casts. A Cast with attributes other than the type (as our scale) stays."""
        source_type = view.type(first.input[0])
        between, target_type = attribute(first, "to", 0), attribute(second, "to", 0)
        if len(first.attribute) > 1 or len(second.attribute) > 1:
            return
        is_safe = is_lossless(source_type, between, target_type)
        if not is_safe and not _fits(first.input[0], between, target_type, view):
            return
        if source_type == target_type and view.bypass(second, first.input[0]):
            return
        view.set_input(second, 0, first.input[0])


def _dtype(element: int) -> np.dtype[np.generic] | None:
    """Return the numpy type of an element type whose casts the processor defines."""
    if element not in helper.get_all_tensor_dtypes() or element == TensorProto.STRING:
        return None
    name = TensorProto.DataType.Name(element)
    plain = name.lstrip("U") in "FLOAT FLOAT16 DOUBLE BOOL INT8 INT16 INT32 INT64".split()
    return helper.tensor_dtype_to_np_dtype(element) if plain else None


def is_lossless(given: int, between: int, wanted: int) -> bool:
    """Return whether a cast by way of the type `between` equals the cast from `given` to `wanted`.

    Values outside the range of an integer type are cast differently from floats than from other
    integers.
    """
    types = _dtype(given), _dtype(between), _dtype(wanted)
    if None in types:
        return False
    start, middle, end = (element_type for element_type in types if element_type is not None)
    if not np.can_cast(start, middle, "safe"):
        return False
    changes_kind = (start.kind == "f") != (middle.kind == "f")
    return not changes_kind or end.kind in "fb" or np.can_cast(start, end, "safe")


def _fits(name: str, between: int, wanted: int, view: GraphEditor) -> bool:
    """Return whether a cast by way of an integer type `between` loses nothing of a tensor of
    integers whose range is known. Either `between` holds all values, or `wanted` is bool and no
    other value becomes 0 on the way."""
    middle, end = _integer_bounds(between), _dtype(wanted)
    if middle is None or end is None:
        return False
    if end.kind == "b" and _is_mask_of_pairs(name, view):
        return True
    bounds = _find_range(name, view)
    if bounds is None:
        return False
    if end.kind == "b":
        wraps_at = middle[1] - middle[0] + 1
        return -wraps_at < bounds[0] and bounds[1] < wraps_at
    return middle[0] <= bounds[0] and bounds[1] <= middle[1]


def _is_mask_of_pairs(name: str, view: GraphEditor) -> bool:
    """Return whether a tensor is the product of an integer input with itself in another layout.

    DeBERTa makes a mask of pairs of tokens from a mask of tokens in this way. The values are taken
    to be less than 16, so that no product is a multiple of 256. Published passes that pack DeBERTa
    look for the Cast to bool directly behind the product.
    """
    product = view.maker(name)
    if product is None or product.op_type != "Mul" or product.domain:
        return False
    sources = {_find_source(factor, view) for factor in product.input}
    inputs = {value.name for value in find_inputs(view.graph)}
    return len(sources) == 1 and sources <= inputs and view.type(name) in _WIDE_INTEGERS


def _find_source(name: str, view: GraphEditor) -> str:
    """Return the name of a tensor before any changes of layout."""
    maker = view.maker(name)
    while maker is not None and maker.op_type in _LAYING_OUT and not maker.domain:
        name = maker.input[0]
        maker = view.maker(name)
    return name


def _integer_bounds(element: int) -> tuple[int, int] | None:
    """Return the minimum and maximum of an integer type."""
    dtype = _dtype(element)
    if dtype is None or dtype.kind not in "iu":
        return None
    bits = 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype.kind == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _find_range(name: str, view: GraphEditor) -> tuple[int, int] | None:
    """Return the minimum and maximum that an integer tensor can have. Known are tensors cast from a
    type of at most 16 bits, and the sum or difference of such a tensor and a small constant."""
    maker = view.maker(name)
    if maker is None or view.type(name) not in _WIDE_INTEGERS:
        return None
    if maker.op_type not in _ADDING:
        return _find_cast_range(name, view)
    left, right = (
        _find_constant_range(operand, view) or _find_cast_range(operand, view)
        for operand in maker.input
    )
    if left is None or right is None:
        return None
    if maker.op_type == "Add":
        return left[0] + right[0], left[1] + right[1]
    return left[0] - right[1], left[1] - right[0]


def _find_constant_range(name: str, view: GraphEditor) -> tuple[int, int] | None:
    numbers = view.numbers(name)
    if not numbers or max(map(abs, numbers)) > _MAX_SHIFT:
        return None
    return min(numbers), max(numbers)


def _find_cast_range(name: str, view: GraphEditor) -> tuple[int, int] | None:
    maker = view.maker(name)
    if maker is None or maker.op_type != "Cast":
        return None
    source = view.type(maker.input[0])
    return _integer_bounds(source) if source in _NARROW_INTEGERS else None


_WIDE_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_LAYING_OUT = names_where(lambda entry: entry.keeps_elements)
"""Operators that exporters put between an input and its product with itself."""
_NARROW_INTEGERS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16)
"""Types whose sums with small constants do not overflow 32 bits."""
_MAX_SHIFT = 1 << 16
"""Largest magnitude of such a constant: with 16 bits it stays far below 2^31."""


@register("fuse_consecutive_reshape", stage=Stage.FOLDING, default=True)
class FuseConsecutiveReshape(_ConsecutivePairs):
    """Merge consecutive Reshapes into one, or into none if the last shape is the first one."""

    op_types = frozenset({"Reshape"})

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Reshapes. A size of 0 means the size of the shape between, so it is written
        out."""
        if keeps_shape(second, first.input[0], view) and view.bypass(second, first.input[0]):
            return
        target = view.numbers(second.input[1]) if len(second.input) > 1 else None
        if target is None:
            return
        if 0 in target:
            shape = view.shape(second.output[0])
            if shape is None or 0 in shape:
                return
            view.set_input(
                second, 1, view.hold(f"{second.output[0]}/shape", np.array(shape, np.int64))
            )
        view.set_input(second, 0, first.input[0])


@register("fuse_consecutive_transpose", stage=Stage.FOLDING, default=True)
class FuseConsecutiveTranspose(_ConsecutivePairs):
    """Merge consecutive Transposes into one, or into none if the last order is the first one."""

    op_types = frozenset({"Transpose"})

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Transposes. Axis i of the result is axis outer[i] of the tensor between, which
        is axis inner[outer[i]] of the source."""
        inner, outer = permutation(first, view), permutation(second, view)
        if inner is None or outer is None or len(inner) != len(outer):
            return
        order = [inner[axis] for axis in outer]
        if order == sorted(order) and view.bypass(second, first.input[0]):
            return
        set_attribute(second, "perm", order)
        view.set_input(second, 0, first.input[0])


@register("fuse_consecutive_squeeze", stage=Stage.FOLDING, default=True)
class FuseConsecutiveSqueeze(_ConsecutivePairs):
    """Merge consecutive Squeezes into one if the axes are known."""

    op_types = frozenset({"Squeeze"})

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Squeezes. The second counts the axes that the first leaves."""
        rank = view.rank(first.input[0])
        inner = view.axes(first, rank)
        outer = view.axes(second, view.rank(second.input[0]))
        if inner is None or outer is None or rank is None:
            return
        remaining = [axis for axis in range(rank) if axis not in inner]
        _set_axes(
            second, first.input[0], sorted([*inner, *(remaining[axis] for axis in outer)]), view
        )


@register("fuse_consecutive_unsqueeze", stage=Stage.FOLDING, default=True)
class FuseConsecutiveUnsqueeze(_ConsecutivePairs):
    """Unsqueeze at once what is unsqueezed twice: by a Reshape where the shape is known (the real
    tool's graphs have one there, by the patterns in which published scripts look for masks), else
    by its axes."""

    op_types = frozenset({"Unsqueeze"})

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Unsqueezes. The axes of the first are at the places that the second leaves."""
        shape = view.shape(second.output[0])
        if shape is not None and 0 not in shape:  # in a Reshape, 0 means the input's size
            _become_reshape(second, first.input[0], shape, view)
            return
        rank = view.rank(first.input[0])
        if rank is None:
            return
        inner = _normalize(view.axes(first, None), first, rank, view)
        outer = (
            _normalize(view.axes(second, None), second, rank + len(inner), view) if inner else []
        )
        if not inner or not outer:
            return
        total = rank + len(inner) + len(outer)
        remaining = [axis for axis in range(total) if axis not in outer]
        _set_axes(
            second, first.input[0], sorted([*outer, *(remaining[axis] for axis in inner)]), view
        )


def _become_reshape(
    node: onnx.NodeProto, source: str, shape: Sequence[int], view: GraphEditor
) -> None:
    del node.attribute[:]
    node.op_type = "Reshape"
    sizes = view.hold(f"{node.output[0]}/shape", np.array(shape, np.int64))
    view.set_inputs(node, [source, sizes])


def _normalize(
    axes: Sequence[int] | None, node: onnx.NodeProto, rank: int, view: GraphEditor
) -> list[int]:
    """Return the axes of an Unsqueeze of a tensor of that rank; an empty list if they are not
    known."""
    if axes is None:
        # Negative axes count from the end of the result, whose rank depends on their number.
        listed = view.numbers(node.input[1]) if len(node.input) > 1 else attribute(node, "axes")
        axes = view.axes(node, rank + len(listed)) if listed else None
    return list(axes or ())


def _set_axes(node: onnx.NodeProto, source: str, axes: Sequence[int], view: GraphEditor) -> None:
    if view.opset >= AXES_ARE_INPUTS:
        view.set_input(node, 1, view.hold(f"{node.output[0]}/axes", np.array(axes, np.int64)))
    else:
        set_attribute(node, "axes", list(axes))
    view.set_input(node, 0, source)


@register("fuse_consecutive_arithmetic")
class FuseConsecutiveArithmetic(_ConsecutivePairs):
    """Add, or multiply with, one constant instead of two, one after the other.

    Of floats, sums of two signs stay as they are: what cancels out would be rounded in another way.
    So do factors whose product leaves the range.
    """

    op_types = frozenset({*_ADDING, *_SCALING})
    alone = True

    def fuse(self, first: onnx.NodeProto, second: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two constants. The constant of x - c is -c; x / c, for floats only, becomes a
        product with 1 / c."""
        operators = {first.op_type, second.op_type}
        sums = operators <= set(_ADDING)
        one, two = _constant_side(first, view), _constant_side(second, view)
        if not (sums or operators <= set(_SCALING)) or one is None or two is None:
            return
        values = _join(view, (first, one), (second, two), sums=sums)
        if values is None:
            return
        source = first.input[1 - one]
        view.set_inputs(second, [source, view.hold(f"{second.output[0]}/constant", values)])
        second.op_type = "Add" if sums else "Mul"


def _constant_side(node: onnx.NodeProto, view: GraphEditor) -> int | None:
    if node.attribute:  # old operators broadcast by attributes
        return None
    places = (1, 0) if operator_of(node).commutes else (1,)
    constant_places = [place for place in places if view.value(node.input[place]) is not None]
    return constant_places[0] if len(constant_places) == 1 else None


def _join(
    view: GraphEditor,
    one: tuple[onnx.NodeProto, int],
    two: tuple[onnx.NodeProto, int],
    *,
    sums: bool,
) -> Array | None:
    """Return the constant that replaces both, no larger than the larger one. Return None if there
    is none."""
    constants = [view.value(node.input[place]) for node, place in (one, two)]
    first, second = (constant for constant in constants if constant is not None)
    if first.dtype != second.dtype or first.dtype.kind not in "fiu":
        return None
    is_float = first.dtype.kind == "f"
    negative = [not operator_of(node).commutes for node, _ in (one, two)]
    if not sums and any(negative) and not is_float:
        return None
    with np.errstate(all="ignore"):
        parts = [
            (-factor if sums else 1 / factor).astype(factor.dtype) if inverse else factor
            for factor, inverse in zip((first, second), negative, strict=True)
        ]
        joined = parts[0] + parts[1] if sums else parts[0] * parts[1]
        fits = not is_float or _is_sound(parts, joined, sums=sums)
    return joined if fits and joined.size <= max(first.size, second.size) else None


def _is_sound(parts: Sequence[Array], made: Array, *, sums: bool) -> bool:
    if not np.isfinite(made).all():
        return False
    if sums:
        return bool((np.sign(parts[0]) * np.sign(parts[1]) >= 0).all())
    least = np.finfo(made.dtype).tiny
    return all(bool((np.abs(factor) >= least).all()) for factor in (*parts, made))
