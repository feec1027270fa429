"""IPUOutfeedQueue: values that programs return while they run."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph

from popef._tools.arrays import Array
from tensorflow_ipu import launching, markers
from tensorflow_ipu.feeds import queues
from tensorflow_ipu.feeds.ipu_infeed_queue import find_device_ordinal


class IPUOutfeedMode(Enum):
    """Which elements an outfeed keeps: ALL of them, or the LAST one."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue(Iterable[Any]):
    """Takes the values that programs return while they run."""

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ) -> None:
        """Make a queue.

        Args:
            outfeed_mode: IPUOutfeedMode.ALL, the default, or LAST.
            device_ordinal: Number of the device, by default that of the current strategy, or 0.
            buffer_depth: Number of elements that the host buffers.
            optimise_latency: Accepted: it changes no value.

        Raises:
            ValueError: For another mode, and numbers outside their range.
        """
        del optimise_latency
        self._outfeed_mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if not isinstance(self._outfeed_mode, IPUOutfeedMode):
            raise ValueError(
                "Expected `outfeed_mode` value to be of `ipu_outfeed_queue.IPUOutfeedMode` type, "
                f"but is {type(outfeed_mode)}."
            )
        self._device_ordinal = find_device_ordinal(device_ordinal)
        if buffer_depth <= 0:
            raise ValueError("Outfeed buffer depth cannot be less than 1")
        self._outfeed_all = self._outfeed_mode is IPUOutfeedMode.ALL
        self._outfeed = queues.Outfeed(self._outfeed_all)
        self._feed_name = self._outfeed.name
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        """Graphs that enqueue, and the graphs around them."""
        self._last_graph: weakref.ref[Any] | None = None
        self._enqueuing_thread: int | None = None
        self._structure: Any = None
        self._specs: list[tf.TensorSpec] = []

    def enqueue(self, tensors: Any) -> tf.Operation:
        """Add the operation that returns values to the host.

        Args:
            tensors: A tensor, or a tuple, list or dictionary of them.

        Returns:
            The operation.

        Raises:
            ValueError: If the graph enqueues already.
        """
        if self.enqueued:
            raise ValueError("An outfeed can only be enqueued once.")
        flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(tensors)]
        self._specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]
        self._structure = tf.nest.pack_sequence_as(tensors, self._specs)
        graph = tf.compat.v1.get_default_graph()
        self._note(graph)
        facts = {"queue": self._feed_name, "name": "outfeed enqueue"}
        return markers.add_operation(markers.ENQUEUE, facts, flat, [], "outfeed_enqueue")

    def _note(self, graph: Any) -> None:
        self._enqueuing_thread = threading.get_ident()
        self._last_graph = weakref.ref(graph)
        while graph is not None:
            self._graphs.add(graph)
            graph = graph.outer_graph if isinstance(graph, func_graph.FuncGraph) else None

    @property
    def enqueued(self) -> bool:
        """Whether the current graph, or one within it, returns values to this queue.

        A thread that has not enqueued asks about the graph of the one that has.
        """
        if self._enqueuing_thread is None or self._last_graph is None:
            return False
        if threading.get_ident() != self._enqueuing_thread:
            return self._last_graph() in self._graphs
        return tf.compat.v1.get_default_graph() in self._graphs

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Return what programs have enqueued.

        Args:
            wait_for_completion: Accepted: what a program has enqueued is there at once.

        Returns:
            The structure of `enqueue`. In mode ALL its tensors have the elements since the last
            dequeue in front, in mode LAST they are those of the last element. With several
            replicas, their values are along a further axis before the element's own. In eager
            mode the result is an empty list as long as nothing is enqueued.

        Raises:
            ValueError: If nothing is enqueued, in a graph.
        """
        del wait_for_completion
        if not self.enqueued:
            if tf.executing_eagerly() and threading.get_ident() != self._enqueuing_thread:
                return []
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        if tf.executing_eagerly():
            with tf.device("/device:CPU:0"):
                tensors = [tf.constant(value) for value in self._outfeed.take(self._specs)]
        else:
            with tf.device("/device:CPU:0"):
                tensors = make_dequeue(self._outfeed, self._specs)
        return tf.nest.pack_sequence_as(self._structure, tensors)

    @property
    def deleter(self) -> Any:
        """An operation that deletes the queue's elements; in eager mode reading it does that."""
        if tf.executing_eagerly():
            self._outfeed.take_all()
            return None
        forget = self._outfeed.take_all
        return tf.numpy_function(lambda: len(forget()), [], tf.int64, stateful=True).op

    def __iter__(self) -> IPUOutfeedQueueIterator:
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode.")
        if not self._outfeed_all:
            raise RuntimeError(
                "IPUOutfeedQueue can only be iterated over if the `outfeed_mode` is set to "
                "'IPUOutfeedMode.ALL'."
            )
        return IPUOutfeedQueueIterator(self)


def make_dequeue(outfeed: queues.Outfeed, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Add an operation to the current graph that dequeues an outfeed.

    Args:
        outfeed: The outfeed.
        specs: Types and shapes of an element.

    Returns:
        The tensors. Their shapes are not known: replicas add an axis.
    """

    def take() -> list[Array]:
        try:
            return outfeed.take(specs)
        except tf.errors.OpError as error:
            launching.keep_error(error)
            raise

    return list(tf.numpy_function(take, [], [spec.dtype for spec in specs], stateful=True))


class IPUOutfeedQueueIterator(Iterator[Any]):
    """Iterates over the elements of an outfeed."""

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        """Make an iterator.

        Args:
            outfeed_queue: The queue, in mode ALL.
        """
        self._queue = outfeed_queue
        self._elements: collections.deque[Any] = collections.deque()

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Any:
        if not self._elements:
            with context.eager_mode():
                results = self._queue.dequeue()
                flat = [tf.unstack(tensor) for tensor in tf.nest.flatten(results)]
            for values in zip(*flat, strict=True):
                self._elements.append(tf.nest.pack_sequence_as(results, values))
        if not self._elements:
            raise StopIteration
        return self._elements.popleft()


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """An outfeed whose elements are deleted with it; in eager mode only."""

    def __init__(
        self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None
    ) -> None:
        """Make a queue, as IPUOutfeedQueue does.

        Args:
            outfeed_mode: IPUOutfeedMode.ALL, the default, or LAST.
            device_ordinal: Number of the device, by default that of the current strategy, or 0.

        Raises:
            RuntimeError: In a graph.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("ScopedIPUOutfeedQueue can only be created in eager mode")
        super().__init__(outfeed_mode, device_ordinal)
