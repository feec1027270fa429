"""Configurations of runners with the real tool's fields and defaults, descriptions of their
tensors, and devices.

The configuration of packing is in `pack_algorithms`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import model_runtime
import numpy as np
from model_runtime import Device, ModelRunnerConfig, ModelRuntimeError
from simipu.chip.target import DEFAULT_CHIP, MAX_IPUS

import popef
from popef._tools.arrays import Array
from popef._tools.text import did_you_mean, escape


class RunnerType(IntEnum):
    """Type of the runner that a configuration is for, by the numbers of the C++ class."""

    ModelRunner = 0
    PackRunner = 1
    ModelFusionRunner = 2


@dataclass
class DeviceWaitConfig:
    """Timeout of waiting for a device, and time between two checks, in seconds."""

    timeoutSec: int = 1
    sleepTimeSec: int = 6

    def for_model_runner(self) -> model_runtime.DeviceWaitConfig:
        """Return the same configuration for model_runtime."""
        timeout, sleep = timedelta(seconds=self.timeoutSec), timedelta(seconds=self.sleepTimeSec)
        return model_runtime.DeviceWaitConfig(timeout=timeout, sleepTime=sleep)


class ReplicaIdToDevice(dict[int, Device]):
    """Devices by the replica that runs on them."""


HIDDEN = ("device_wait_config", "replica_to_device", "flush_by_name", "index_check")
"""Fields that are not shown; our own fields are hidden too."""


@dataclass(repr=False)
class RuntimeConfig(ModelRunnerConfig):
    """Configuration of a Runner: `model_runtime.ModelRunnerConfig`, with the real tool's wait for a
    device.

    Published scripts set attributes that do not exist, some of them misspelt. The real class takes
    them silently; here each is logged as a warning, because it changes nothing.

    Args:
        device_wait_config: how long to wait for a device, in seconds.
        replica_to_device: device of replica 0; others are ignored.
        index_check: effect of an index outside of its table: "clamp" reads the nearest element,
            "error" fails the run (ours).

    The other arguments are those of `model_runtime.ModelRunnerConfig`.
    """

    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)  # type: ignore[assignment]
    replica_to_device: Mapping[int, Device] = field(default_factory=ReplicaIdToDevice)
    index_check: str = "clamp"
    """Ours: published scripts feed indices out of range, for which no chip raises an error."""
    runner_type: ClassVar[RunnerType] = RunnerType.ModelRunner

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if not hasattr(type(self), name) and name not in self.__dataclass_fields__:
                logging.getLogger("poprt").warning(
                    "%s has no attribute '%s', which changes nothing%s",
                    type(self).__name__,
                    escape(name),
                    did_you_mean(name, self.__dataclass_fields__),
                )
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return JSON as the real class prints it, with the sorted names of the C++ class.

        Devices and data for flushing are left out.
        """
        real = [entry.name for entry in fields(self) if entry.name not in (*HIDDEN, *self.OURS)]
        return describe(self, real, self.device_wait_config)

    def for_model_runner(self) -> ModelRunnerConfig:
        """Return the same configuration for model_runtime."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(ModelRunnerConfig)}
        values["device_wait_config"] = self.device_wait_config.for_model_runner()
        values["replica_to_device"] = dict(self.replica_to_device)
        return ModelRunnerConfig(**values)


class LightRunnerConfig(RuntimeConfig):
    """Configuration of a LightRunner."""


def describe(config: Any, names: list[str], wait: DeviceWaitConfig) -> str:
    """Return these fields of a configuration, its device wait and runner type, as JSON."""
    settings = {_to_camel(name): getattr(config, name) for name in names}
    settings["deviceWaitConfig.timeoutSec"] = wait.timeoutSec
    settings["deviceWaitConfig.sleepTimeSec"] = wait.sleepTimeSec
    return json.dumps({**settings, "runnerType": config.runner_type}, sort_keys=True, default=str)


def _to_camel(name: str) -> str:
    """Convert timeout_ns to timeoutNS, as the C++ class spells it."""
    first, *rest = name.split("_")
    return first + "".join(
        part.upper() if part in ("ns", "io") else part.capitalize() for part in rest
    )


@dataclass(slots=True)
class DataDesc:
    """A tensor of one compiled batch. `shape` is the caller's own list: scripts assign into it."""

    name: str
    size_in_bytes: int
    shape: list[int]
    data_type: popef.DataType
    popef_contains_tensor_data: bool = False
    """Whether the PopEF file has the tensor's values, as for streamed weights."""

    def numpy_data_type(self) -> np.dtype[Any]:
        """Return the element type as a NumPy dtype."""
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))

    @classmethod
    def of(cls, description: model_runtime.DataDesc) -> DataDesc:
        """Return the description for a description of model_runtime."""
        shape = list(description.shape)
        return cls(description.name, description.size_in_bytes, shape, description.data_type)

    @classmethod
    def of_weight(cls, name: str, value: Array) -> DataDesc:
        """Return the description of a streamed weight."""
        data_type = popef.numpyDTypeToPopefType(value.dtype)
        return cls(name, value.nbytes, list(value.shape), data_type, True)


class DeviceManager:
    """Finds simulated devices: there are as many as a script requests."""

    def __init__(self) -> None:
        self._manager = model_runtime.DeviceManager()

    def get_num_devices(self) -> int:
        """Return the number of devices of the machine: 1, although more may be requested."""
        return 1

    def get_device(self, num_ipus: int = 1) -> Device:
        """Return a device.

        Args:
            num_ipus: its number of IPUs.

        Returns:
            A simulated device of the default chip.

        Raises:
            RuntimeError: if there is none of that size.
        """
        if not 1 <= num_ipus <= MAX_IPUS:
            raise RuntimeError(
                f"No IPU can be attached: expected 1 to {MAX_IPUS} IPUs, found {num_ipus}"
            )
        try:
            return self._manager.getDevice(num_ipus, {"ipuVersion": DEFAULT_CHIP})
        except ModelRuntimeError as error:
            raise RuntimeError(f"No IPU can be attached: {error}") from error

    def get_specific_device(self, device_id: int) -> Device:
        """Return the device with a number.

        Args:
            device_id: number of the device, from 0.

        Returns:
            The simulated device.

        Raises:
            RuntimeError: if there is none of that number.
        """
        if not 0 <= device_id < self.get_num_devices():
            raise RuntimeError(
                f"No IPU can be attached: there is no device {device_id}, only 0 to "
                f"{self.get_num_devices() - 1}"
            )
        return self.get_device()

    def ipu_hardware_version(self) -> str:
        """Return the version of the chip, as CompilerOptions.ipu_version takes it."""
        return DEFAULT_CHIP
