"""The configuration of the IPU system: what is configured, and the devices that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.platform import tf_logging

from tensorflow_ipu.config import flags
from tensorflow_ipu.config.ipu_config import IPUConfig
from tensorflow_ipu.messages import config_pb2

RESET_HOOKS: Final[list[Callable[[], None]]] = []
"""Functions that are called when the configuration changes: they forget compiled programs."""


class _System:
    """What the process has configured."""

    def __init__(self) -> None:
        self.options: config_pb2.IpuOptions | None = None
        """None if nothing is configured."""


SYSTEM: Final = _System()


def configure_ipu_system(
    config: IPUConfig | config_pb2.IpuOptions,
    device: str = "cpu",  # noqa: ARG001 # the host is this machine
    reset_configuration: bool = True,
) -> None:
    """Configure the IPUs.

    Args:
        config: The configuration, or its message.
        device: Accepted without effect: the host is this machine.
        reset_configuration: Whether another, earlier configuration is reset first.

    Raises:
        TypeError: If `config` is something else.
        tensorflow.errors.FailedPreconditionError: If there is another configuration that is not
            reset, or if the machine has no such device.
    """
    if isinstance(config, IPUConfig):
        config = config._create_protobuf()  # noqa: SLF001 # users wrap it
    if not isinstance(config, config_pb2.IpuOptions):
        raise TypeError("`config` must be an IpuOptions instance.")
    if config.creator_id != config_pb2.IPU_UTILS:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "Badly initialized IpuOptions object: did you configure the system using an instance "
            "of tensorflow.python.ipu.config.IPUConfig() ?",
        )
    options = config_pb2.IpuOptions()
    options.CopyFrom(config)
    if flags.read_flags().use_on_demand:
        options.device_connection_type = config_pb2.ON_DEMAND
    if is_configured() and SYSTEM.options != options:
        if not reset_configuration:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                "IPU system configuration has already been set in this process, but it should "
                "have been reset automatically by the call to "
                "'tensorflow.python.ipu.config.configure_ipu_system'.",
            )
        tf_logging.warn("Resetting existing IPU configuration before applying new configuration")
        reset_ipu_configuration()
    if SYSTEM.options != options:
        _apply(options)


def _apply(options: config_pb2.IpuOptions) -> None:
    from tensorflow_ipu.config.devices import connect, release

    forget_programs()
    release()
    SYSTEM.options = options
    try:
        connect()
    except BaseException:
        SYSTEM.options = None
        raise


def is_configured() -> bool:
    """Return whether a configuration with devices is there."""
    return SYSTEM.options is not None and bool(SYSTEM.options.device_config)


def reset_ipu_configuration() -> None:
    """Forget the configuration, and release all devices and what was compiled for them."""
    from tensorflow_ipu.config.devices import release

    if SYSTEM.options is None:
        return
    SYSTEM.options = None
    forget_programs()
    release()


def forget_programs() -> None:
    """Forget what was compiled; it is compiled again when it is needed."""
    for hook in RESET_HOOKS:
        hook()


def get_ipu_config(session: Any = None) -> list[config_pb2.IpuOptions]:
    """Return the configuration.

    Args:
        session: Accepted without effect: a process has one configuration.

    Returns:
        The message, once for each device.

    Raises:
        RuntimeError: If no devices are configured.
    """
    if session is not None and tf.executing_eagerly():
        raise AssertionError("No session is required for eager execution.")
    if not is_configured():
        raise RuntimeError("No IPU devices configured.")
    return list_configurations()


def list_configurations() -> list[config_pb2.IpuOptions]:
    """Return the message once for each device; nothing if nothing is configured."""
    if SYSTEM.options is None:
        return []
    copies = []
    for _ in SYSTEM.options.device_config or [None]:
        copy = config_pb2.IpuOptions()
        copy.CopyFrom(SYSTEM.options)
        copies.append(copy)
    return copies
