"""PopDist's Python API: the part of a program's replicas that this process runs.

Without poprun's environment variables it describes one process. With them each process reads its
own part, as in a distributed run; the processes do not communicate, which inference does not need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from popart import DeviceManager
from popart import __version__ as __version__

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_TOTAL: Final = "POPDIST_NUM_TOTAL_REPLICAS"
"""Variable that every process of a distributed run has."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """A number that poprun passes to each process."""

    name: str
    default: int
    minimum: int

    def read(self) -> int:
        """Return the number, or the default where it is not set."""
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            number = int(text)
        except ValueError:
            number = self.minimum - 1
        if number < self.minimum:
            raise ValueError(
                f"environment variable {self.name}: expected a whole number of at least "
                f"{self.minimum}, found {text!r}"
            )
        return number


_TOTAL_REPLICAS: Final = _Variable(_TOTAL, 1, 1)
_LOCAL_REPLICAS: Final = _Variable("POPDIST_NUM_LOCAL_REPLICAS", 1, 1)
_IPUS_PER_REPLICA: Final = _Variable("POPDIST_NUM_IPUS_PER_REPLICA", 1, 1)
_REPLICA_OFFSET: Final = _Variable("POPDIST_REPLICA_INDEX_OFFSET", 0, 0)
_LOCAL_INSTANCE: Final = _Variable("POPDIST_LOCAL_INSTANCE_INDEX", 0, 0)
_IS_UNIFORM: Final = _Variable("POPDIST_UNIFORM_REPLICAS_PER_INSTANCE", 1, 0)


def init() -> None:
    """Check the environment variables; nothing has to be started."""
    getInstanceIndex()
    getNumIpusPerReplica()
    getLocalInstanceIndex()


def isPopdistEnvSet() -> bool:
    """Return whether poprun's environment variables are set."""
    return _TOTAL in os.environ


def getNumTotalReplicas() -> int:
    """Return the number of replicas of all processes."""
    return _TOTAL_REPLICAS.read()


def getNumLocalReplicas() -> int:
    """Return the number of replicas of this process."""
    return _LOCAL_REPLICAS.read()


def getReplicaIndexOffset() -> int:
    """Return the index of this process's first replica among all replicas."""
    return _REPLICA_OFFSET.read()


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs of one replica."""
    return _IPUS_PER_REPLICA.read()


def getLocalInstanceIndex() -> int:
    """Return the index of this process among those of its host."""
    return _LOCAL_INSTANCE.read()


def getNumInstances() -> int:
    """Return the number of processes.

    Returns:
        The number.

    Raises:
        ValueError: If the processes have different numbers of replicas.
    """
    total, local = getNumTotalReplicas(), getNumLocalReplicas()
    if total % local or not _IS_UNIFORM.read():
        raise ValueError(
            f"the number of processes is known only if all of them have as many replicas as this "
            f"one: {_TOTAL} is {total}, {_LOCAL_REPLICAS.name} is {local}, {_IS_UNIFORM.name} is "
            f"{_IS_UNIFORM.read()}"
        )
    return total // local


def getInstanceIndex() -> int:
    """Return the index of this process.

    Returns:
        The index, from 0 to the number of processes minus 1.

    Raises:
        ValueError: If the environment variables do not agree with each other.
    """
    count, offset, local = getNumInstances(), getReplicaIndexOffset(), getNumLocalReplicas()
    if offset % local or offset // local >= count:
        raise ValueError(
            f"environment variable {_REPLICA_OFFSET.name}: expected a multiple of {local} below "
            f"{getNumTotalReplicas()}, found {offset}"
        )
    return offset // local


def checkNumIpusPerReplica(num_ipus: int, /) -> bool:
    """Return whether a replica has this number of IPUs."""
    return num_ipus == getNumIpusPerReplica()


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """Return the id of a device of the simulated machine for the replicas of this process.

    Args:
        ipusPerReplica: Number of IPUs of a replica; 0 means getNumIpusPerReplica().

    Returns:
        The id, as popart.DeviceManager and poptorch's useIpuId take it.

    Raises:
        ValueError: If the machine has no such device.
    """
    num_ipus = (ipusPerReplica or getNumIpusPerReplica()) * getNumLocalReplicas()
    index = getLocalInstanceIndex()
    devices = DeviceManager().enumerateDevices(numIpus=num_ipus)
    if index >= len(devices):
        raise ValueError(
            f"process {index} of this host needs a device of {num_ipus} IPUs: the simulated "
            f"machine has {len(devices)} of them"
        )
    return devices[index].id


def execute_on_instances(
    instances: Collection[int], func: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
) -> _R | None:
    """Call a function in some of the processes.

    Args:
        instances: Indices of these processes.
        func: The function.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        Its result; None in the other processes.
    """
    return func(*args, **kwargs) if getInstanceIndex() in instances else None
