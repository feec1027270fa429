"""Devices: the CPU, IPU models, offline IPUs, and the IPUs of a simulated machine.

All of them are simulated. They differ as the real ones do: IPUs are attached and can be held by
one device only, an offline IPU compiles but does not run, and executables for a CPU or an IPU model
cannot be saved.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final

from model_runtime import DeviceWaitConfig
from model_runtime.machine import Machine
from simipu import DEFAULT_CHIP, LoadError, Target, find_target

from popart.enums import (
    DeviceConnectionType,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)
from popart.errors import popart_exception, poplar_exception

NUM_IPUS: Final = 64
"""IPUs of the simulated machine: a Pod64."""
_MACHINE: Final = Machine(NUM_IPUS)
_FEW_TILES: Final = 4
"""Tiles of an IPU model by default, as in the real DeviceManager."""
_WORKERS: Final = 6
_ATTACH_SECONDS: Final = 0.05
"""Interval between two attempts to attach."""
_OFFLINE_DEFAULT: Final = "ipu2"
_SYNC_PATTERNS: Final = {
    "full": SyncPattern.Full,
    "singlePipeline": SyncPattern.SinglePipeline,
    "replicaAndLadder": SyncPattern.ReplicaAndLadder,
}
_OPTION_NAMES: Final = {
    DeviceType.IpuModel: ("numIPUs", "tilesPerIPU", "compileIPUCode", "ipuVersion"),
    DeviceType.Sim: ("numIPUs", "tilesPerIPU"),
    DeviceType.OfflineIpu: ("numIPUs", "tilesPerIPU", "ipuVersion", "syncPattern", "gatewayMode"),
}
"""Options that each kind of device takes."""
_VERSIONS: Final = {
    DeviceType.Cpu: "<unknown-cpu>",
    DeviceType.Sim: "<unknown-sim>",
    DeviceType.OfflineIpu: "<offline-ipu>",
}


def _iter_sets() -> Iterator[tuple[int, range]]:
    """Yield the sets of IPUs that can be a device, with their ids: single ones first."""
    number, size = 0, 1
    while size <= NUM_IPUS:
        for first in range(0, NUM_IPUS, size):
            yield number, range(first, first + size)
            number += 1
        size *= 2


_SETS: Final = dict(_iter_sets())
"""IPUs of each device, by the device's id."""


def syncPatternFromString(text: str) -> SyncPattern:
    """Return the pattern that a text names.

    Args:
        text: "full", "singlePipeline" or "replicaAndLadder".

    Returns:
        The pattern.

    Raises:
        popart_exception: For another text.
    """
    if text in _SYNC_PATTERNS:
        return _SYNC_PATTERNS[text]
    raise popart_exception(f"Unknown syncPattern setting: {text}")


def syncPatternToString(pattern: SyncPattern) -> str:
    """Return the text that names a pattern, as "full"."""
    return next(text for text, known_pattern in _SYNC_PATTERNS.items() if known_pattern is pattern)


