"""IPUOutfeedQueue: values that programs return while they run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu import markers
from tensorflow_ipu.feeds import queues


class IPUOutfeedMode:
    """Which elements an outfeed keeps: ALL of them, or the LAST one."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Takes the values that programs return while they run."""

    def __init__(
        self,
        outfeed_mode: str | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ) -> None:
        """Make a queue.

        Args:
            outfeed_mode: IPUOutfeedMode.ALL, the default, or LAST.
            device_ordinal: Number of the device; accepted, and not needed here.
            buffer_depth: Number of elements that the host buffers.
            optimise_latency: Accepted: it changes no value.

        Raises:
            ValueError: For another mode.
        """
        del device_ordinal, buffer_depth, optimise_latency
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if mode not in (IPUOutfeedMode.ALL, IPUOutfeedMode.LAST):
            raise ValueError(f"Unknown outfeed_mode {mode!r}: expected IPUOutfeedMode.ALL or LAST")
        self._mode = mode
        self._outfeed = queues.Outfeed(mode == IPUOutfeedMode.ALL)
        self._enqueued = False
        self._structure: Any = None
        self._specs: list[tf.TensorSpec] = []

    def enqueue(self, tensors: Any) -> tf.Operation:
        """Add the operation that returns values to the host.

        Args:
            tensors: A tensor, or a tuple, list or dictionary of them.

        Returns:
            The operation.

        Raises:
            ValueError: If the queue is used twice.
        """
        if self._enqueued and not tf.compat.v1.get_default_graph().building_function:
            raise ValueError("An outfeed can only be enqueued once.")
        self._enqueued = True
        self._structure = tensors
        flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(tensors)]
        self._specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]
        facts = {"queue": self._outfeed.name, "name": "outfeed enqueue"}
        graph = tf.compat.v1.get_default_graph()
        markers.add_marker(markers.ENQUEUE, facts, flat, [], "outfeed_enqueue")
        return graph.get_operations()[-1]

    @property
    def enqueued(self) -> bool:
        """Whether a computation returns values to this queue."""
        return self._enqueued

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Return what programs have enqueued.

        Args:
            wait_for_completion: Accepted: runs are complete when they return.

        Returns:
            The structure of `enqueue`. In mode ALL its tensors have the elements since the last
            dequeue in front, in mode LAST they are those of the last element.

        Raises:
            ValueError: If nothing is enqueued.
        """
        del wait_for_completion
        if not self._enqueued:
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        if tf.executing_eagerly():
            tensors = [tf.constant(value) for value in self._take()]
        else:
            with tf.device("/device:CPU:0"):
                tensors = tf.numpy_function(
                    self._take, [], [spec.dtype for spec in self._specs], stateful=True
                )
            for tensor, spec in zip(tensors, self._specs, strict=True):
                shape = spec.shape
                tensor.set_shape([None, *shape] if self._mode == IPUOutfeedMode.ALL else shape)
        return tf.nest.pack_sequence_as(self._structure, tensors)

    def _take(self) -> list[Array]:
        if self._mode == IPUOutfeedMode.LAST:
            last = self._outfeed.last()
            if last is None:
                raise tf.errors.FailedPreconditionError(
                    None,
                    None,
                    "Trying to get the last value from an outfeed queue before it was executed. "
                    "Make sure the outfeed enqueue is executed before the dequeue.",
                )
            return list(last)
        elements = self._outfeed.take_all()
        return [self._stack(elements, place) for place in range(len(self._specs))]

    def _stack(self, elements: Sequence[Sequence[Array]], place: int) -> Array:
        if not elements:
            spec = self._specs[place]
            return np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
        return np.stack([element[place] for element in elements])

    @property
    def deleter(self) -> Any:
        """An operation that deletes the queue's elements; in eager mode reading it does that."""
        if tf.executing_eagerly():
            self._outfeed.take_all()
            return None
        forget = functools.partial(self._outfeed.take_all)
        return tf.numpy_function(lambda: len(forget()), [], tf.int64, stateful=True).op

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return IPUOutfeedQueueIterator(self)

    def take_elements(self) -> list[Any]:
        """Return the elements since the last call, each in the structure of `enqueue`."""
        return [
            tf.nest.pack_sequence_as(self._structure, [tf.constant(value) for value in element])
            for element in self._outfeed.take_all()
        ]


class IPUOutfeedQueueIterator:
    """Iterates over the elements of an outfeed."""

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        self._elements = iter(outfeed_queue.take_elements())

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Any:
        return next(self._elements)


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """An outfeed whose elements are deleted with it."""

    def __init__(self, outfeed_mode: str | None = None, device_ordinal: int | None = None) -> None:
        """Make a queue, as IPUOutfeedQueue does."""
        super().__init__(outfeed_mode, device_ordinal)
