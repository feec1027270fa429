"""What a strategy's scope changes in TensorFlow, as long as it lasts.

Calls of tf.functions run on the IPU, `iter(dataset)` makes an iterator that feeds the IPU, and
Keras has the extensions of `keras_extensions`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorflow_ipu.eager_operations import current_ordinal
from tensorflow_ipu.feeds import host_iterators

_scopes = threading.local()


def current_strategy() -> Any:
    """Return the innermost strategy whose scope the thread is in, or None."""
    entered = getattr(_scopes, "entered", None)
    return entered[-1] if entered else None


@contextlib.contextmanager
def enter(strategy: Any) -> Iterator[None]:
    """Let a strategy's scope begin.

    Args:
        strategy: The IPUStrategy.
    """
    if not hasattr(_scopes, "entered"):
        _scopes.entered = []
    _scopes.entered.append(strategy)
    if strategy.enable_keras_extensions:
        _keras("enter", strategy)
    try:
        yield
    finally:
        _scopes.entered.pop()
        if strategy.enable_keras_extensions:
            _keras("leave", strategy)


def _keras(name: str, strategy: Any) -> None:
    try:
        from tensorflow_ipu import keras_extensions
    except ImportError:
        return
    getattr(keras_extensions, name, lambda _: None)(strategy)


def install() -> None:
    """Make calls of tf.functions and iterators of data sets ask where they run; once."""
    if getattr(polymorphic_function.Function, "_ipu_hooked", False):
        return
    polymorphic_function.Function._ipu_hooked = True  # noqa: SLF001
    call = polymorphic_function.Function.__call__

    def call_on_ipu(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly() or self._run_functions_eagerly:
            return call(self, *args, **kwargs)
        ordinal = current_ordinal()
        if ordinal is not None:
            from tensorflow_ipu.ipu_strategy import run_on_ipu

            return run_on_ipu(self, args, kwargs, ordinal)
        strategy = current_strategy()
        if strategy is None or not self._jit_compile:
            return call(self, *args, **kwargs)
        return strategy.run(self, args, kwargs)

    polymorphic_function.Function.__call__ = call_on_ipu
    host_iterators.install()
    iterate = dataset_ops.DatasetV2.__iter__

    def iterate_for_ipu(self: Any) -> Any:
        strategy = current_strategy()
        if strategy is None or not strategy.enable_dataset_iterators:
            return iterate(self)
        from tensorflow_ipu.feeds.ipu_infeed_queue import IPUOwnedIterator

        return IPUOwnedIterator(self)

    dataset_ops.DatasetV2.__iter__ = iterate_for_ipu
