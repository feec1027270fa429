"""Operators for Graphcore's own use that scripts use too: layouts, queues, prints, counters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tensorflow_ipu.markers import STEP, add_marker
from tensorflow_ipu.operators.placement import on_ipu

_log = logging.getLogger("tensorflow")


@on_ipu
def remap(x: Any, name: str | None = None) -> Any:
    """Lay a tensor out anew, evenly over the tiles.

    Args:
        x: Tensor.
        name: Name of the operation.

    Returns:
        The tensor.
    """
    _log.warning("remap is a Graphcore internal op")
    return tf.identity(x, name=name or "IpuRemap")


@on_ipu
def remap_deduce(x: Any, name: str | None = None) -> Any:
    """Lay a tensor out as its readers need it.

    Args:
        x: Tensor.
        name: Name of the operation.

    Returns:
        The tensor.
    """
    return tf.identity(x, name=name or "IpuRemapDeduce")


@on_ipu
def fifo(x: Any, depth: int, offload: bool = False, name: str | None = None) -> Any:
    """Return the tensor of `depth` calls ago, zeros before there is one.

    Args:
        x: Tensor.
        depth: Number of tensors that are held back; below 1 none is.
        offload: Accepted; the values do not depend on where they are held.
        name: Name of the operation.

    Returns:
        A tensor of the type and shape of `x`.
    """
    del offload
    if depth < 1:
        return x
    x = tf.convert_to_tensor(x)
    facts = {"name": "Fifo", "attributes": {"depth": int(depth)}}
    return add_marker(STEP, facts, [x], [(x.dtype, x.shape)], name or "IpuFifo")[0]


@on_ipu
def print_tensor(input: Any, name: str = "") -> Any:
    """Print a tensor each time that it is computed.

    Args:
        input: Tensor.
        name: Title; empty means the name of the tensor.

    Returns:
        The operation that prints.
    """
    tensor = tf.convert_to_tensor(input)
    facts = {"name": "PrintTensor", "attributes": {"title": name or tensor.name}}
    outputs = [(tensor.dtype, tensor.shape)]
    return add_marker(STEP, facts, [tensor], outputs, "IpuPrintTensor")[0].op


@on_ipu
def get_current_iteration_counter(name: str | None = None, **kwargs: Any) -> Any:
    """Return the number of the iteration of the innermost loop or pipeline.

    Args:
        name: Name of the operation.
        **kwargs: `lower_into_pipeline_stage`, accepted.

    Returns:
        A scalar in int32, which counts from 0.
    """
    del kwargs
    facts = {"name": "ExecutionCounter", "attributes": {}}
    counter = add_marker(STEP, facts, [], [(tf.int32, [])], name or "ExecutionCounter")[0]
    period = _period.get()
    return counter if period is None else tf.math.floormod(counter, tf.cast(period, tf.int32))


_period: ContextVar[Any] = ContextVar("period", default=None)
"""Number of iterations after which the counter of a pipeline begins anew."""


@contextmanager
def count_up_to(period: Any) -> Iterator[None]:
    """Let counters within begin anew after a number of iterations, an integer or a tensor."""
    # A pipeline captures no tensors of its surroundings: a count that is fed is not known here.
    token = _period.set(tf.get_static_value(period) if tf.is_tensor(period) else period)
    try:
        yield
    finally:
        _period.reset(token)
