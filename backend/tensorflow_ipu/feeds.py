"""IPUInfeedQueue and IPUOutfeedQueue: data that programs take and return while they run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from popef._tools.arrays import Array
from tensorflow_ipu import markers, queues

INITIALIZER = "_ipu_infeed_initializer"
"""Attribute of an operation that begins an infeed: the infeed's name."""
DELETER = "_ipu_infeed_deleter"
_MAX_DEPTH = 255


class IPUInfeedQueue:
    """Feeds the elements of a data set to programs, one for each iteration."""

    def __init__(
        self,
        dataset: Any,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a queue.

        Args:
            dataset: The tf.data.Dataset; all shapes must be known.
            device_ordinal: Number of the device; accepted, and not needed here.
            prefetch_depth: Number of elements to fetch ahead, 1 to 255.
            optimise_latency: Accepted: it changes no value.
            **kwargs: Accepted for older scripts (`feed_name`, `replication_factor`).

        Raises:
            ValueError: For shapes that are not known, or a depth outside its range.
        """
        del device_ordinal, optimise_latency, kwargs
        if prefetch_depth is not None and not 1 <= prefetch_depth <= _MAX_DEPTH:
            raise ValueError(
                f"prefetch_depth must be in the range [1, {_MAX_DEPTH}], found {prefetch_depth}"
            )
        self._structure = tf.data.experimental.get_structure(dataset)
        self._specs = tf.nest.flatten(self._structure)
        for spec in self._specs:
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"Output shape {spec.shape} is not fully defined. If using batch, set "
                    "`drop_remainder=True`."
                )
        self._dataset = dataset
        self._infeed = queues.Infeed()
        self._dequeued = False
        self._initializer: tf.Operation | None = None
        self._is_eager = tf.executing_eagerly()
        if not self._is_eager:
            with tf.device("/device:CPU:0"):
                self._iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
                self._elements = tf.nest.flatten(self._iterator.get_next())

    def _dequeue(self) -> Any:
        """Add the operation that takes the next element to the current graph."""
        outputs = [(spec.dtype, spec.shape) for spec in self._specs]
        facts = {"queue": self._infeed.name, "name": "infeed dequeue"}
        self._dequeued = True
        tensors = markers.add_marker(markers.DEQUEUE, facts, [], outputs, "infeed_dequeue")
        return tf.nest.pack_sequence_as(self._structure, tensors)

    @property
    def dequeued(self) -> bool:
        """Whether a computation takes elements."""
        return self._dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of tensors of an element."""
        return len(self._specs)

    @property
    def initializer(self) -> Any:
        """The operation that begins the data set; in eager mode reading it does that.

        Raises:
            ValueError: If it is read a second time in a graph.
        """
        if self._is_eager:
            iterator = iter(self._dataset)
            self._infeed.begin(lambda: [t.numpy() for t in tf.nest.flatten(next(iterator))])
            return None
        if self._initializer is not None:
            raise ValueError(
                "The IPUInfeedQueue `initializer` function can only be accessed once."
            )
        with tf.control_dependencies([self._iterator.initializer]):
            self._initializer = tf.no_op(name="infeed_initializer")
        self._mark(self._initializer, INITIALIZER)
        _graph_queues[self._infeed.name] = self
        return self._initializer

    @property
    def deleter(self) -> Any:
        """The operation that deletes the iterator; in eager mode reading it does that."""
        if self._is_eager:
            self._infeed.end()
            return None
        operation = tf.no_op(name="infeed_deleter")
        self._mark(operation, DELETER)
        _graph_queues[self._infeed.name] = self
        return operation

    def _mark(self, operation: tf.Operation, attribute: str) -> None:
        value = AttrValue(s=self._infeed.name.encode())
        operation._set_attr(attribute, value)  # noqa: SLF001

    def begin_in(self, session: Any) -> None:
        """Take elements from a session's iterator, which has just been initialized."""
        options = tf.compat.v1.RunOptions(inter_op_thread_pool=-1)
        fetch = session.make_callable(self._elements, accept_options=True)
        self._infeed.begin(lambda: [np.asarray(value) for value in fetch(options=options)])

    def end_in(self, _: Any) -> None:
        """Delete the iterator."""
        self._infeed.end()

    def get_next(self) -> Any:
        """Raise ValueError: older versions had this method."""
        raise ValueError(
            "`get_next` is obsolete: loops give the queue's elements to their bodies"
        )


_graph_queues: dict[str, IPUInfeedQueue] = {}


def begin_infeeds(operation: tf.Operation, session: Any) -> None:
    """Begin or end the infeed that a session's operation stands for, if it is one."""
    for attribute, method in (
        (INITIALIZER, IPUInfeedQueue.begin_in),
        (DELETER, IPUInfeedQueue.end_in),
    ):
        try:
            name = operation.get_attr(attribute).decode()
        except ValueError:
            continue
        method(_graph_queues[name], session)


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


class IPUIterator:
    """Iterator over a data set within a strategy: its elements come from an infeed."""

    def __init__(
        self,
        dataset: Any = None,
        infeed_spec: Any = None,
        element_spec: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make an iterator of a data set; further arguments are those of IPUInfeedQueue."""
        del infeed_spec, element_spec
        self._queue = IPUInfeedQueue(dataset, **kwargs)
        self._queue.initializer  # noqa: B018 - in eager mode reading it begins the data set
        self._element_spec = dataset.element_spec

    def __iter__(self) -> IPUIterator:
        return self

    def __next__(self) -> Any:
        return self.get_next()

    def next(self) -> Any:
        """Return the next element."""
        return self.get_next()

    def get_next(self) -> Any:
        """Return the next element.

        Raises:
            RuntimeError: Outside a function that is compiled for the IPU.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "The iterator of a data set within an IPUStrategy can only be used in a "
                "tf.function that the strategy runs"
            )
        return self._queue._dequeue()  # noqa: SLF001

    @property
    def element_spec(self) -> Any:
        """Types and shapes of an element."""
        return self._element_spec


class IPUOwnedIterator(IPUIterator):
    """IPUIterator under the name that TensorFlow 2 gives it."""
