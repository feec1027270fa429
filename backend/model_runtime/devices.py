"""Finds a device for a model. Simulated devices are never busy, so nothing here waits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from simipu import TARGETS, Device

import popef
from model_runtime.errors import ModelRuntimeError

_TARGET_NAMES = {1: "ipu1", 2: "ipu2", 21: "ipu21"}
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class DeviceWaitConfig:
    """How long to wait for a free device, in seconds. Kept for compatibility: a simulated device is always free."""

    timeout: int = 0
    sleepTime: int = 0


class DeviceManager:
    """Makes simulated devices for the target that a model was compiled for."""

    def getDevice(self, model: popef.Model, wait_config: DeviceWaitConfig | None = None) -> Device:
        """A device of the IPU version and number in the model's metadata; ModelRuntimeError if there is no such chip."""
        del wait_config
        metadata = model.metadata
        name = _TARGET_NAMES.get(metadata.ipuVersion())
        if name is None:
            known = ", ".join(str(version) for version in sorted(_TARGET_NAMES))
            raise ModelRuntimeError(
                f"the model was compiled for IPU version {metadata.ipuVersion()}; simulated versions are {known}"
            )
        return Device(TARGETS[name].with_ipus(metadata.numIpus()), id=next(_ids))
