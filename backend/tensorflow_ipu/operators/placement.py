"""Placement of compositions: operators of TensorFlow that together make one operator of the IPU.

The real operators have kernels for the IPU only. So a composition is placed on the IPU too, where
nothing else says so, and in eager mode it is compiled and run there: TensorFlow's CPU never
computes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
import tensorflow as tf

IPU: Final = "/device:IPU:0"
"""Device of an operator that nothing else places."""

Function = TypeVar("Function", bound=Callable[..., Any])


def on_ipu(function: Function) -> Function:
    """Return an operator that is computed on the IPU, in a graph and in eager mode.

    Args:
        function: Function of tensors and options that returns tensors.

    Returns:
        The operator.
    """

    @functools.wraps(function)
    def operator(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() and not _has_symbols(args, kwargs):
            return _run(function, args, kwargs)
        with ipu_device():
            return function(*args, **kwargs)

    return operator  # type: ignore[return-value]


@contextmanager
def ipu_device() -> Iterator[None]:
    """Place operators on the IPU, unless the graph's scopes place them on one already."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or _is_on_ipu(graph):
        yield
        return
    with graph.device(IPU):
        yield


def _is_on_ipu(graph: tf.Graph) -> bool:
    scopes = graph._device_function_stack.peek_objs()  # noqa: SLF001
    return any("IPU" in str(scope.display_name).upper() for scope in scopes)


def _has_symbols(args: Any, kwargs: Any) -> bool:
    """Return whether an argument is a tensor without a value, such as Keras' symbolic inputs."""
    return any(
        type(leaf).__name__ == "KerasTensor" or (tf.is_tensor(leaf) and not _has_value(leaf))
        for leaf in tf.nest.flatten((args, kwargs))
    )


def _has_value(leaf: Any) -> bool:
    return isinstance(leaf, tf.Variable) or hasattr(leaf, "numpy")


def _run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Compile and run a function of the tensors among its arguments."""
    from tensorflow_ipu.launching import run_function

    leaves = tf.nest.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if _is_value(leaf)]
    structure: list[Any] = []

    def traced(*tensors: Any) -> list[Any]:
        arguments = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        inner_args, inner_kwargs = tf.nest.pack_sequence_as((args, kwargs), arguments)
        result = function(*inner_args, **inner_kwargs)
        structure[:] = [result]
        return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(result)]

    tensors = [tf.convert_to_tensor(leaves[place]) for place in places]
    results = run_function(traced, tensors)
    return tf.nest.pack_sequence_as(structure[0], list(results))


def _is_value(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that the computation gets as an input."""
    return isinstance(leaf, (tf.Tensor, tf.Variable)) and not isinstance(leaf, np.ndarray)
