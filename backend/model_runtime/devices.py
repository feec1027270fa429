"""Finds or makes a device for a model. Every device is simulated, so one is free whenever the machine has
enough IPUs."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from threading import Lock
from typing import TYPE_CHECKING

import simipu
from simipu import LoadError, Target
from simipu.forks import FORKS
from simipu.target import DEFAULT_CHIP, find_target, known_chips

import popef
from model_runtime.errors import ModelRuntimeError

if TYPE_CHECKING:
    from model_runtime.session import Session

_TARGET_NAMES = {1: "ipu1", 2: "ipu2", 21: "ipu21"}
_SMALL_MODEL_TILES = 4
"""Tiles of createSmallIpuModelDevice. The real number is not public; few enough to be quick is what the name
promises."""
_ids = itertools.count()


class DeviceWaitStrategy(IntEnum):
    """What to do while no device is free."""

    NO_WAIT = 0
    WAIT_FOREVER = 1
    WAIT_WITH_TIMEOUT = 2


@dataclass(frozen=True, slots=True)
class DeviceWaitConfig:
    """How long to wait for a free device, and how long between two looks; seconds or timedelta. Default: not
    at all.

    The newer form without a strategy, DeviceWaitConfig(timeout=…, sleepTime=…), waits up to its timeout.
    """

    strategy: DeviceWaitStrategy | None = None
    timeout: float | timedelta = 0
    sleepTime: float | timedelta = 1

    def seconds(self) -> float:
        """The longest wait."""
        if self.strategy is DeviceWaitStrategy.WAIT_FOREVER:
            return float("inf")
        return 0.0 if self.strategy is DeviceWaitStrategy.NO_WAIT else _seconds(self.timeout)

    def sleep_seconds(self) -> float:
        """The pause between two looks, at least a millisecond."""
        return max(0.001, _seconds(self.sleepTime))


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


class Device:
    """IPUs that are attached for as long as this object lives. Made by DeviceManager; one session at a time
    is bound to it."""

    def __init__(self, device: simipu.Device) -> None:
        self._device = device
        self._session: weakref.ref[Session] | None = None

    def __reduce__(self) -> tuple[type[Device], tuple[simipu.Device]]:
        """Pickle as a device of the same kind that no session is bound to."""
        return Device, (self._device,)

    def device(self) -> simipu.Device:
        """The simulated device underneath."""
        return self._device

    def id(self) -> int:
        """A number that no other device of this process has."""
        return self._device.id

    def numIpus(self) -> int:
        """How many IPUs it has."""
        return self._device.target.num_ipus

    def ipuVersion(self) -> int:
        """The version number that PopEF metadata carries: 1, 2 or 21."""
        return self._device.target.ipu_version

    def bind(self, session: Session) -> None:
        """Make `session` the one on this device; an earlier one is unloaded first."""
        bound = self._session() if self._session is not None else None
        if bound is not None and bound is not session:
            bound.unloadFromDevice()
        self._session = weakref.ref(session)

    def unloadFromDevice(self) -> None:
        """Unload the session that is bound, if there is one."""
        bound = self._session() if self._session is not None else None
        if bound is not None:
            bound.unloadFromDevice()
        self._session = None


class DeviceManager:
    """Makes simulated devices. `num_ipus` is the number of IPUs that the simulated machine has; None: as many
    as asked for."""

    def __init__(self, num_ipus: int | None = None) -> None:
        self._num_ipus = num_ipus
        # IPUs by device. A finalizer, which must not take the lock, gives one up by one operation on the
        # dict.
        self._attached: dict[int, int] = {}
        self._lock = Lock()
        FORKS.watch(self)

    def __reduce__(self) -> tuple[type[DeviceManager], tuple[int | None]]:
        """Pickle as a machine with as many IPUs, of which none is attached."""
        return DeviceManager, (self._num_ipus,)

    def forget_parent(self) -> None:
        """In a fork: another thread of the parent may have had the lock."""
        self._lock = Lock()

    def getNumDevices(self) -> int | None:
        """The IPUs of the machine; None for no limit."""
        return self._num_ipus

    def getDevice(
        self,
        model: popef.Model | int,
        options: Mapping[str, str] | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
    ) -> Device:
        """getDevice(model, wait_config) attaches what a model's metadata asks for: its IPU version and number
        of IPUs.

        getDevice(num_ipus, options, wait_config) attaches so many IPUs of options["ipuVersion"] (ipu1, ipu2,
        ipu21, bow, or as people call them; default ipu21). Raises ModelRuntimeError when there is no such
        chip, or none free in the time that `wait_config` gives.
        """
        if isinstance(options, DeviceWaitConfig):
            options, wait_config = None, options
        if isinstance(model, int):
            target = _find_target((options or {}).get("ipuVersion", DEFAULT_CHIP)).with_ipus(model)
        else:
            target = model_target(model.metadata)
        return self.attach(target, wait_config or DeviceWaitConfig())

    def getSpecificDevice(self, device_id: int, wait_config: DeviceWaitConfig | None = None) -> Device:
        """One ipu21 with that id, which must be below getNumDevices() where there is a limit."""
        if self._num_ipus is not None and not 0 <= device_id < self._num_ipus:
            raise ModelRuntimeError(
                f"No IPU can be attached: there is no device {device_id}; there are 0 to {self._num_ipus - 1}"
            )
        device = self.attach(find_target(DEFAULT_CHIP), wait_config or DeviceWaitConfig())
        device.device().id = device_id
        return device

    def createIpuModelDevice(
        self, model: popef.Model | int, ipu_version: str | int | None = None, tiles_per_ipu: int | None = None
    ) -> Device:
        """createIpuModelDevice(num_ipus, ipu_version, tiles_per_ipu) or createIpuModelDevice(model,
        tiles_per_ipu).

        A simulated device of its own, beside those of the machine. Without `tiles_per_ipu` it has all tiles
        of the chip.
        """
        if not isinstance(model, int):
            if isinstance(ipu_version, int) and tiles_per_ipu is None:
                tiles_per_ipu = ipu_version
            target = model_target(model.metadata)
        else:
            target = _find_target(DEFAULT_CHIP if ipu_version is None else ipu_version).with_ipus(model)
        return Device(simipu.Device(_with_tiles(target, tiles_per_ipu), id=next(_ids)))

    def createSmallIpuModelDevice(
        self, model: popef.Model | int, ipu_version: str | int = DEFAULT_CHIP
    ) -> Device:
        """The same with 4 tiles per IPU, for what was compiled for so few."""
        if not isinstance(model, int):
            return self.createIpuModelDevice(model, None, _SMALL_MODEL_TILES)
        return self.createIpuModelDevice(model, ipu_version, _SMALL_MODEL_TILES)

    def attach(self, target: Target, wait: DeviceWaitConfig) -> Device:
        """A device of exactly that target (ours: metadata cannot tell a Bow from the ipu2 that it is)."""
        deadline = time.monotonic() + wait.seconds()
        attachment = next(_ids)
        while not self._take(attachment, target.num_ipus):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ModelRuntimeError(
                    f"No IPU can be attached: {target.num_ipus} of {target.name} wanted, the simulated "
                    f"machine has {self._num_ipus}, of which {self._num_attached()} are attached"
                )
            time.sleep(min(remaining, wait.sleep_seconds()))
        device = Device(simipu.Device(target, id=attachment))
        weakref.finalize(device, self._attached.pop, attachment)
        return device

    def _take(self, attachment: int, num_ipus: int) -> bool:
        with self._lock:
            if self._num_ipus is not None and self._num_attached() + num_ipus > self._num_ipus:
                return False
            self._attached[attachment] = num_ipus
            return True

    def _num_attached(self) -> int:
        return sum(self._attached.copy().values())


def model_target(metadata: popef.Metadata) -> Target:
    """The chips that a model's metadata asks for; numIpus counts those of all replicas, as PopART writes
    it."""
    return _find_target(metadata.ipuVersion()).with_ipus(metadata.numIpus())


def _find_target(version: str | int) -> Target:
    name = version if isinstance(version, str) else _TARGET_NAMES.get(version, "")
    try:
        return find_target(name)
    except LoadError:
        known = ", ".join(f"{number} ({name})" for number, name in _TARGET_NAMES.items())
        raise ModelRuntimeError(
            f"IPU version {version!r} is not known; simulated versions are {known}, and by name "
            f"{known_chips()}"
        ) from None


def _with_tiles(target: Target, tiles_per_ipu: int | None) -> Target:
    if tiles_per_ipu is None:
        return target
    if not 1 <= tiles_per_ipu <= target.tiles_per_ipu:
        raise ModelRuntimeError(
            f"tiles_per_ipu must be 1 to {target.tiles_per_ipu} for {target.name}, found {tiles_per_ipu}"
        )
    return replace(target, tiles_per_ipu=tiles_per_ipu)
