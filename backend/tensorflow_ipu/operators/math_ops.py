"""Products in parts, and sums of segments."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu

_DIMENSIONS: Final = ("a_columns", "a_rows_b_columns", "b_rows")
_RANK = 2


@on_ipu
def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Any:
    """Multiply matrices in parts, one after the other, which needs less memory on the real chip.

    Args:
        a: Tensor [..., m, k], or [..., k, m] if transposed.
        b: Tensor [..., k, n], or [..., n, k] if transposed.
        serialization_factor: Number of parts.
        serialization_dimension: a_columns (the result's rows), a_rows_b_columns (the axis that is
            summed) or b_rows (the result's columns).
        transpose_a: Whether `a` is transposed.
        transpose_b: Whether `b` is transposed.
        name: Name of the operation.

    Returns:
        The product [..., m, n].

    Raises:
        ValueError: If the factor does not divide the axis, or the dimension has another name.
    """
    factor = int(serialization_factor)
    if factor < 1:
        raise ValueError(f"serialization_factor has to be at least 1, but was {factor}.")
    for letter, tensor in (("a", a), ("b", b)):
        if len(tensor.shape) < _RANK:
            raise ValueError(f"Expected tensor '{letter}' to have a minimum rank of 2")
    if serialization_dimension not in _DIMENSIONS:
        raise ValueError(
            f"Invalid serialization_dimension={serialization_dimension}, expected one of: "
            "'a_columns', 'a_rows_b_columns', 'b_rows'."
        )
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    rows, inner_a = (-1, -2) if transpose_a else (-2, -1)
    inner_b, columns = (-1, -2) if transpose_b else (-2, -1)
    with tf.name_scope(name or "serialized_matmul"):
        if serialization_dimension == "a_columns":
            parts = _split(a, rows, factor, "the columns dimension of 'a'")
            return tf.concat([tf.matmul(part, b, **options) for part in parts], axis=-2)
        if serialization_dimension == "b_rows":
            parts = _split(b, columns, factor, "the rows dimension of 'b'")
            return tf.concat([tf.matmul(a, part, **options) for part in parts], axis=-1)
        if a.shape[inner_a] != b.shape[inner_b]:
            raise ValueError(
                f"Expected the number of columns in 'a' ({a.shape[inner_a]}) to match the number "
                f"of rows in 'b' ({b.shape[inner_b]})."
            )
        left = _split(a, inner_a, factor, "the rows dimension of 'a'")
        right = _split(b, inner_b, factor, "the rows dimension of 'b'")
        products = [tf.matmul(*pair, **options) for pair in zip(left, right, strict=True)]
        return sum(products[1:], products[0])


def _split(tensor: Any, axis: int, factor: int, what: str) -> list[Any]:
    size = tensor.shape[axis]
    if size % factor:
        raise ValueError(f"Expected 'serialization_factor' ({factor}) to divide {what} ({size}).")
    return list(tf.split(tensor, factor, axis=axis))


@on_ipu
def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Sum the rows of each segment.

    Args:
        data: Rows, a tensor of a known shape.
        segment_ids: Sorted number of the segment of each row, int32.
        num_segments: Number of segments.
        name: Name of the operation.

    Returns:
        A row for each segment.

    Raises:
        ValueError: If a shape is unknown or does not fit, or `num_segments` is not positive.
    """
    data = tf.convert_to_tensor(data)
    ids = tf.convert_to_tensor(segment_ids, dtype=tf.int32)
    if not data.shape.is_fully_defined():
        raise ValueError("Shape of data must be fully defined")
    if not ids.shape.is_fully_defined():
        raise ValueError("Shape of segment_ids must be fully defined")
    data_shape, ids_shape = data.shape.with_rank_at_least(1), ids.shape.with_rank(1)
    count = int(num_segments)
    if count <= 0:
        raise ValueError(f"num_segments must be greater than 0; got {count}")
    if data_shape[0] != ids_shape[0]:
        raise ValueError(
            f"segment_ids (shape {ids_shape}) must have same length as axis 0 of data (shape "
            f"{data_shape})"
        )
    rows = tf.reshape(data, [data_shape[0], prod(data_shape[1:])])
    # A product with a matrix of ones and zeros: it drops numbers out of range, as XLA does.
    members = tf.equal(tf.range(count)[:, None], ids[None, :])
    if data.dtype.is_floating:
        sums = tf.matmul(tf.cast(members, data.dtype), rows)
    else:
        sums = tf.reduce_sum(tf.cast(members[:, :, None], data.dtype) * rows[None], axis=1)
    return tf.reshape(sums, [count, *data_shape[1:]], name=name)
