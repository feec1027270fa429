"""Copies of runs of rows between tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators.placement import on_ipu


@on_ipu
def sequence_slice(
    dst: Any,
    src: Any,
    num_elems: Any,
    src_offsets: Any,
    dst_offsets: Any,
    zero_unused: bool,
) -> Any:
    """Copy runs of rows of one tensor to another.

    Args:
        dst: Tensor that gets the rows.
        src: Tensor whose rows are copied; their shape is that of `dst`.
        num_elems: Number of rows of each run, int32.
        src_offsets: First row of each run in `src`, int32.
        dst_offsets: First row of each run in `dst`, int32.
        zero_unused: Set the rows of `dst` that get nothing to zero.

    Returns:
        A tensor of the shape of `dst`.

    Raises:
        ValueError: If shapes do not match.
    """
    dst, src, num_elems, src_offsets, dst_offsets = map(
        tf.convert_to_tensor, (dst, src, num_elems, src_offsets, dst_offsets)
    )
    count = num_elems.shape[0]
    if count == 0 or src_offsets.shape[0] != count or dst_offsets.shape[0] != count:
        raise ValueError(
            "num_elems, src_offsets and dst_offsets must have matching, nonzero shapes of rank 1."
        )
    _check_rows(src, dst)
    return _copy(dst, src, (num_elems, src_offsets, dst_offsets), zero_unused)


@on_ipu
def sequence_slice_unpack(src: Any, num_elems: Any, src_offsets: Any, total_elements: int) -> Any:
    """Copy runs of rows of a tensor one behind the other.

    Args:
        src: Tensor whose rows are copied.
        num_elems: Number of rows of each run, int32.
        src_offsets: First row of each run in `src`, int32.
        total_elements: Number of rows of the result.

    Returns:
        The rows; those that get nothing are zero.

    Raises:
        ValueError: If shapes do not match.
    """
    src, num_elems, src_offsets = map(tf.convert_to_tensor, (src, num_elems, src_offsets))
    count = num_elems.shape[0]
    if count == 0 or src_offsets.shape[0] != count:
        raise ValueError("num_elems and src_offsets must have matching, nonzero shapes of rank 1.")
    dst = tf.zeros([total_elements, *src.shape[1:]], src.dtype)
    return _copy(dst, src, (num_elems, src_offsets, _add_up(num_elems)), True)


@on_ipu
def sequence_slice_pack(
    dst: Any, src: Any, num_elems: Any, dst_offsets: Any, zero_unused: bool
) -> Any:
    """Copy runs of rows that stand one behind the other to their places.

    Args:
        dst: Tensor that gets the rows.
        src: Tensor whose rows are copied; their shape is that of `dst`.
        num_elems: Number of rows of each run, int32.
        dst_offsets: First row of each run in `dst`, int32.
        zero_unused: Set the rows of `dst` that get nothing to zero.

    Returns:
        A tensor of the shape of `dst`.

    Raises:
        ValueError: If shapes do not match.
    """
    dst, src, num_elems, dst_offsets = map(tf.convert_to_tensor, (dst, src, num_elems, dst_offsets))
    count = num_elems.shape[0]
    if count == 0 or dst_offsets.shape[0] != count:
        raise ValueError("num_elems and dst_offsets must have matching, nonzero shapes of rank 1.")
    _check_rows(src, dst)
    return _copy(dst, src, (num_elems, _add_up(num_elems), dst_offsets), zero_unused)


def _check_rows(src: Any, dst: Any) -> None:
    if src.shape[1:] != dst.shape[1:]:
        raise ValueError("src and dst inner shapes must match.")


def _add_up(counts: Any) -> Any:
    """Return the number of rows before each run."""
    return tf.cumsum(counts, exclusive=True)


def _copy(dst: Any, src: Any, moves: tuple[Any, Any, Any], zero_unused: bool) -> Any:
    inputs = [src, dst, *(tf.cast(value, tf.int32) for value in moves)]
    attributes = {"zeroUnused": int(zero_unused)}
    return chip_operator("SequenceSlice", inputs, [(dst.dtype, dst.shape)], attributes)[0]
