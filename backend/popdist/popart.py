"""Devices and session options of PopART for the replicas of this process."""

from __future__ import annotations

from popart import DeviceInfo, DeviceManager, SessionOptions, popart_exception

import popdist


def getDevice(ipusPerReplica: int = 1) -> DeviceInfo:
    """Return an attached device for the replicas of this process.

    Args:
        ipusPerReplica: Number of IPUs of a replica.

    Returns:
        The device.

    Raises:
        popart_exception: If another device of this process holds its IPUs.
    """
    number = popdist.getDeviceId(ipusPerReplica)
    device = DeviceManager().tryAcquireDeviceById(number)
    if device is None:
        raise popart_exception(f"device {number} is in use: detach the device that holds its IPUs")
    return device


def configureSessionOptions(options: SessionOptions) -> None:
    """Set the number of replicas of this process.

    Args:
        options: The session's options, which are changed.
    """
    count = popdist.getNumLocalReplicas()
    options.enableReplicatedGraphs = count > 1
    options.replicatedGraphCount = count
