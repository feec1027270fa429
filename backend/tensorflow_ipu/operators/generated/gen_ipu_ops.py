"""Operators about the system: configuration, seeds, caches and events. They run on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import events
from tensorflow_ipu.config import flags, system
from tensorflow_ipu.config.devices import count_ipus
from tensorflow_ipu.config.seeds import find_ordinal, reset_ipu_seed
from tensorflow_ipu.config.utils import use_synthetic_data_for
from tensorflow_ipu.messages.config_pb2 import IpuOptions

__all__ = [
    "ipu_clear_all_xla_compilation_caches",
    "ipu_configure_hardware",
    "ipu_event_trace",
    "ipu_get_configuration",
    "ipu_get_num_devices",
    "ipu_model_used",
    "ipu_reset_devices",
    "ipu_reset_seed",
    "ipu_use_synthetic_data_for",
]


def ipu_event_trace(name: str | None = None) -> Any:
    """Return the events since the last call, as serialized messages: strings of shape [n]."""
    return _add(lambda: _as_strings(events.take_events()), tf.string, [None], name)


def ipu_get_configuration(name: str | None = None) -> Any:
    """Return the configuration of each device, as serialized messages: strings of shape [n]."""

    def list_messages() -> np.ndarray[Any, Any]:
        return _as_strings(
            [options.SerializeToString() for options in system.list_configurations()]
        )

    return _add(list_messages, tf.string, [None], name)


def ipu_configure_hardware(config: bytes, name: str | None = None) -> Any:
    """Configure the IPUs with a serialized message; another configuration must be reset first."""
    options = IpuOptions.FromString(config)
    return _do(lambda: system.configure_ipu_system(options, reset_configuration=False), name)


def ipu_reset_devices(name: str | None = None) -> Any:
    """Forget the configuration, and release all devices."""
    return _do(system.reset_ipu_configuration, name)


def ipu_clear_all_xla_compilation_caches(name: str | None = None) -> Any:
    """Forget what was compiled."""
    return _do(system.forget_programs, name)


def ipu_reset_seed(
    device: str, seed: int, identical_replicas: bool = False, name: str | None = None
) -> Any:
    """Reset the seed of a device's random numbers."""
    return _do(
        lambda: reset_ipu_seed(seed, device, experimental_identical_replicas=identical_replicas),
        name,
    )


def ipu_get_num_devices(device: str, name: str | None = None) -> Any:
    """Return the number of IPUs of a device: an int64 scalar."""
    return _add(lambda: np.int64(count_ipus(find_ordinal(device))), tf.int64, [], name)


def ipu_model_used(name: str | None = None) -> Any:
    """Return whether devices are IPU Models: a truth value of shape [1]."""
    return _add(lambda: np.array([flags.read_flags().use_ipu_model]), tf.bool, [1], name)


def ipu_use_synthetic_data_for(synthetic_data_category: int, name: str | None = None) -> Any:
    """Return whether a kind of data is synthetic: a truth value of shape [1]."""
    return _add(
        lambda: np.array([use_synthetic_data_for(synthetic_data_category)]), tf.bool, [1], name
    )


def _as_strings(messages: list[bytes]) -> np.ndarray[Any, Any]:
    return np.array(messages, dtype=object)


def _add(
    function: Callable[[], Any], dtype: tf.DType, shape: list[int | None], name: str | None
) -> Any:
    """Return the result of a function of the host: now, or whenever the graph is run."""
    if tf.executing_eagerly():
        return tf.constant(function(), dtype)
    with tf.device("/device:CPU:0"):
        result = tf.numpy_function(function, [], dtype, name=name)
    result.set_shape(shape)
    return result


def _do(function: Callable[[], None], name: str | None) -> Any:
    """Call a function of the host: now, or whenever the graph is run."""
    if tf.executing_eagerly():
        return function()

    def call() -> Any:
        function()
        return np.int32(0)

    with tf.device("/device:CPU:0"):
        return tf.numpy_function(call, [], tf.int32, name=name).op
