"""How runners are made: the real tool's fields and defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, ClassVar

import model_runtime
from model_runtime import Device, ModelRunnerConfig
from model_runtime.runner import NEVER_NS, NO_BATCHING_DIM


@dataclass
class DeviceWaitConfig:
    """How long to wait for a device, and how long between two looks, in seconds."""

    timeoutSec: int = 1
    sleepTimeSec: int = 6


class ReplicaIdToDevice(dict[int, Device]):
    """Devices by the replica that is to run on them."""


_HIDDEN = ("device_wait_config", "replica_to_device", "flush_by_name")
"""Fields that are not shown."""


@dataclass(repr=False)
class RuntimeConfig:
    """How a Runner is made. What each field means: `model_runtime.ModelRunnerConfig`, which has the same.

    Scripts set further attributes, some of them misspelt, as the real class lets them: these change nothing.
    """

    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    thread_safe: bool = True
    timeout_ns: int = 10_000_000
    validate_io_params: bool = True
    batching_dim: int = NO_BATCHING_DIM
    check_package_hash: bool = True
    ring_buffer_size_multiplier: int = 2
    auto_reset: bool = False
    flush_on_waiting_outputs: bool = False
    batch_size_timeout_ns: int = NEVER_NS
    data_parallel_timeout_ns: int = NEVER_NS
    is_batch_size_timeout_enabled: bool = False
    request_tracepoints_buffer_size: int = 1000
    replica_to_device: Mapping[int, Device] = field(default_factory=ReplicaIdToDevice)
    flush_by_name: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default_factory=lambda: ({}, {}))
    runner_type: ClassVar[int] = 0
    """RunnerType.ModelRunner of the C++ class."""

    def __repr__(self) -> str:
        """JSON as the real class prints it: the names of the C++ class, sorted; devices and data for flushing
        are left out."""
        shown = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _HIDDEN}
        named = {_to_camel(name): value for name, value in shown.items()}
        wait = self.device_wait_config
        named["deviceWaitConfig.timeoutSec"] = wait.timeoutSec
        named["deviceWaitConfig.sleepTimeSec"] = wait.sleepTimeSec
        return json.dumps({**named, "runnerType": self.runner_type}, sort_keys=True)

    def for_model_runner(self) -> ModelRunnerConfig:
        """The same for model_runtime."""
        same = {entry.name for entry in fields(ModelRunnerConfig)} & {entry.name for entry in fields(self)}
        values = {name: getattr(self, name) for name in same}
        wait = self.device_wait_config
        values["device_wait_config"] = model_runtime.DeviceWaitConfig(
            timeout=timedelta(seconds=wait.timeoutSec), sleepTime=timedelta(seconds=wait.sleepTimeSec)
        )
        values["replica_to_device"] = dict(self.replica_to_device)
        return ModelRunnerConfig(**values)


class LightRunnerConfig(RuntimeConfig):
    """How a LightRunner is made."""


def _to_camel(name: str) -> str:
    """timeout_ns -> timeoutNS, as the C++ class spells it."""
    first, *rest = name.split("_")
    return first + "".join(part.upper() if part in ("ns", "io") else part.capitalize() for part in rest)
