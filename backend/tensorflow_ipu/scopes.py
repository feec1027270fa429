"""Scopes: which device computes what is written within them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensorflow_ipu.placement import OUTSIDE, SHARD


@contextlib.contextmanager
def ipu_scope(device: str) -> Iterator[str]:
    """Place operations on an IPU; variables within it are resource variables.

    Args:
        device: Name of the device, `/device:IPU:0`.

    Yields:
        The name.
    """
    with (
        tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(), use_resource=True, auxiliary_name_scope=False
        ),
        tf.device(device),
    ):
        yield device


@contextlib.contextmanager
def _attribute_scope(name: str, value: Any) -> Iterator[None]:
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    with tf.compat.v1.get_default_graph()._attr_scope(  # noqa: SLF001
        {name: AttrValue(s=str(value).encode())}
    ):
        yield


@contextlib.contextmanager
def ipu_shard(index: int) -> Iterator[None]:
    """Place operations on one IPU of the device.

    Args:
        index: Number of the IPU, from 0.
    """
    with _attribute_scope(SHARD, index):
        yield


@contextlib.contextmanager
def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: str | None = None
) -> Iterator[None]:
    """Give operations an attribute for the compiler.

    Args:
        attribute_name: Name of the attribute.
        attribute_value: Its value.
        restore_to: Accepted: the scope around it has its own value anyway.
    """
    del restore_to
    with _attribute_scope(f"_ipu_{attribute_name}", attribute_value):
        yield


@contextlib.contextmanager
def stochastic_rounding(override: Any) -> Iterator[None]:
    """Set stochastic rounding of operations: a hint, because sums are rounded to nearest here.

    Args:
        override: True, False or a StochasticRoundingBehaviour.
    """
    with _attribute_scope("_ipu_stochastic_rounding", override):
        yield


@contextlib.contextmanager
def partials_type(override_type: Any) -> Iterator[None]:
    """Set the type of partial sums of operations.

    Args:
        override_type: tf.float32 or tf.float16.

    Raises:
        ValueError: For another type.
    """
    dtype = tf.as_dtype(override_type)
    if dtype not in (tf.float32, tf.float16):
        raise ValueError(f"Only support float16, float32 as partials types, found {dtype.name}")
    with _attribute_scope("_ipu_partials_type", "half" if dtype == tf.float16 else "float"):
        yield


@contextlib.contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Let the host compute operations within a computation of the IPU.

    Args:
        name: Name of the scope.

    Yields:
        Nothing.

    Raises:
        ValueError: Outside a computation, or within another such scope.
    """
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        raise ValueError("outside_compilation_scope is only allowed in XLA context")
    if OUTSIDE in graph._attr_scope_map:  # noqa: SLF001
        raise ValueError("Illegal nesting of outside_compilation_scope")
    with _attribute_scope(OUTSIDE, name), tf.name_scope(name):
        yield


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: Any) -> Iterator[None]:
    """Accept the scope of older versions: what is placed on an IPU is compiled anyway.

    Args:
        ipu_scope: Accepted.
    """
    del ipu_scope
    yield
