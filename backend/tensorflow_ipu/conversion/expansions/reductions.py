"""Expansions of reductions, sorts and scans."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import expands


@expands("L2Loss")
def _l2_loss(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.reduce_sum(inputs[0] * inputs[0]) * tf.cast(0.5, inputs[0].dtype)


@expands("EuclideanNorm")
def _euclidean_norm(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    value, axes = inputs
    return tf.sqrt(tf.reduce_sum(value * value, axes, keepdims=operation.get_attr("keep_dims")))


@expands("TopK")
def _top_k(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    result = tf.math.top_k(inputs[0], operation.get_attr("k"), operation.get_attr("sorted"))
    return [result.values, result.indices]


@expands("ApproxTopK")
def _approx_top_k(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The exact result is one that is allowed."""
    axis = operation.get_attr("reduction_dimension")
    value, rank = inputs[0], inputs[0].shape.rank
    is_max = operation.get_attr("is_max_k")
    order = [*(place for place in range(rank) if place != axis % rank), axis % rank]
    moved = tf.transpose(value if is_max else -value, order)
    values, indices = tf.math.top_k(moved, operation.get_attr("k"))
    back = [order.index(place) for place in range(rank)]
    return [tf.transpose(values if is_max else -values, back), tf.transpose(indices, back)]


@expands("NthElement")
def _nth_element(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    count = static_value(inputs[1])
    if count is None:
        return NotImplemented
    is_reversed = operation.get_attr("reverse")
    values = tf.math.top_k(inputs[0] if is_reversed else -inputs[0], int(count) + 1).values
    nth = values[..., int(count)]
    return nth if is_reversed else -nth


@expands("CumulativeLogsumexp")
def _cumulative_logsumexp(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The largest value is taken out of all sums."""
    value, axis = inputs
    largest = tf.reduce_max(value, axis, keepdims=True)
    sums = tf.cumsum(
        tf.exp(value - largest),
        axis,
        exclusive=operation.get_attr("exclusive"),
        reverse=operation.get_attr("reverse"),
    )
    return tf.math.log(sums) + largest


@expands("HistogramFixedWidth")
def _histogram(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Count the values whose place, cut to the range, is that of the bin."""
    values, limits, count = inputs
    bins = static_value(count)
    if bins is None:
        return NotImplemented
    low, high = tf.unstack(limits)
    width = high - low
    places = tf.floor(tf.cast(bins, values.dtype) * (tf.reshape(values, [-1]) - low) / width)
    places = tf.clip_by_value(tf.cast(places, tf.int32), 0, int(bins) - 1)
    hits = tf.equal(places[:, None], tf.range(int(bins))[None, :])
    kind = operation.get_attr("dtype")
    return tf.cast(tf.reduce_sum(tf.cast(hits, tf.int32), axis=0), kind)


@expands("SegmentSumV2", "UnsortedSegmentSum")
def _segment_sum(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """A product with a matrix of ones and zeros; numbers out of range are dropped, as XLA does."""
    data, ids, number = inputs
    count = static_value(number)
    if count is None or not data.shape.is_fully_defined():
        return NotImplemented
    segments, rank = int(count), ids.shape.rank
    rows = tf.reshape(data, [ids.shape.num_elements(), -1])
    flat = tf.cast(tf.reshape(ids, [-1]), tf.int32)
    members = tf.equal(tf.range(segments)[:, None], flat[None, :])
    if data.dtype.is_floating:
        sums = tf.matmul(tf.cast(members, data.dtype), rows)
    else:
        sums = tf.reduce_sum(tf.cast(members[:, :, None], data.dtype) * rows[None], axis=1)
    del operation
    return tf.reshape(sums, [segments, *data.shape[rank:]])


@expands("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _segment_reduction(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Reduce, for each segment, all rows with the neutral value in place of others' rows."""
    data, ids, number = inputs
    count = static_value(number)
    if count is None or not data.shape.is_fully_defined():
        return NotImplemented
    kind = operation.type.removeprefix("UnsortedSegment")
    neutral = {"Max": data.dtype.min, "Min": data.dtype.max, "Prod": 1}[kind]
    reduce = {"Max": tf.reduce_max, "Min": tf.reduce_min, "Prod": tf.reduce_prod}[kind]
    segments, rank = int(count), ids.shape.rank
    rows = tf.reshape(data, [ids.shape.num_elements(), -1])
    flat = tf.cast(tf.reshape(ids, [-1]), tf.int32)
    members = tf.equal(tf.range(segments)[:, None], flat[None, :])[:, :, None]
    chosen = tf.where(members, rows[None], tf.constant(neutral, data.dtype))
    return tf.reshape(reduce(chosen, axis=1), [segments, *data.shape[rank:]])
