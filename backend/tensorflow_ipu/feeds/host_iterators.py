"""TensorFlow's own iterators in functions for the IPU: their elements come through an infeed.

A script may make an iterator outside a strategy's scope. The host advances it; a function that is
traced for the IPU takes each element as it does one of an IPUIterator.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from tensorflow_ipu.feeds import queues
from tensorflow_ipu.feeds.ipu_infeed_queue import InfeedQueueSpec, IPUIterator, describe_specs

_tracing = threading.local()
_adapted: weakref.WeakKeyDictionary[Any, IPUIterator] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def tracing_for_ipu() -> Iterator[None]:
    """Let functions that are traced within this context take elements through infeeds."""
    before = getattr(_tracing, "is_on", False)
    _tracing.is_on = True
    try:
        yield
    finally:
        _tracing.is_on = before


def adapt(value: Any) -> Any:
    """Return the IPUIterator that stands for an iterator, or any other value itself.

    Args:
        value: An argument of a function.

    Returns:
        The iterator, always the same for an iterator, or the value.

    Raises:
        ValueError: For an iterator whose elements have no static shape.
    """
    if not isinstance(value, iterator_ops.OwnedIterator):
        return value
    if value not in _adapted:
        _adapted[value] = _make_iterator(value)
    return _adapted[value]


def _make_iterator(iterator: Any) -> IPUIterator:
    structure = iterator.element_spec
    specs = tf.nest.flatten(structure)
    shapes = describe_specs(specs)
    infeed = queues.Infeed(specs)
    held: Any = weakref.ref(iterator)

    def take() -> list[Any]:
        return [tensor.numpy() for tensor in tf.nest.flatten(next(held()))]

    infeed.begin(take)
    spec = InfeedQueueSpec(infeed.name, structure, shapes, 0, 1, False)
    return IPUIterator(infeed_spec=spec, element_spec=structure)


def install() -> None:
    """Make TensorFlow's iterators ask whether a function is traced for the IPU."""
    advance = iterator_ops.OwnedIterator._next_internal  # noqa: SLF001

    def advance_or_dequeue(self: Any) -> Any:
        if tf.executing_eagerly() or not getattr(_tracing, "is_on", False):
            return advance(self)
        return adapt(self).get_next()

    iterator_ops.OwnedIterator._next_internal = advance_or_dequeue  # noqa: SLF001