class DeviceInfo:
    """A device that a session compiles for and runs on; DeviceManager makes it."""

    def __init__(
        self,
        type: DeviceType,
        target: Target,
        *,
        tiles: int,
        connection: DeviceConnectionType = DeviceConnectionType.Always,
        id: int = 0,
        ipus: range = range(0),
        attach_seconds: float = 0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.type = type
        self.connectionType = connection
        self.target = target
        """Chip that a model is compiled for, with all its tiles."""
        self.tilesPerIPU = tiles
        self.id = id
        self.options = dict(options or {})
        self._ipus = ipus
        self._attach_seconds = attach_seconds
        self._holder = object()
        self._attached = False
        if ipus:
            weakref.finalize(self, _MACHINE.release, self._holder)

    @property
    def tilesPerIpu(self) -> int:
        """Number of tiles of an IPU."""
        return self.tilesPerIPU

    @property
    def numIpus(self) -> int:
        """Number of IPUs."""
        return self.target.num_ipus

    @property
    def numWorkerContexts(self) -> int:
        """Number of worker threads of a tile."""
        return 1 if self.type is DeviceType.Cpu else _WORKERS

    @property
    def ipuVersion(self) -> str:
        """Name of the chip, as "ipu21"; empty for a CPU."""
        return "" if self.type is DeviceType.Cpu else self.target.name

    @property
    def version(self) -> str:
        """Version of the driver, or of the model."""
        if self.type is DeviceType.IpuModel:
            return self.target.name
        if self.type in _VERSIONS:
            return _VERSIONS[self.type]
        return "3.4.0" if self.isAttached else "<unknown-ipu-unattached>"

    @property
    def driverIds(self) -> list[int]:
        """Ids of the IPUs."""
        return list(self._ipus) or [0]

    @property
    def isAttached(self) -> bool:
        """Whether the device is attached."""
        return self._attached

    @property
    def canCompileOffline(self) -> bool:
        """Whether its executables can be saved and cached."""
        return self.type in (DeviceType.Ipu, DeviceType.OfflineIpu)

    def attach(self) -> bool:
        """Attach to the device.

        Returns:
            Whether it succeeded: another device may hold the IPUs.

        Raises:
            popart_exception: For an offline device.
        """
        if self.type is DeviceType.OfflineIpu:
            raise popart_exception("Cannot attach to offline device")
        self._attached = _MACHINE.take(self._ipus, self._holder)
        return self._attached

    def detach(self) -> None:
        """Release the device, so that others can attach to it.

        Raises:
            popart_exception: For an offline device.
        """
        if self.type is DeviceType.OfflineIpu:
            raise popart_exception("Cannot detach from offline device")
        self._attached = False
        _MACHINE.release(self._holder)

    def tryAttachUntilTimeout(self) -> bool:
        """Attach, and try again until the manager's timeout has passed.

        Returns:
            Whether it succeeded.
        """
        wait = DeviceWaitConfig(timeout=self._attach_seconds, sleepTime=_ATTACH_SECONDS)
        return wait.retry(self.attach)

    def __enter__(self) -> DeviceInfo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        ids = ",".join(map(str, self.driverIds))
        return (
            f"Device Type:{self.type} Connection Type:{_CONNECTIONS[self.connectionType]} "
            f"Id:{self.id} Version:{self.version} NumIPUs:{self.numIpus} "
            f"NumTilesPerIPU:{self.tilesPerIPU} DeviceIds: {{{ids}}}"
        )


_CONNECTIONS: Final = {
    DeviceConnectionType.Always: "always",
    DeviceConnectionType.OnDemand: "on-demand",
    DeviceConnectionType.Never: "never",
}


class DeviceManager:
    """Factory of devices. All managers share one simulated machine of 64 IPUs.

    Example:
        >>> device = DeviceManager().createIpuModelDevice({"numIPUs": 2})
        >>> device.numIpus, device.tilesPerIPU, str(device.type)
        (2, 4, 'ipu-model')
    """

    _instance: DeviceManager | None = None
    _attach_seconds: float = 0

    def __new__(cls) -> DeviceManager:
        """Return the only manager."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def createCpuDevice(self) -> DeviceInfo:
        """Return the CPU, which has no limit of memory and no modelled time of its own."""
        return _made(DeviceInfo(DeviceType.Cpu, find_target(DEFAULT_CHIP), tiles=1))

    def createIpuModelDevice(self, options: Mapping[str, Any]) -> DeviceInfo:
        """Return an IPU model.

        Args:
            options: numIPUs (1), tilesPerIPU (4), ipuVersion ("ipu2") and compileIPUCode. The
                estimate of time and memory is that of the whole chip whatever tilesPerIPU says.

        Returns:
            The device.

        Raises:
            popart_exception: For another option or an invalid value.
        """
        return _made(_create(DeviceType.IpuModel, options, _OFFLINE_DEFAULT, _FEW_TILES))

    def createSimDevice(self, options: Mapping[str, Any]) -> DeviceInfo:
        """Return a simulator device.

        Args:
            options: numIPUs (1) and tilesPerIPU (4).

        Returns:
            The device.

        Raises:
            popart_exception: For another option or an invalid value.
        """
        return _made(_create(DeviceType.Sim, options, DEFAULT_CHIP, _FEW_TILES))

    def createOfflineIPUDevice(self, opts: Mapping[str, Any]) -> DeviceInfo:
        """Return a device for compilation only, whose executables can be exported.

        Args:
            opts: numIPUs (1), tilesPerIPU (all), ipuVersion ("ipu2"), syncPattern ("full") and
                gatewayMode.

        Returns:
            The device.

        Raises:
            popart_exception: For another option or an invalid value.
        """
        syncPatternFromString(str(opts.get("syncPattern", "full")))
        return _create(DeviceType.OfflineIpu, opts, _OFFLINE_DEFAULT, 0)

    def createOfflineIpuFromDeviceInfo(self, deviceInfo: DeviceInfo) -> DeviceInfo:
        """Return an offline device like another device."""
        return DeviceInfo(
            DeviceType.OfflineIpu,
            deviceInfo.target,
            tiles=deviceInfo.tilesPerIPU,
            connection=DeviceConnectionType.Never,
            options=deviceInfo.options,
        )

    def createOfflineIpuFromSystemString(self, system: str, numIpus: int) -> DeviceInfo:
        """Return an offline device for a named system.

        Args:
            system: Name of the chip, as "ipu2" or "bow".
            numIpus: Number of IPUs.

        Returns:
            The device.

        Raises:
            popart_exception: For an unknown name.
        """
        return self.createOfflineIPUDevice({"ipuVersion": system, "numIPUs": numIpus})

    def enumerateDevices(
        self,
        pattern: SyncPattern = SyncPattern.Full,  # noqa: ARG002
        numIpus: int = 1,
        deviceType: DeviceType = DeviceType.Ipu,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        tilesPerIPU: int = 0,
    ) -> list[DeviceInfo]:
        """Return the devices of the machine, held or free, without attaching to them.

        Args:
            pattern: Accepted without effect.
            numIpus: Number of IPUs that a device has.
            deviceType: Kind of device; others than Ipu are made rather than found.
            connectionType: How the devices will be attached.
            tilesPerIPU: Number of tiles that a device shows; 0 means all of the chip.

        Returns:
            The devices, by id.
        """
        if deviceType is DeviceType.Cpu:
            return [self.createCpuDevice()]
        if deviceType is not DeviceType.Ipu:
            return []
        return [
            self._make(number, ipus, connectionType, tilesPerIPU)
            for number, ipus in _SETS.items()
            if len(ipus) == numIpus
        ]

    def tryAcquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: DeviceSelectionCriterion = DeviceSelectionCriterion.First,
    ) -> DeviceInfo | None:
        """Return a free device of the machine.

        Args:
            numIpus: Number of IPUs, a power of two.
            tilesPerIpu: Number of tiles that the device shows; 0 means all of the chip.
            pattern: Accepted without effect.
            connectionType: Always attaches now, OnDemand when the program is loaded.
            selectionCriterion: Which of several free devices is taken.

        Returns:
            The device; None if none is free.

        Raises:
            popart_exception: For a number of IPUs that is not a power of two, and for the
                connection type Never.
        """
        if numIpus > 0 and numIpus & (numIpus - 1):
            raise popart_exception(
                f"You have attempted to acquire {numIpus} IPUs. The number of IPUs requested must "
                "be a power of two"
            )
        _refuse_never(connectionType)
        devices = self.enumerateDevices(
            pattern, numIpus, DeviceType.Ipu, connectionType, tilesPerIpu
        )
        if selectionCriterion is DeviceSelectionCriterion.Random:
            # Seeded, so that the same program takes the same devices in every run.
            random.Random(1).shuffle(devices)  # noqa: S311
        on_demand = connectionType is DeviceConnectionType.OnDemand
        return next((device for device in devices if on_demand or device.attach()), None)

    def acquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: DeviceSelectionCriterion = DeviceSelectionCriterion.First,
    ) -> DeviceInfo:
        """Return a free device, as tryAcquireAvailableDevice, or raise.

        Args:
            numIpus: Number of IPUs, a power of two.
            tilesPerIpu: Number of tiles that the device shows; 0 means all of the chip.
            pattern: Accepted without effect.
            connectionType: Always attaches now, OnDemand when the program is loaded.
            selectionCriterion: Which of several free devices is taken.

        Returns:
            The device.

        Raises:
            popart_exception: If no device is free, and as tryAcquireAvailableDevice does.
        """
        device = self.tryAcquireAvailableDevice(
            numIpus, tilesPerIpu, pattern, connectionType, selectionCriterion
        )
        if device is None:
            raise popart_exception(
                f"Failed to acquire device with {numIpus} IPUs. Ensure that there are sufficient "
                f"IPUs available: the simulated machine has {NUM_IPUS}."
            )
        return device

    def tryAcquireDeviceById(
        self,
        id: int,
        pattern: SyncPattern = SyncPattern.Full,  # noqa: ARG002
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo | None:
        """Return the device with an id.

        Args:
            id: Number of the device, as enumerateDevices shows it.
            pattern: Accepted without effect.
            connectionType: Always attaches now, OnDemand when the program is loaded.

        Returns:
            The device; None if another device holds its IPUs.

        Raises:
            poplar_exception: If there is no such device.
            popart_exception: For the connection type Never.
        """
        _refuse_never(connectionType)
        if id not in _SETS:
            raise poplar_exception(f"No such device set id: '{id}'")
        device = self._make(id, _SETS[id], connectionType, 0)
        on_demand = connectionType is DeviceConnectionType.OnDemand
        return device if on_demand or device.attach() else None

    def acquireDeviceById(
        self,
        id: int,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo:
        """Return the device with an id, as tryAcquireDeviceById, or raise.

        Args:
            id: Number of the device, as enumerateDevices shows it.
            pattern: Accepted without effect.
            connectionType: Always attaches now, OnDemand when the program is loaded.

        Returns:
            The device.

        Raises:
            popart_exception: If another device holds its IPUs.
        """
        device = self.tryAcquireDeviceById(id, pattern, connectionType)
        if device is None:
            raise popart_exception(
                f"Failed to acquire device with id '{id}'. Ensure it is available."
            )
        return device

    def setOnDemandAttachTimeout(self, attachTimeout: int) -> None:
        """Set how many seconds a device that is attached on demand waits for its IPUs."""
        self._attach_seconds = float(attachTimeout)

    def _make(
        self, number: int, ipus: range, connection: DeviceConnectionType, tiles: int
    ) -> DeviceInfo:
        target = find_target(DEFAULT_CHIP, len(ipus))
        return DeviceInfo(
            DeviceType.Ipu,
            target,
            tiles=tiles or target.tiles_per_ipu,
            connection=connection,
            id=number,
            ipus=ipus,
            attach_seconds=self._attach_seconds,
        )


def _made(device: DeviceInfo) -> DeviceInfo:
    """Return a device that is its own machine, attached."""
    device.attach()
    return device


def _create(kind: DeviceType, options: Mapping[str, Any], version: str, tiles: int) -> DeviceInfo:
    texts = {str(name): str(value) for name, value in options.items()}
    valid_names = _OPTION_NAMES[kind]
    for name in texts:
        if name not in valid_names:
            raise popart_exception(
                f"Invalid option `{name}' passed to DevicexManager::createHostDevice for device "
                f"type {kind}. Valid options are {list(valid_names)}"
            )
    num_ipus, tiles = _read(texts, "numIPUs", 1), _read(texts, "tilesPerIPU", tiles)
    try:
        target = find_target(texts.get("ipuVersion", version), num_ipus)
    except LoadError as error:
        raise popart_exception(f"{kind}: {error}") from error
    never = kind is DeviceType.OfflineIpu
    return DeviceInfo(
        kind,
        target,
        tiles=tiles or target.tiles_per_ipu,
        connection=DeviceConnectionType.Never if never else DeviceConnectionType.Always,
        options=texts,
    )


def _read(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal() or (name in given and int(text) < 1):
        raise popart_exception(f"device option {name}: expected a positive number, found {text!r}")
    return int(text)


def _refuse_never(connection: DeviceConnectionType) -> None:
    if connection is DeviceConnectionType.Never:
        raise popart_exception(
            "Trying to acquire a hardware device when connectionType is "
            "DeviceConnectionType::Never. For offline compilation, use createOfflineIPUDevice"
        )
