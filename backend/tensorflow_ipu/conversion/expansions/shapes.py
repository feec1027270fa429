"""Expansions of operators that make, move or select elements, and of shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import expands, open_function, write_body


@expands("Shape", "Size", "Rank")
def _shape(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """A known shape is a constant."""
    shape = inputs[0].shape
    kind = operation.outputs[0].dtype
    if operation.type == "Rank" and shape.rank is not None:
        return tf.constant(shape.rank, kind)
    if not shape.is_fully_defined():
        return NotImplemented
    value = shape.num_elements() if operation.type == "Size" else shape.as_list()
    return tf.constant(value, kind)


@expands("ShapeN")
def _shapes(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    kind = operation.get_attr("out_type")
    return [tf.shape(value, kind) for value in inputs]


@expands("LinSpace")
def _linspace(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The last value is the end itself."""
    start, stop, number = inputs
    count = static_value(number)
    if count is None:
        return NotImplemented
    if int(count) == 1:
        return tf.reshape(start, [1])
    places = tf.constant(np.arange(int(count) - 1), start.dtype)
    step = (stop - start) / tf.cast(int(count) - 1, start.dtype)
    return tf.concat([start + places * step, tf.reshape(stop, [1])], axis=0)


@expands("ConjugateTranspose")
def _transpose(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.transpose(*inputs)


@expands("Reverse")
def _reverse(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    flags = static_value(inputs[1])
    if flags is None:
        return NotImplemented
    return tf.reverse(inputs[0], np.flatnonzero(flags).tolist())


@expands("Diag")
def _diagonal(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value = inputs[0]
    count = value.shape.num_elements()
    is_diagonal = tf.constant(np.eye(count, dtype=bool))
    matrix = tf.where(is_diagonal, tf.reshape(value, [count, 1]), tf.zeros([], value.dtype))
    return tf.reshape(matrix, [*value.shape, *value.shape])


@expands("DiagPart")
def _diagonal_part(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value = inputs[0]
    shape = value.shape[: value.shape.rank // 2]
    count = shape.num_elements()
    places = tf.constant(np.arange(count) * (count + 1), tf.int32)
    return tf.reshape(tf.gather(tf.reshape(value, [count * count]), places), shape)


@expands("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diagonal(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Only the main diagonal, or another single one."""
    matrix, diagonal = inputs[:2]
    offset = 0
    if len(inputs) > 2:  # noqa: PLR2004
        value = static_value(inputs[2])
        if value is None or len(set(np.reshape(value, [-1]).tolist())) != 1:
            return NotImplemented
        offset = int(np.reshape(value, [-1])[0])
    rows, columns = matrix.shape[-2:]
    is_diagonal = tf.constant(np.eye(rows, columns, offset, dtype=bool))
    # A diagonal is laid along the longer side, so that its elements stand in their columns.
    before = max(offset, 0)
    padded = tf.pad(
        diagonal,
        [*[[0, 0]] * (diagonal.shape.rank - 1), [before, columns - before - diagonal.shape[-1]]],
    )
    return tf.where(is_diagonal, tf.expand_dims(padded, -2), matrix)


@expands("DataFormatDimMap")
def _map_dimensions(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    source, target = _read_formats(operation)
    rank = len(source)
    table = tf.constant([target.index(letter) for letter in source], inputs[0].dtype)
    return tf.gather(table, tf.math.floormod(inputs[0], rank))


@expands("DataFormatVecPermute")
def _permute_format(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    source, target = _read_formats(operation)
    if inputs[0].shape[0] != len(source):
        source, target = (
            [letter for letter in letters if letter not in "NC"] for letters in (source, target)
        )
    return tf.gather(inputs[0], [source.index(letter) for letter in target])


def _read_formats(operation: tf.Operation) -> tuple[list[str], list[str]]:
    formats = (operation.get_attr(name).decode() for name in ("src_format", "dst_format"))
    source, target = (list(text) for text in formats)
    return source, target


@expands("InplaceUpdate", "InplaceAdd", "InplaceSub")
def _write_rows(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value, rows, update = inputs
    if operation.type != "InplaceUpdate":
        old = tf.gather(value, rows)
        update = old + update if operation.type == "InplaceAdd" else old - update
    return tf.tensor_scatter_nd_update(value, tf.expand_dims(rows, -1), update)


@expands("TensorStridedSliceUpdate")
def _update_slice(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Write the elements of a slice, whose places are known, one by one."""
    value, update = inputs[0], inputs[4]
    bounds = [static_value(tensor) for tensor in inputs[1:4]]
    if any(bound is None for bound in bounds) or not value.shape.is_fully_defined():
        return NotImplemented
    places = np.arange(value.shape.num_elements()).reshape(value.shape)
    places = places[
        _read_slices(operation, [bound.tolist() for bound in bounds if bound is not None])
    ]
    flat = tf.tensor_scatter_nd_update(
        tf.reshape(value, [-1]),
        places.reshape(-1, 1).astype(np.int32),
        tf.reshape(tf.broadcast_to(update, places.shape), [-1]),
    )
    return tf.reshape(flat, value.shape)


def _read_slices(operation: tf.Operation, bounds: list[list[int]]) -> tuple[Any, ...]:
    """Return the index that the masks and bounds of a strided slice are."""
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for place, (begin, end, step) in enumerate(zip(*bounds, strict=True)):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(None)
        elif masks["shrink_axis"] & bit:
            index.append(begin)
        else:
            first = None if masks["begin"] & bit else begin
            last = None if masks["end"] & bit else end
            index.append(slice(first, last, step))
    return tuple(index)


@expands("BroadcastArgs")
def _broadcast_shapes(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shapes = [tuple(shape) for value in inputs if (shape := static_value(value)) is not None]
    if len(shapes) < len(inputs):
        return NotImplemented
    return tf.constant(np.broadcast_shapes(*shapes), inputs[0].dtype)


@expands("InvertPermutation")
def _invert_permutation(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Place i is where the permutation is i."""
    count = inputs[0].shape[0]
    if count is None:
        return NotImplemented
    places = tf.range(count, dtype=inputs[0].dtype)
    hits = tf.equal(inputs[0][None, :], places[:, None])
    return tf.reduce_sum(tf.where(hits, places[None, :], tf.zeros([], places.dtype)), axis=1)


@expands("MirrorPad")
def _mirror_pad(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Gather along each axis by the numbers of a padded axis."""
    value, paddings = inputs
    sizes = static_value(paddings)
    if sizes is None or not value.shape.is_fully_defined():
        return NotImplemented
    mode = operation.get_attr("mode").decode().lower()
    for axis, pair in enumerate(sizes.tolist()):
        if any(pair):
            places = np.pad(np.arange(value.shape[axis]), pair, mode=mode)
            value = tf.gather(value, tf.constant(places, tf.int32), axis=axis)
    return value


@expands("ScatterNd")
def _scatter(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Updates of one place are added up."""
    indices, updates, shape = inputs
    size = static_value(shape)
    if size is None or updates.dtype == tf.bool:
        return NotImplemented
    return tf.tensor_scatter_nd_add(tf.zeros(size, updates.dtype), indices, updates)


@expands("StridedSlice")
def _strided_slice(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """A slice without new or dropped axes, and a reshape; a place known at run time is gathered."""
    places = _find_computed_places(operation, _find_bounds(inputs[1]))
    if places and inputs[0].shape.is_fully_defined():
        return _gather_places(operation, inputs, places)
    value, shape = inputs[0], operation.outputs[0].shape
    masks = [operation.get_attr(f"{name}_mask") for name in ("new_axis", "ellipsis")]
    bounds = [static_value(tensor) for tensor in inputs[1:]]
    if not any(masks) or any(bound is None for bound in bounds):
        return NotImplemented
    if not (value.shape.is_fully_defined() and shape.is_fully_defined()):
        return NotImplemented
    index = [
        part
        for part in _read_slices(
            operation, [bound.tolist() for bound in bounds if bound is not None]
        )
        if part is not None
    ]
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index[place : place + 1] = [slice(None)] * (value.shape.rank - len(index) + 1)
    parts = [slice(part, part + 1 or None) if isinstance(part, int) else part for part in index]
    return tf.reshape(value[tuple(parts)], shape)


def _find_computed_places(operation: tf.Operation, begin: list[int | None]) -> list[int]:
    """Return the numbers of the parts of a slice's index that are single places of an axis, known
    at run time only, as in `value[number]`."""
    shrink = operation.get_attr("shrink_axis_mask")
    return [place for place, first in enumerate(begin) if shrink & 1 << place and first is None]


def _find_bounds(bound: tf.Tensor) -> list[int | None]:
    """Return the elements of a slice's bound, None for those that are known at run time only."""
    values = tf.get_static_value(bound, partial=True)
    return [None] * (bound.shape[0] or 0) if values is None else list(values)


def _gather_places(operation: tf.Operation, inputs: list[tf.Tensor], places: list[int]) -> Any:
    """Gather one element of each axis whose place is computed; the rest of the index is a slice.

    As in XLA, a place beyond the axis is its last one.
    """
    value = inputs[0]
    bounds = [_find_bounds(bound) for bound in inputs[1:]]
    axes = _find_axes(operation, value.shape.rank, len(bounds[0]))
    for place in places:
        size = value.shape[axes[place]]
        number = inputs[1][place : place + 1]
        number = tf.where(number < 0, number + size, number)
        value = tf.gather(value, tf.clip_by_value(number, 0, size - 1), axis=axes[place])
        for bound, part in zip(bounds, (0, 1, 1), strict=True):
            bound[place] = part
    if any(part is None for bound in bounds for part in bound):
        return NotImplemented
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    attributes = {name: operation.get_attr(name) for name in masks}
    begin, end, strides = (tf.constant(bound, inputs[1].dtype) for bound in bounds)
    return tf.raw_ops.StridedSlice(input=value, begin=begin, end=end, strides=strides, **attributes)


def _find_axes(operation: tf.Operation, rank: int, count: int) -> dict[int, int]:
    """Return the axis of a value that each of the parts of a slice's index is about."""
    ellipsis, new = operation.get_attr("ellipsis_mask"), operation.get_attr("new_axis_mask")
    parts = [place for place in range(count) if not new & 1 << place]
    after = [place for place in parts if ellipsis and ellipsis < 1 << place]
    before = [place for place in parts if not ellipsis or ellipsis > 1 << place]
    return {
        **{place: axis for axis, place in enumerate(before)},
        **{place: axis for axis, place in enumerate(after, rank - len(after))},
    }


@expands("Bincount", "DenseBincount")
def _bincount(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Count, or add up the weights of, the numbers that equal each bin's."""
    numbers, size, weights = inputs
    count = static_value(size)
    if count is None or weights.shape.num_elements() is None:
        return NotImplemented
    hits = tf.equal(numbers[..., None], tf.range(int(count), dtype=numbers.dtype))
    if operation.type == "Bincount":
        hits = tf.reshape(hits, [-1, int(count)])
        weights = tf.reshape(weights, [-1])
    kind = operation.outputs[0].dtype
    if operation.type == "DenseBincount" and operation.get_attr("binary_output"):
        return tf.cast(tf.reduce_any(hits, axis=-2), kind)
    if weights.shape.num_elements():
        parts = tf.where(hits, weights[..., None], tf.zeros([], weights.dtype))
        return tf.cast(tf.reduce_sum(parts, axis=-2), kind)
    return tf.cast(tf.reduce_sum(tf.cast(hits, tf.int32), axis=-2), kind)


@expands("Case", "StatelessCase")
def _case(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Nested choices between two; numbers out of range choose the last branch."""
    number, values = inputs[0], inputs[1:]
    names = [function.name for function in operation.get_attr("branches")]
    bodies = [open_function(operation.graph, name) for name in names]

    def choose(place: int) -> Any:
        if place == len(bodies) - 1:
            return write_body(bodies[place], values)
        return tf.cond(
            tf.equal(number, place),
            lambda: write_body(bodies[place], values),
            lambda: choose(place + 1),
        )

    return choose(0)
