"""The seeds of the devices' random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import tensorflow as tf

from tensorflow_ipu.config.system import SYSTEM

HOOKS: Final[list[Callable[[int], None]]] = []
"""Functions that are called with a device's ordinal when its seed is reset."""
_GENERATORS: Final[dict[int, np.random.Generator]] = {}
_IDENTICAL: Final[set[int]] = set()
_MAX_SEED: Final = 1 << 24
"""Seeds are attributes in float32 here, which holds whole numbers up to this one."""


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",  # noqa: ARG001 # the host is this machine
    experimental_identical_replicas: bool = False,
) -> None:
    """Reset the seed of a device's random numbers.

    Args:
        seed: The new seed.
        device: Name of the device.
        cpu_device: Accepted without effect: the host is this machine.
        experimental_identical_replicas: Whether all replicas draw the same numbers.

    Raises:
        tensorflow.errors.InvalidArgumentError: If the name is none of a device.
        tensorflow.errors.InternalError: If there is no such device.
    """
    ordinal = find_ordinal(device)
    num_devices = len(SYSTEM.options.device_config) if SYSTEM.options is not None else 0
    if ordinal >= max(2, num_devices):
        raise tf.errors.InternalError(None, None, f"Invalid ordinal on seed reset: {ordinal}")
    _GENERATORS[ordinal] = np.random.default_rng(int(seed) % (1 << 64))
    (_IDENTICAL.add if experimental_identical_replicas else _IDENTICAL.discard)(ordinal)
    for hook in HOOKS:
        hook(ordinal)


def draw_seeds(ordinal: int, num_replicas: int = 1) -> list[int]:
    """Return the seeds of the next run of a device's program.

    Args:
        ordinal: k of /device:IPU:k.
        num_replicas: Number of replicas.

    Returns:
        A seed for each replica, from 1 to 2**24 - 1. They repeat after `reset_ipu_seed`.
    """
    if ordinal not in _GENERATORS:
        _GENERATORS[ordinal] = np.random.default_rng()
    draws = _GENERATORS[ordinal].integers(1, _MAX_SEED, size=num_replicas)
    first = [int(draws[0])] * num_replicas
    return first if ordinal in _IDENTICAL else [int(draw) for draw in draws]


def find_ordinal(device: str) -> int:
    """Return k of a device's name, as "/device:IPU:1" or "/replica:0/task:0/device:IPU:1".

    Args:
        device: The name.

    Returns:
        The number.

    Raises:
        tensorflow.errors.InvalidArgumentError: If the name has no number.
    """
    try:
        index = tf.DeviceSpec.from_string(device).device_index
    except ValueError:
        index = None
    if index is None:
        raise tf.errors.InvalidArgumentError(None, None, f"Invalid device name {device}")
    return int(index)
