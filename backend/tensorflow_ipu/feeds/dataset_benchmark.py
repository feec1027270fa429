"""Speed of data sets and infeed queues on the host."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

_GIGABYTE = 1e9
"""Bytes of the unit of bandwidth."""


def dataset_benchmark(
    dataset: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Measure how fast a data set gives its elements.

    Args:
        dataset: The tf.data.Dataset.
        number_of_epochs: Number of epochs.
        elements_per_epochs: Number of elements of an epoch.
        print_stats: Whether to print the measurements.
        apply_debug_options: Accepted: TensorFlow's options for debugging change no data set here.
        do_memcpy: Whether to copy each element, as into the buffer of a device.

    Returns:
        A tensor with one text, JSON: a list `epochs` of dictionaries with elements_processed,
        total_bytes_processed, time_elapsed (seconds), elements_per_second and bandwidth (GB/s).

    Raises:
        TypeError: If `dataset` is no data set.
        ValueError: If a number is less than 1.
    """
    del apply_debug_options
    if number_of_epochs < 1:
        raise ValueError("Expected `number_of_epochs` to be at least 1.")
    if elements_per_epochs < 1:
        raise ValueError("Expected `elements_per_epochs` to be at least 1.")
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Expected `dataset` argument to be of type `tf.data.Dataset`, but got "
            f"{dataset} instead."
        )
    stopwatch = _Stopwatch(number_of_epochs, elements_per_epochs, print_stats, do_memcpy)
    return stopwatch.measure(dataset)


def infeed_benchmark(
    infeed_queue: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Measure how fast the data set of an infeed queue gives its elements.

    Args:
        infeed_queue: The IPUInfeedQueue.
        number_of_epochs: Number of epochs.
        elements_per_epochs: Number of elements of an epoch.
        print_stats: Whether to print the measurements.
        do_memcpy: Whether to copy each element, as into the buffer of a device.

    Returns:
        A tensor with one text, as `dataset_benchmark` returns it.

    Raises:
        TypeError: If `infeed_queue` is no infeed queue.
    """
    from tensorflow_ipu.feeds.ipu_infeed_queue import IPUInfeedQueue

    if not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(
            "Expected `infeed_queue` argument to be of type "
            f"`ipu.ipu_infeed_queue.IPUInfeedQueue`, but got {infeed_queue} instead."
        )
    dataset = infeed_queue._dataset  # noqa: SLF001 - the name of the real library
    return dataset_benchmark(
        dataset, number_of_epochs, elements_per_epochs, print_stats, False, do_memcpy
    )


class _Stopwatch:
    """Takes the time at the ends of epochs."""

    def __init__(self, epochs: int, elements: int, prints: bool, copies: bool) -> None:
        self._epochs = epochs
        self._elements = elements
        self._prints = prints
        self._copies = copies
        self._ends: list[float] = []
        self._bytes = 0
        self._is_eager = tf.executing_eagerly()

    def measure(self, dataset: Any) -> Any:
        """Return the tensor with the measurements of a data set."""
        start = tf.numpy_function(self._start, [], tf.int64)
        total = self._epochs * self._elements

        def take(count: Any, *elements: Any) -> Any:
            flat = tf.nest.flatten(elements)
            next_count = tf.numpy_function(self._take, [count, *flat], tf.int64)
            return tf.ensure_shape(next_count, [])

        count = dataset.take(total).reduce(tf.ensure_shape(start, []), take)
        return tf.reshape(tf.numpy_function(self._finish, [count], tf.string), [1])

    def _start(self) -> Any:
        self._bytes = 0
        self._ends = [time.perf_counter()]
        return np.int64(0)

    def _take(self, count: Any, *elements: Any) -> Any:
        for element in elements:
            if not element.size:
                raise ValueError(
                    "Detected a tensor in the dataset with a dimension of size 0, shape "
                    f"{list(element.shape)}: nothing can be fed."
                )
            if self._copies:
                np.copy(element)
        if not count:
            self._bytes = sum(element.nbytes for element in elements)
        if (count + 1) % self._elements == 0:
            self._ends.append(time.perf_counter())
        return np.int64(count + 1)

    def _finish(self, count: Any) -> Any:
        if count < self._epochs * self._elements:
            message = "The dataset iterator has reached the end of the dataset."
            if self._is_eager:
                raise tf.errors.OutOfRangeError(None, None, message)
            # In a graph, TensorFlow turns this one into OutOfRangeError.
            raise StopIteration(message)
        epochs = [self._describe(end - start) for start, end in pairwise(self._ends)]
        text = json.dumps({"epochs": epochs})
        if self._prints:
            print(text)
        return np.array(text.encode(), dtype=object)

    def _describe(self, seconds: float) -> dict[str, float]:
        size = self._bytes * self._elements
        return {
            "elements_processed": self._elements,
            "total_bytes_processed": size,
            "time_elapsed": seconds,
            "elements_per_second": self._elements / seconds,
            "bandwidth": size / _GIGABYTE / seconds,
        }
