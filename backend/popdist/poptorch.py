"""Options of PopTorch for the replicas of this process."""

from __future__ import annotations

from typing import Any, NoReturn

import poptorch
from poptorch import Error

import popdist


def _refuse(name: str) -> NoReturn:
    raise Error(
        f"popdist.poptorch.Options sets {name} by itself: pass it to poprun, or use "
        "poptorch.Options"
    )


class _Distributed:
    """`Options.Distributed`, which the environment variables determine."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def disable(self) -> NoReturn:
        _refuse("Distributed.disable")

    def configureProcessId(self, process_id: int, num_processes: int) -> NoReturn:  # noqa: ARG002
        _refuse("Distributed.configureProcessId")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> NoReturn:  # noqa: ARG002
        _refuse("Distributed.setEnvVarNames")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)


class Options(poptorch.Options):
    """Options of a model whose replicas and processes poprun has set.

    In a distributed run `useIpuId` is set, too.

    Args:
        ipus_per_replica: Number of IPUs of a replica; None means popdist.getNumIpusPerReplica().
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        self.set(replication_factor=popdist.getNumLocalReplicas())
        super().Distributed.configureProcessId(
            popdist.getInstanceIndex(), popdist.getNumInstances()
        )
        if popdist.isPopdistEnvSet():
            self.set(ipu_id=popdist.getDeviceId(ipus_per_replica or 0))

    @property
    def Distributed(self) -> Any:
        """Number of this process and of all; the setters are errors."""
        return _Distributed(super().Distributed)

    def replicationFactor(self, replication_factor: int) -> NoReturn:  # noqa: ARG002
        """Raise an error: poprun determines the number of replicas."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> NoReturn:  # noqa: ARG002
        """Raise an error: PopDist selects the device."""
        _refuse("useIpuId")
