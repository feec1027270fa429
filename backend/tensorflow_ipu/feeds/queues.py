"""The host's ends of feeds: where infeeds take elements from, and where outfeeds keep them."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu.config import flags
from tensorflow_ipu.messages.config_pb2 import SyntheticDataCategory

_numbers = itertools.count()
FEED_TYPES: Final = (tf.int32, tf.float16, tf.float32, tf.bool, tf.int8, tf.uint8)
"""Types of what feeds carry."""


class Infeed:
    """Takes the elements of a data set, one by one."""

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self.name: Final = f"infeed{next(_numbers)}"
        self._specs = specs
        self._next: Callable[[], Sequence[Array]] | None = None
        _infeeds[self.name] = self

    def begin(self, function: Callable[[], Sequence[Array]]) -> None:
        """Begin the data set anew; `function` returns the arrays of the next element."""
        self._next = function

    def end(self) -> None:
        """Delete the iterator of the data set."""
        if self._next is None:
            raise tf.errors.NotFoundError(
                None,
                None,
                f"Infeed with id='{self.name}'. Make sure that you have run the initializer for "
                "this infeed before attempting to delete it.",
            )
        self._next = None

    def take(self) -> Sequence[Array]:
        """Return the arrays of the next element.

        Raises:
            FailedPreconditionError: If the infeed is not initialized.
            OutOfRangeError: If the data set has no element left.
            InternalError: If the data set fails.
        """
        if flags.read_flags().is_synthetic(SyntheticDataCategory.Infeed):
            return [make_synthetic(spec) for spec in self._specs]
        if self._next is None:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"Infeed with id='{self.name}' has no data set: run its initializer first",
            )
        try:
            return self._next()
        except (StopIteration, tf.errors.OutOfRangeError) as error:
            raise tf.errors.OutOfRangeError(
                None,
                None,
                "The dataset iterator has reached the end of the dataset: the program takes more "
                "elements than it has; repeat the data set, or run fewer iterations",
            ) from error
        except tf.errors.OpError as error:
            message = f"An infeed dataset iterator has failed with status: {error}"
            raise tf.errors.InternalError(None, None, message) from error


class Outfeed:
    """Keeps the elements that programs return until they are dequeued."""

    def __init__(self, keeps_all: bool, name: str | None = None) -> None:
        self.name: Final = name or f"outfeed{next(_numbers)}"
        self._keeps_all = keeps_all
        self._elements: list[Sequence[Array]] = []
        self._lock = threading.Lock()
        _outfeeds[self.name] = self

    def put(self, values: Sequence[Array]) -> None:
        """Keep an element."""
        arrays = [np.asarray(value) for value in values]
        check_types([tf.as_dtype(array.dtype) for array in arrays], "enqueue", self.name)
        check_sizes([array.shape for array in arrays], "an outfeed")
        if is_synthetic_outfeed():
            return
        with self._lock:
            if not self._keeps_all:
                self._elements.clear()
            self._elements.append(arrays)

    def take_all(self) -> list[Sequence[Array]]:
        """Return the elements since the last call, and forget them."""
        with self._lock:
            elements, self._elements = self._elements, []
        return elements

    def last(self) -> Sequence[Array]:
        """Return the last element, which stays.

        Raises:
            FailedPreconditionError: If there is none.
        """
        with self._lock:
            if self._elements:
                return self._elements[-1]
        if is_synthetic_outfeed():
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                "Trying to get the last value from an outfeed queue when using synthethic data. "
                "This is not supported.",
            )
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            "Trying to get the last value from an outfeed queue before it was executed. Make sure "
            "the outfeed dequeue TensorFlow operation is executed after the enqueue to the outfeed "
            "has completed.",
        )

    def take(self, specs: Sequence[tf.TensorSpec]) -> list[Array]:
        """Return what a dequeue gets: all elements along a new first axis, or the last one.

        Args:
            specs: Types and shapes of an element, for the result of no elements.

        Raises:
            FailedPreconditionError: If the last element is asked for and there is none.
        """
        if not self._keeps_all:
            return list(self.last())
        elements = self.take_all()
        if elements:
            return [np.stack(values) for values in zip(*elements, strict=True)]
        return [np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype) for spec in specs]


def is_synthetic_outfeed() -> bool:
    """Return whether programs return no data to the host."""
    return flags.read_flags().is_synthetic(SyntheticDataCategory.Outfeed)


def make_synthetic(spec: tf.TensorSpec) -> Array:
    """Return an array that takes the place of a data set's."""
    dtype = spec.dtype.as_numpy_dtype
    initializer = str(flags.read_flags().synthetic_data_initializer)
    shape = spec.shape.as_list()
    if initializer == "normal" or (initializer == "random" and spec.dtype.is_floating):
        return np.asarray(_generator.standard_normal(shape), dtype)
    if initializer in ("uniform", "random"):
        return np.asarray(_generator.uniform(0, 1, shape), dtype)
    return np.full(shape, float(initializer or 0), dtype)


_generator: Final = np.random.default_rng(0)


def check_sizes(shapes: Sequence[Sequence[int]], queue: str) -> None:
    """Raise InvalidArgumentError if one of the shapes has a dimension of size 0."""
    if any(0 in shape for shape in shapes):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Detected an input tensor to {queue} queue with a dimension of size 0. Please remove "
            "it from the inputs.",
        )


def check_types(dtypes: Sequence[tf.DType], operation: str, name: str) -> None:
    """Raise FailedPreconditionError for a type that feeds do not carry."""
    for number, dtype in enumerate(dtypes):
        if dtype not in FEED_TYPES:
            names = ",".join(known.name for known in FEED_TYPES)
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"Unsupported datatype {dtype.name} on index {number} of feed operation "
                f"{operation} with feed id '{name}'. You should use a tf.DataSet.map() operation "
                f"to cast the element into one of ({names}).",
            )


_infeeds: weakref.WeakValueDictionary[str, Infeed] = weakref.WeakValueDictionary()
_outfeeds: weakref.WeakValueDictionary[str, Outfeed] = weakref.WeakValueDictionary()


def find_infeed(name: str) -> Infeed:
    """Return an infeed by its name in markers."""
    infeed: Infeed = _find(_infeeds, name)
    return infeed


def find_outfeed(name: str) -> Outfeed:
    """Return an outfeed by its name in markers."""
    outfeed: Outfeed = _find(_outfeeds, name)
    return outfeed


def _find(feeds: Any, name: str) -> Any:
    feed = feeds.get(name)
    if feed is None:
        raise tf.errors.NotFoundError(None, None, f"feed '{name}' has been deleted")
    return feed
