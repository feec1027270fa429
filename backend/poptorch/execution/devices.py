"""Devices of the simulated machine, as PopTorch chooses, attaches and releases them.

popart's DeviceManager has the devices; here are PopTorch's rules: useIpuModel, useIpuId, offline
targets, connection types, and waiting for IPUs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import popart
from model_runtime import DeviceWaitConfig, DeviceWaitStrategy
from popart import DeviceConnectionType, DeviceInfo, DeviceManager, DeviceType

from popef._tools.logs import TRACE
from poptorch._logging import logger
from poptorch.enums import ConnectionType
from poptorch.errors import Error

if TYPE_CHECKING:
    from poptorch.options.model_options import Options

Taken = TypeVar("Taken")
WAIT_VARIABLE: Final = "POPTORCH_WAIT_FOR_IPU"
_MODEL_VARIABLES: Final = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
_WAIT_SECONDS: Final = 15.0
"""Interval between two attempts to attach while IPUs are awaited."""
_CONNECTIONS: Final = {
    ConnectionType.Always: DeviceConnectionType.Always,
    ConnectionType.OnDemand: DeviceConnectionType.OnDemand,
    ConnectionType.Never: DeviceConnectionType.Never,
}


def read_flag(name: str) -> bool:
    """Return whether an environment variable holds a number other than 0.

    Args:
        name: Name of the variable.

    Returns:
        Whether it is set.

    Raises:
        Error: If it holds no number.
    """
    text = os.environ.get(name, "0")
    try:
        return bool(int(text))
    except ValueError as error:
        raise Error(f"{name}: expected a whole number, found {text!r}") from error


def find_device(options: Options, num_ipus: int) -> DeviceInfo:
    """Return the device that a model is compiled for, attached if the options say so.

    Args:
        options: Options of the model.
        num_ipus: Number of IPUs of all replicas.

    Returns:
        The device.

    Raises:
        Error: If no device is free.
    """
    manager = DeviceManager()
    if options.connection_type is ConnectionType.Never:
        version = f"ipu{options.ipu_version}" if options.exists("ipu_version") else "ipu2"
        return manager.createOfflineIPUDevice({"numIPUs": num_ipus, "ipuVersion": version})
    _log_model(options)
    if uses_ipu_model(options):
        return manager.createIpuModelDevice({"numIPUs": num_ipus, **_model_options()})
    attached = options.connection_type is ConnectionType.Always
    device = _acquire(options, num_ipus)
    logger.log(TRACE, "Acquired %d IPU(s): running on device Id %d", num_ipus, device.id)
    if attached:
        logger.log(TRACE, "Attached to device %d", device.id)
    return device


def uses_ipu_model(options: Options) -> bool:
    """Return whether a model runs on an IPU model; options come before the environment."""
    if options.exists("use_model"):
        return bool(options.use_model)
    return any(map(read_flag, _MODEL_VARIABLES))


def _log_model(options: Options) -> None:
    """Log who chose between the IPU model and IPUs."""
    names = [name for name in _MODEL_VARIABLES if name in os.environ]
    if options.exists("use_model"):
        source = "the user configuration"
    elif names:
        source = f"the environment variable {names[0]}"
    else:
        return
    chosen = "Enabled" if uses_ipu_model(options) else "Disabled"
    logger.info("From %s: Ipu model: %s", source, chosen)


def _model_options() -> dict[str, str | int]:
    version = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "ipu2")
    if read_flag("POPTORCH_SMALL_IPU_MODEL") and not read_flag("POPTORCH_IPU_MODEL"):
        return {"ipuVersion": version}
    return {"ipuVersion": version, "tilesPerIPU": count_tiles(version)}


def count_tiles(version: str) -> int:
    """Return the number of tiles of a chip.

    Args:
        version: Name of the chip.

    Returns:
        The number.

    Raises:
        Error: For an unknown chip.
    """
    try:
        device = DeviceManager().createOfflineIPUDevice({"ipuVersion": version})
    except popart.popart_exception as error:
        raise Error(f"POPTORCH_IPU_MODEL_VERSION: {error}") from error
    return device.tilesPerIPU


def _acquire(options: Options, num_ipus: int) -> DeviceInfo:
    """Return a device of the machine; waits for one if POPTORCH_WAIT_FOR_IPU is set."""

    def attempt() -> DeviceInfo | None:
        device = _try_acquire(options, num_ipus)
        if device is None:
            # Executors that nobody holds any more may wait for the garbage collector.
            gc.collect()
            device = _try_acquire(options, num_ipus)
        return device

    device = _wait_for(attempt)
    if device is None:
        raise Error(
            f"Failed to acquire {num_ipus} IPU(s): other models hold them. Call their "
            f"detachFromDevice() or destroy(), or set {WAIT_VARIABLE}=1 to wait",
            type="poptorch_cpp_error",
        )
    return device


def _wait_for(attempt: Callable[[], Taken]) -> Taken:
    """Return what an attempt to take IPUs returns; repeat it if POPTORCH_WAIT_FOR_IPU is set."""
    if not read_flag(WAIT_VARIABLE):
        return attempt()

    def report() -> Taken:
        device = attempt()
        if not device:
            logger.log(TRACE, "No IPU available, sleeping")
        return device

    wait = DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, sleepTime=_WAIT_SECONDS)
    return wait.retry(report)


def _try_acquire(options: Options, num_ipus: int) -> DeviceInfo | None:
    manager = DeviceManager()
    connection = _CONNECTIONS[options.connection_type]
    if not options.exists("ipu_id"):
        return manager.tryAcquireAvailableDevice(num_ipus, connectionType=connection)
    device = manager.tryAcquireDeviceById(options.ipu_id, connectionType=connection)
    if device is not None and device.numIpus != num_ipus:
        count, number = device.numIpus, options.ipu_id
        device.detach()
        raise Error(
            f"useIpuId({number}): device {number} has {count} IPU(s), but the model needs "
            f"{num_ipus}",
            type="poptorch_cpp_error",
        )
    return device


def attach(device: DeviceInfo) -> None:
    """Attach to a device; waits for it if POPTORCH_WAIT_FOR_IPU is set.

    Args:
        device: The device.

    Raises:
        Error: If another model holds its IPUs.
    """
    if not _wait_for(lambda: device.isAttached or device.attach()):
        raise Error(
            f"Failed to attach to device {device.id}: another model holds its IPUs. Call that "
            "model's detachFromDevice()",
            type="poptorch_cpp_error",
        )
    if device.type is DeviceType.Ipu:
        logger.log(TRACE, "Attached to device %d", device.id)
