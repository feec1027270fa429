"""Devices for models: finding and making them.

Every device is simulated, so a device is free whenever the machine has enough IPUs.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

import simipu
from simipu import DEFAULT_CHIP, LoadError, Target, find_target, known_chips

import popef
from model_runtime.errors import ModelRuntimeError
from model_runtime.machine import Machine

if TYPE_CHECKING:
    from model_runtime.session import Session

_TARGET_NAMES = {1: "ipu1", 2: "ipu2", 21: "ipu21"}
_SMALL_MODEL_TILES = 4
"""Number of tiles of createSmallIpuModelDevice. The real number is not public; the name promises
few enough to be fast."""
_ids = itertools.count()
Taken = TypeVar("Taken")


class DeviceWaitStrategy(IntEnum):
    """Action while no device is free."""

    NO_WAIT = 0
    WAIT_FOREVER = 1
    WAIT_WITH_TIMEOUT = 2


@dataclass(frozen=True, slots=True)
class DeviceWaitConfig:
    """Maximum wait for a free device and interval between two attempts.

    Args:
        strategy: no wait, forever, or up to the timeout; None, of the newer form without a
            strategy, waits up to the timeout.
        timeout: maximum wait in seconds, or a timedelta.
        sleepTime: interval between two attempts in seconds, or a timedelta.
    """

    strategy: DeviceWaitStrategy | None = None
    timeout: float | timedelta = 0
    sleepTime: float | timedelta = 1

    def retry(self, attempt: Callable[[], Taken]) -> Taken:
        """Repeat an attempt until it returns something true, or the wait is over (our addition).

        Args:
            attempt: function that tries to take a device.

        Returns:
            What the last attempt returned.
        """
        deadline = time.monotonic() + self.seconds()
        while not (result := attempt()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(remaining, self.sleep_seconds()))
        return result

    def seconds(self) -> float:
        """Return the maximum wait in seconds."""
        if self.strategy is DeviceWaitStrategy.WAIT_FOREVER:
            return float("inf")
        return 0.0 if self.strategy is DeviceWaitStrategy.NO_WAIT else _seconds(self.timeout)

    def sleep_seconds(self) -> float:
        """Return the interval between two attempts in seconds, at least a millisecond."""
        return max(0.001, _seconds(self.sleepTime))


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


class Device:
    """IPUs that are attached for the lifetime of this object.

    Made by DeviceManager. One session at a time is bound to it.
    """

    def __init__(self, device: simipu.Device) -> None:
        self._device = device
        self._session: weakref.ref[Session] | None = None

    def __reduce__(self) -> tuple[type[Device], tuple[simipu.Device]]:
        """Pickle as a device of the same kind without a bound session."""
        return Device, (self._device,)

    def device(self) -> simipu.Device:
        """Return the underlying simulated device."""
        return self._device

    def id(self) -> int:
        """Return a number that is unique among the devices of this process."""
        return self._device.id

    def numIpus(self) -> int:
        """Return the number of IPUs."""
        return self._device.target.num_ipus

    def ipuVersion(self) -> int:
        """Return the version number that PopEF metadata carries: 1, 2 or 21."""
        return self._device.target.ipu_version

    def bind(self, session: Session) -> None:
        """Bind `session` to this device; an earlier session is unloaded first."""
        bound = self._session() if self._session is not None else None
        if bound is not None and bound is not session:
            bound.unloadFromDevice()
        self._session = weakref.ref(session)

    def unloadFromDevice(self) -> None:
        """Unload the bound session, if there is one."""
        bound = self._session() if self._session is not None else None
        if bound is not None:
            bound.unloadFromDevice()
        self._session = None


class DeviceManager:
    """Factory of simulated devices.

    Args:
        num_ipus: number of IPUs of the simulated machine; None means no limit.

    Example:
        >>> import model_runtime
        >>> device = model_runtime.DeviceManager().getDevice(2, {"ipuVersion": "bow"})
        >>> device.numIpus(), device.ipuVersion()
        (2, 2)
    """

    def __init__(self, num_ipus: int | None = None) -> None:
        self._machine = Machine(num_ipus)

    def __reduce__(self) -> tuple[type[DeviceManager], tuple[int | None]]:
        """Pickle as a machine with the same number of IPUs, none of them attached."""
        return DeviceManager, (self._machine.num_ipus,)

    def getNumDevices(self) -> int | None:
        """Return the number of IPUs of the machine; None for no limit."""
        return self._machine.num_ipus

    def getDevice(
        self,
        model: popef.Model | int,
        options: Mapping[str, str] | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
    ) -> Device:
        """Attach a device for a model or with a number of IPUs.

        getDevice(model, wait_config) uses the IPU version and number of IPUs of the model's
        metadata. getDevice(num_ipus, options, wait_config) attaches that many IPUs.

        Args:
            model: the PopEF model, or the number of IPUs.
            options: "ipuVersion" names the chip: ipu1, ipu2, ipu21, bow, or a common alias; default
                ipu21.
            wait_config: how long to wait for free IPUs; None means no wait.

        Returns:
            The device, attached for the lifetime of the object.

        Raises:
            ModelRuntimeError: if there is no such chip, or none becomes free in time.
        """
        if isinstance(options, DeviceWaitConfig):
            options, wait_config = None, options
        if isinstance(model, int):
            target = _find_target((options or {}).get("ipuVersion", DEFAULT_CHIP)).with_ipus(model)
        else:
            target = model_target(model.metadata)
        return self.attach(target, wait_config or DeviceWaitConfig())

    def getSpecificDevice(
        self, device_id: int, wait_config: DeviceWaitConfig | None = None
    ) -> Device:
        """Attach the ipu21 with a given id.

        Args:
            device_id: the id, which must be below getNumDevices() if there is a limit.
            wait_config: how long to wait until the device is free; None means no wait.

        Returns:
            The device.

        Raises:
            ModelRuntimeError: if there is no such device, or it does not become free in time.
        """
        num_ipus = self._machine.num_ipus
        if num_ipus is not None and not 0 <= device_id < num_ipus:
            raise ModelRuntimeError(
                f"No IPU can be attached: there is no device {device_id}; there are 0 to "
                f"{num_ipus - 1}"
            )
        device = self.attach(find_target(DEFAULT_CHIP), wait_config or DeviceWaitConfig())
        device.device().id = device_id
        return device

    def createIpuModelDevice(
        self,
        model: popef.Model | int,
        ipu_version: str | int | None = None,
        tiles_per_ipu: int | None = None,
    ) -> Device:
        """Make a simulated device that is independent of those of the machine.

        Call createIpuModelDevice(num_ipus, ipu_version, tiles_per_ipu) or
        createIpuModelDevice(model, tiles_per_ipu).

        Args:
            model: the PopEF model, or the number of IPUs.
            ipu_version: the chip, by name or by number; None means ipu21.
            tiles_per_ipu: number of tiles; None means all tiles of the chip.

        Returns:
            The device.

        Raises:
            ModelRuntimeError: if there is no such chip, or it has fewer tiles.
        """
        if not isinstance(model, int):
            if isinstance(ipu_version, int) and tiles_per_ipu is None:
                tiles_per_ipu = ipu_version
            target = model_target(model.metadata)
        else:
            target = _find_target(DEFAULT_CHIP if ipu_version is None else ipu_version).with_ipus(
                model
            )
        return Device(simipu.Device(_with_tiles(target, tiles_per_ipu), id=next(_ids)))

    def createSmallIpuModelDevice(
        self, model: popef.Model | int, ipu_version: str | int = DEFAULT_CHIP
    ) -> Device:
        """Make a simulated device with 4 tiles per IPU, for models compiled for 4 tiles."""
        return self.createIpuModelDevice(model, ipu_version, _SMALL_MODEL_TILES)

    def attach(self, target: Target, wait: DeviceWaitConfig) -> Device:
        """Attach a device of exactly one target.

        This is our addition: metadata cannot distinguish a Bow from an ipu2.

        Args:
            target: the chip and the number of IPUs.
            wait: how long to wait for free IPUs.

        Returns:
            The device.

        Raises:
            ModelRuntimeError: if not enough IPUs become free in time.
        """
        machine, holder = self._machine, object()
        if not wait.retry(lambda: machine.take_any(target.num_ipus, holder)):
            raise ModelRuntimeError(
                f"No IPU can be attached: {target.num_ipus} of {target.label} wanted, the "
                f"simulated machine has {machine.num_ipus}, of which {machine.num_held} are "
                "attached"
            )
        device = Device(simipu.Device(target, id=next(_ids)))
        weakref.finalize(device, machine.release, holder)
        return device


def model_target(metadata: popef.Metadata) -> Target:
    """Return the chips that a model's metadata requires.

    As PopART writes it, numIpus counts the IPUs of all replicas.

    Args:
        metadata: the metadata of the executable.

    Returns:
        The target.

    Raises:
        ModelRuntimeError: for an IPU version that is not simulated.
    """
    return _find_target(metadata.ipuVersion()).with_ipus(metadata.numIpus())


def _find_target(version: str | int) -> Target:
    name = version if isinstance(version, str) else _TARGET_NAMES.get(version, "")
    try:
        return find_target(name)
    except LoadError:
        versions = ", ".join(f"{number} ({name})" for number, name in _TARGET_NAMES.items())
        raise ModelRuntimeError(
            f"IPU version {version!r} is not known; simulated versions are {versions}, and by name "
            f"{known_chips()}"
        ) from None


def _with_tiles(target: Target, tiles_per_ipu: int | None) -> Target:
    if tiles_per_ipu is None:
        return target
    if not 1 <= tiles_per_ipu <= target.tiles_per_ipu:
        raise ModelRuntimeError(
            f"tiles_per_ipu must be 1 to {target.tiles_per_ipu} for {target.label}, found "
            f"{tiles_per_ipu}"
        )
    return replace(target, tiles_per_ipu=tiles_per_ipu)
