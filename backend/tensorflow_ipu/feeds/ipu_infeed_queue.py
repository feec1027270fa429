"""IPUInfeedQueue: data that programs take while they run; and iterators that feed an IPU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.framework import type_spec

from tensorflow_ipu import markers
from tensorflow_ipu.feeds import queues
from tensorflow_ipu.feeds.arguments import count_arguments

INITIALIZER: Final = "_ipu_infeed_initializer"
"""Attribute of an operation that begins an infeed: the infeed's name."""
DELETER: Final = "_ipu_infeed_deleter"
_DEFAULT_DEPTH = 3
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
            device_ordinal: Number of the device, by default that of the current strategy, or 0.
            prefetch_depth: Number of elements to fetch ahead, 1 to 255, by default 3.
            optimise_latency: Accepted: it changes no value.
            **kwargs: Accepted for older scripts (`feed_name`, `replication_factor`).

        Raises:
            ValueError: For shapes that are not known, and numbers outside their range.
        """
        del kwargs
        self._structure = tf.data.experimental.get_structure(dataset)
        self._specs = tf.nest.flatten(self._structure)
        self._flat_structure = describe_specs(self._specs)
        self._device_ordinal = find_device_ordinal(device_ordinal)
        self._prefetch_depth = _check_depth(prefetch_depth)
        self._optimise_latency = optimise_latency
        self._dataset = dataset
        self._infeed = queues.Infeed(self._specs)
        self._id = self._infeed.name
        self._dequeued = self._initialized = self._from_spec = False
        self._initializer: tf.Operation | None = None
        self._is_eager = tf.executing_eagerly()
        if not self._is_eager:
            with tf.device("/device:CPU:0"):
                self._iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
                self._elements = tf.nest.flatten(self._iterator.get_next())

    def _dequeue(self) -> Any:
        """Add the operation that takes the next element to the current graph."""
        outputs = [(spec.dtype, spec.shape) for spec in self._specs]
        facts = {"queue": self._id, "name": "infeed dequeue"}
        self._dequeued = True
        tensors = markers.add_marker(markers.DEQUEUE, facts, [], outputs, "infeed_dequeue")
        return tf.nest.pack_sequence_as(self._structure, tensors)

    @property
    def dequeued(self) -> bool:
        """Whether a computation takes elements."""
        return self._dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of arguments that an element stands for."""
        return count_arguments(self._structure)

    @property
    def initializer(self) -> Any:
        """The operation that begins the data set; in eager mode reading it does that.

        Raises:
            RuntimeError: If the queue was made from a specification.
            ValueError: If it is read a second time in a graph.
        """
        if self._from_spec:
            raise RuntimeError("IPUInfeedQueue created from spec should already be initialized.")
        if self._is_eager:
            self._check_elements()
            with tf.device("/device:CPU:0"):
                iterator = iterator_ops.OwnedIterator(self._dataset)
            self._infeed.begin(lambda: [t.numpy() for t in tf.nest.flatten(next(iterator))])
            self._initialized = True
            return None
        if self._initialized:
            raise ValueError("The IPUInfeedQueue `initializer` function can only be accessed once.")
        self._initialized = True
        with tf.control_dependencies([self._iterator.initializer]):
            self._initializer = tf.no_op(name="infeed_initializer")
        self._mark(self._initializer, INITIALIZER)
        _graph_queues[self._id] = self
        return self._initializer

    @property
    def deleter(self) -> Any:
        """The operation that deletes the iterator; in eager mode reading it does that.

        Raises:
            RuntimeError: If the queue was made from a specification.
        """
        if self._from_spec:
            raise RuntimeError("IPUInfeedQueue created from spec cannot be deleted.")
        if self._is_eager:
            self._infeed.end()
            return None
        operation = tf.no_op(name="infeed_deleter")
        self._mark(operation, DELETER)
        _graph_queues[self._id] = self
        return operation

    def _mark(self, operation: tf.Operation, attribute: str) -> None:
        operation._set_attr(attribute, AttrValue(s=self._id.encode()))  # noqa: SLF001

    def _check_elements(self) -> None:
        queues.check_types([spec.dtype for spec in self._specs], "IPUInfeedQueue", self._id)
        queues.check_sizes([spec.shape.as_list() for spec in self._specs], "an infeed")

    def begin_in(self, session: Any) -> None:
        """Take elements from a session's iterator, which has just been initialized."""
        self._check_elements()
        options = tf.compat.v1.RunOptions(inter_op_thread_pool=-1)
        fetch = session.make_callable(self._elements, accept_options=True)
        self._infeed.begin(lambda: [np.asarray(value) for value in fetch(options=options)])

    def end_in(self, _: Any) -> None:
        """Delete the iterator."""
        self._infeed.end()

    def get_next(self) -> Any:
        """Raise ValueError: older versions had this method."""
        raise ValueError(
            "`get_next()` is now obsolete as the IPUInfeedQueue is now automatically dequeued by "
            "the loop."
        )

    @property
    def _type_spec(self) -> InfeedQueueSpec:
        if not self._initialized:
            raise RuntimeError(
                "Spec for IPUInfeedQueue can only be created for already initialized queues."
            )
        return InfeedQueueSpec(
            self._id,
            self._structure,
            self._flat_structure,
            self._device_ordinal,
            self._prefetch_depth,
            self._optimise_latency,
        )

    @classmethod
    def _from_type_spec(cls, spec: InfeedQueueSpec) -> IPUInfeedQueue:
        """Return a queue that takes the elements of an initialized one."""
        queue = cls.__new__(cls)
        facts = vars(spec)
        vars(queue).update(
            facts,
            _specs=tf.nest.flatten(facts["_structure"]),
            _infeed=queues.find_infeed(facts["_id"]),
            _initialized=True,
            _dequeued=True,
            _from_spec=True,
            _is_eager=tf.executing_eagerly(),
        )
        return queue


