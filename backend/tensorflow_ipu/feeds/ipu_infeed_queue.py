"""IPUInfeedQueue: data that programs take while they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.data.ops import iterator_ops

from tensorflow_ipu import markers
from tensorflow_ipu.feeds import queues

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
            with tf.device("/device:CPU:0"):
                iterator = iterator_ops.OwnedIterator(self._dataset)
            self._infeed.begin(lambda: [t.numpy() for t in tf.nest.flatten(next(iterator))])
            return None
        if self._initializer is not None:
            raise ValueError("The IPUInfeedQueue `initializer` function can only be accessed once.")
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
        raise ValueError("`get_next` is obsolete: loops give the queue's elements to their bodies")


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

    def restart(self, dataset: Any) -> None:
        """Take elements from another data set from now on.

        Args:
            dataset: A data set of the same element_spec.
        """
        self._queue._dataset = dataset  # noqa: SLF001
        self._queue.initializer  # noqa: B018 - in eager mode reading it begins the data set

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
