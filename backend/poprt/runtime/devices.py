"""Simulated devices, under the names of the real tool."""

from __future__ import annotations

import model_runtime
from model_runtime import Device, ModelRuntimeError
from simipu.target import DEFAULT_CHIP, MAX_IPUS


class DeviceManager:
    """Finds simulated devices: there are as many as a script requests."""

    def __init__(self) -> None:
        self._manager = model_runtime.DeviceManager()

    def get_num_devices(self) -> int:
        """Return the number of devices of the machine: 1, although more may be requested."""
        return 1

    def get_device(self, num_ipus: int = 1) -> Device:
        """Return a device of `num_ipus` IPUs. Raises RuntimeError if none can be attached."""
        if not 1 <= num_ipus <= MAX_IPUS:
            raise RuntimeError(
                f"No IPU can be attached: {num_ipus} of 1 to {MAX_IPUS} are asked for"
            )
        try:
            return self._manager.getDevice(num_ipus, {"ipuVersion": DEFAULT_CHIP})
        except ModelRuntimeError as error:
            raise RuntimeError(f"No IPU can be attached: {error}") from error

    def get_specific_device(self, device_id: int) -> Device:
        """Return the device of that number, from 0. Raises RuntimeError if there is none."""
        if not 0 <= device_id < self.get_num_devices():
            raise RuntimeError(
                f"No IPU can be attached: there is no device {device_id}, only 0 to "
                f"{self.get_num_devices() - 1}"
            )
        return self.get_device()

    def ipu_hardware_version(self) -> str:
        """Return the version of the chip, as CompilerOptions.ipu_version takes it."""
        return DEFAULT_CHIP
