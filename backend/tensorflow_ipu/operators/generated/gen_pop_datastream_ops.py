"""Wrappers of the operators of feeds, under the names that TensorFlow generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu import markers
from tensorflow_ipu.feeds import queues
from tensorflow_ipu.feeds.ipu_outfeed_queue import IPUOutfeedMode, make_dequeue

_outfeeds: Final[dict[str, queues.Outfeed]] = {}
"""Outfeeds by the names that their users gave them."""


def pop_datastream_outfeed_enqueue(
    inputs: Sequence[Any],
    output_shapes: Sequence[Any],
    feed_id: str,
    outfeed_mode: str = "all",
    prefetch_depth: int = 1,
    optimise_latency: bool = False,
    name: str | None = None,
) -> tf.Operation:
    """Return values of a program to the host.

    Args:
        inputs: The tensors of an element.
        output_shapes: Accepted: their shapes.
        feed_id: Name of the outfeed.
        outfeed_mode: `all` or `get_last`.
        prefetch_depth: Accepted: number of elements that the host buffers.
        optimise_latency: Accepted: it changes no value.
        name: Name of the operation.

    Returns:
        The operation.
    """
    del output_shapes, prefetch_depth, optimise_latency
    outfeed = _find_outfeed(feed_id, outfeed_mode)
    tensors = [tf.convert_to_tensor(value) for value in inputs]
    facts = {"queue": outfeed.name, "name": "outfeed enqueue"}
    return markers.add_operation(markers.ENQUEUE, facts, tensors, [], name or "outfeed_enqueue")


def pop_datastream_outfeed_dequeue(
    output_types: Sequence[Any],
    output_shapes: Sequence[Any],
    feed_id: str,
    outfeed_mode: str = "all",
    device_ordinal: int = 0,
    warn_when_unconnected: bool = True,
    optimise_latency: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Return what programs have returned to the host.

    Args:
        output_types: Types of an element's tensors.
        output_shapes: Their shapes.
        feed_id: Name of the outfeed.
        outfeed_mode: `all` or `get_last`.
        device_ordinal: Accepted: number of the device.
        warn_when_unconnected: Accepted.
        optimise_latency: Accepted: it changes no value.
        name: Accepted: name of the operation.

    Returns:
        The tensors; in mode `all` with the elements in front.
    """
    del device_ordinal, warn_when_unconnected, optimise_latency, name
    outfeed = _find_outfeed(feed_id, outfeed_mode)
    specs = [
        tf.TensorSpec(shape, dtype)
        for shape, dtype in zip(output_shapes, output_types, strict=True)
    ]
    with tf.device("/device:CPU:0"):
        if tf.executing_eagerly():
            return [tf.constant(value) for value in outfeed.take(specs)]
        return make_dequeue(outfeed, specs)


def ipu_delete_outfeed(
    feed_id: str, device_ordinal: int = 0, asynchronous: bool = False, name: str | None = None
) -> Any:
    """Delete the elements of an outfeed; in a graph, when the operation runs.

    Args:
        feed_id: Name of the outfeed.
        device_ordinal: Accepted: number of the device.
        asynchronous: Accepted.
        name: Accepted: name of the operation.

    Returns:
        The operation; None in eager mode.
    """
    del device_ordinal, asynchronous, name

    def delete() -> int:
        outfeed = _outfeeds.get(feed_id)
        return len(outfeed.take_all()) if outfeed else 0

    if tf.executing_eagerly():
        return delete() and None
    return tf.numpy_function(delete, [], tf.int64, stateful=True).op


def _find_outfeed(feed_id: str, mode: str) -> queues.Outfeed:
    if feed_id not in _outfeeds:
        keeps_all = IPUOutfeedMode(mode) is IPUOutfeedMode.ALL
        _outfeeds[feed_id] = queues.Outfeed(keeps_all, feed_id)
    return _outfeeds[feed_id]