def describe_specs(specs: list[tf.TensorSpec]) -> dict[str, list[Any]]:
    """Return shapes and types of an element's tensors; raises ValueError for unknown shapes."""
    for spec in specs:
        if not hasattr(spec, "dtype") or not hasattr(spec, "shape"):
            raise ValueError("Nested list/tuple input shapes are not supported")
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"Output shape {spec.shape} is not fully defined. If using tf.Dataset.batch, set "
                "`drop_remainder=True`."
            )
    return {
        "output_shapes": [spec.shape for spec in specs],
        "output_types": [spec.dtype for spec in specs],
    }


def _check_depth(depth: int | None) -> int:
    depth = depth or _DEFAULT_DEPTH
    if depth <= 0:
        raise ValueError(f"prefetch_depth must be greater than zero, but it is {depth}")
    if depth > _MAX_DEPTH:
        raise ValueError(f"prefetch_depth must be less than 256, but it is {depth}")
    return depth


def find_device_ordinal(ordinal: int | None) -> int:
    """Return the number of a queue's device.

    Args:
        ordinal: The number, or None for that of the current strategy.

    Returns:
        The number.

    Raises:
        ValueError: For what is no such number.
    """
    if ordinal is None:
        return int(getattr(tf.distribute.get_strategy(), "_device_ordinal", 0))
    if not isinstance(ordinal, int):
        raise ValueError("Device ordinal must be an integer")
    if ordinal < 0:
        raise ValueError("Device ordinal must be >= 0")
    return ordinal


class InfeedQueueSpec(type_spec.TypeSpec):  # type: ignore[misc]
    """Type of an initialized queue, from which a queue with the same elements can be made."""

    def __init__(
        self,
        feed_id: str,
        feed_structure: Any,
        feed_flat_structure: dict[str, list[Any]],
        feed_device_ordinal: int,
        feed_prefetch_depth: int,
        feed_optimise_latency: bool,
    ) -> None:
        self._id = feed_id
        self._structure = feed_structure
        self._flat_structure = feed_flat_structure
        self._device_ordinal = feed_device_ordinal
        self._prefetch_depth = feed_prefetch_depth
        self._optimise_latency = feed_optimise_latency

    @property
    def value_type(self) -> type:
        """The class of the queues."""
        return IPUInfeedQueue

    def _serialize(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    @property
    def _component_specs(self) -> tuple[()]:
        return ()

    def _to_components(self, value: Any) -> tuple[()]:
        del value
        return ()

    def _from_components(self, components: Any) -> IPUInfeedQueue:
        del components
        return IPUInfeedQueue._from_type_spec(self)  # noqa: SLF001


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
        """Make an iterator.

        Args:
            dataset: The tf.data.Dataset.
            infeed_spec: In its place, the specification of an initialized queue.
            element_spec: With `infeed_spec`, types and shapes of an element.
            **kwargs: Further arguments of IPUInfeedQueue.

        Raises:
            ValueError: For neither of both, or both.
        """
        is_whole = infeed_spec is not None and element_spec is not None
        is_part = infeed_spec is not None or element_spec is not None
        if (dataset is None and not is_whole) or (dataset is not None and is_part):
            raise ValueError(
                "Either `dataset` or both `infeed_spec` and `element_spec` need to be provided."
            )
        if dataset is None:
            self._infeed_queue = IPUInfeedQueue._from_type_spec(infeed_spec)  # noqa: SLF001
            self._element_spec = element_spec
        else:
            self._infeed_queue = IPUInfeedQueue(dataset, **kwargs)
            self._infeed_queue.initializer  # noqa: B018 - in eager mode reading it begins it
            self._element_spec = dataset.element_spec

    def restart(self, dataset: Any) -> None:
        """Take elements from another data set from now on.

        Args:
            dataset: A data set of the same element_spec.
        """
        self._infeed_queue._dataset = dataset  # noqa: SLF001
        self._infeed_queue.initializer  # noqa: B018 - in eager mode reading it begins it

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
                "Accessing dataset elements can not be accessed in eager mode when inside "
                "'IPUStrategy'. The dataset elements should be accessed inside of a 'tf.function' "
                "with 'jit_compile=True' set in order to achieve optimal performance. See "
                "documentation for detailed examples. If this behavior is required please set "
                "'enable_dataset_iterators=False' when creating an 'IPUStrategy'."
            )
        return self._infeed_queue._dequeue()  # noqa: SLF001

    def get_next_as_optional(self) -> Any:
        """Raise NotImplementedError: a program cannot tell where a data set ends."""
        raise NotImplementedError("IPU Dataset iterator does not support get_next_as_optional().")

    @property
    def element_spec(self) -> Any:
        """Types and shapes of an element."""
        return self._element_spec

    @property
    def infeed_spec(self) -> InfeedQueueSpec:
        """The specification of the queue."""
        return self._infeed_queue._type_spec  # noqa: SLF001


class IPUOwnedIterator(IPUIterator):
    """IPUIterator whose queue is deleted with it."""
