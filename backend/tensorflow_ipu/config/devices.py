"""The simulated devices that a configuration makes.

`/device:IPU:k` has the IPUs of entry k of auto_select_ipus or select_ipus. They are IPU Models if
TF_POPLAR_FLAGS says so, else IPUs of popart's simulated machine, which a device holds from its
connection until the configuration is reset. A computation that needs fewer IPUs is replicated.
A device that is not configured has one IPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.platform import tf_logging

from tensorflow_ipu.config import flags
from tensorflow_ipu.config.enums import DeviceConnectionType
from tensorflow_ipu.config.system import SYSTEM
from tensorflow_ipu.messages import config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popart import DeviceInfo, SessionOptions

_OFFLINE: Final = (DeviceConnectionType.NEVER, DeviceConnectionType.PRE_COMPILE)
_CAUSES: Final = (
    " Common causes of this error include: incorrect configuration of your V-IPU partition, "
    "requesting more IPUs than are available on your system, or IPUs being used by another "
    "program. Use `gc-info -l` and `gc-monitor` to check your configuration."
)
_MIN_IO_TILES: Final = 32
_CHECKED_EXCEPTIONS: Final = ("inv", "div0", "oflo")


class _Slot:
    """A device's IPUs: certain ones if `is_selected`, else any that are free."""

    def __init__(self, ordinal: int, info: DeviceInfo, is_selected: bool) -> None:
        self.ordinal, self.info, self._is_selected = ordinal, info, is_selected

    @property
    def name(self) -> str:
        """What errors call the device."""
        return f"TensorFlow virtual device /device:IPU:{self.ordinal}"

    def attach(self, waits: bool) -> None:
        """Hold the device's IPUs.

        Args:
            waits: Whether to wait for free ones, as long as the flags say.

        Raises:
            tensorflow.errors.InternalError: If there are none.
        """
        if self.info.isAttached:
            return
        values = flags.read_flags()
        end = time.monotonic() + values.timeout_seconds if waits else 0.0
        is_first = True
        while True:
            if self._try_attach():
                return
            if time.monotonic() >= end:
                break
            if is_first:
                tf_logging.info(
                    f"Currently there is no available device for {self.name}. Waiting for one to "
                    "become available."
                )
            is_first = False
            time.sleep(min(values.poll_seconds, max(0.0, end - time.monotonic())))
        text = "Timed out trying to find" if waits else "Could not find"
        raise tf.errors.InternalError(
            None,
            None,
            f"{text} an available device for {self.name}. This device was expected to have "
            f"{self.info.numIpus} IPU(s).{_CAUSES}",
        )

    def _try_attach(self) -> bool:
        from popart import DeviceManager

        candidates = [self.info]
        if not self._is_selected:
            candidates += DeviceManager().enumerateDevices(numIpus=self.info.numIpus)
        for info in candidates:
            if info.attach():
                info.target = self.info.target
                self.info = info
                return True
        return False


_SLOTS: Final[dict[int, _Slot]] = {}


@dataclass(frozen=True)
class Device:
    """The device of a computation."""

    ordinal: int
    """k of /device:IPU:k."""
    replicas: int
    """Number of replicas that run the computation."""
    options: config_pb2.IpuOptions
    """The configuration."""
    slot: _Slot

    @property
    def info(self) -> DeviceInfo:
        """The device of popart that programs are compiled for."""
        return self.slot.info

    @property
    def connection(self) -> DeviceConnectionType:
        """When the IPUs are attached."""
        return DeviceConnectionType(self.options.device_connection_type)

    @property
    def is_model(self) -> bool:
        """Whether it is an IPU Model."""
        return bool(flags.read_flags().use_ipu_model)

    @property
    def returns_zeros(self) -> bool:
        """Whether runs return zeros, because programs are compiled in advance."""
        return not self.is_model and self.connection is DeviceConnectionType.PRE_COMPILE

    def attach(self) -> None:
        """Hold the IPUs, before a run.

        Raises:
            tensorflow.errors.InternalError: If there are no free ones in time.
            tensorflow.errors.FailedPreconditionError: If the configuration forbids it.
        """
        if self.is_model:
            return
        if self.connection is DeviceConnectionType.NEVER:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"{self.slot.name} cannot run programs: its connection type is "
                "DeviceConnectionType.NEVER, which compiles only. Choose ALWAYS or ON_DEMAND",
            )
        if self.connection is not DeviceConnectionType.PRE_COMPILE:
            self.slot.attach(self.connection is DeviceConnectionType.ON_DEMAND)

    def session_options(self) -> SessionOptions:
        """Return popart's options with what the configuration says.

        Returns:
            New options.

        Raises:
            tensorflow.errors.InternalError: For an unknown option of Poplar's engine.
        """
        from popart import SessionOptions, poplar_exception
        from popart.options.checks import check_engine_options

        if flags.read_flags().help:
            tf_logging.info(flags.describe())
        options = SessionOptions()
        options.enableReplicatedGraphs = self.replicas > 1
        options.replicatedGraphCount = self.replicas
        options.engineOptions = self._engine_options()
        try:
            check_engine_options(options)
        except poplar_exception as error:
            raise tf.errors.InternalError(None, None, str(error)) from error
        options.matmulOptions = _read_options(self.options.matmul_options)
        options.convolutionOptions = _read_options(self.options.convolution_options)
        options.gclOptions = _read_options(self.options.gcl_options)
        behaviour = self.options.floating_point_behaviour
        options.enableStochasticRounding = behaviour.esr != config_pb2.StochasticRounding_Off
        options.enableStableNorm = self.options.use_stable_norm_statistics
        options.enableOutlining = not self.options.speed_size_config.disable_graph_outlining
        options.enablePrefetchDatastreams = self.options.prefetch_data_streams
        tiles = self.options.num_io_tiles
        # Fewer than PopART allows overlap nothing in the model of time.
        options.numIOTiles = tiles if tiles >= _MIN_IO_TILES else 0
        return options

    def _engine_options(self) -> dict[str, str]:
        behaviour, options = self.options.floating_point_behaviour, {}
        if any(getattr(behaviour, name) for name in _CHECKED_EXCEPTIONS):
            options["debug.floatPointOpException"] = "true"
        if behaviour.nanoo:
            options["debug.nanOverflowException"] = "true"
        return options | _read_options(self.options.compilation_options)


def find_device(ordinal: int = 0, num_ipus_per_replica: int = 1) -> Device:
    """Return the device of a computation, which need not be attached.

    Args:
        ordinal: k of /device:IPU:k.
        num_ipus_per_replica: Number of IPUs that the computation uses: its shards or the IPUs of
            its pipeline stages.

    Returns:
        The device.

    Raises:
        tensorflow.errors.FailedPreconditionError: If the machine has no such device.
        tensorflow.errors.InternalError: If the computation's IPUs do not divide the device's.
    """
    slot = _find_slot(ordinal)
    num_ipus = slot.info.numIpus
    if num_ipus % num_ipus_per_replica:
        raise tf.errors.InternalError(
            None,
            None,
            f"Trying to compile a graph for an IPU device with {num_ipus} IPUs and "
            f"{num_ipus_per_replica} shards. The number of shards needs to divide the number of "
            "IPUs.",
        )
    return Device(ordinal, num_ipus // num_ipus_per_replica, _configuration(), slot)


def count_ipus(ordinal: int) -> int:
    """Return the number of IPUs of /device:IPU:k.

    Args:
        ordinal: k.

    Returns:
        The number.
    """
    return _find_slot(ordinal).info.numIpus


def connect() -> None:
    """Make the devices of a new configuration, and attach those that are always attached."""
    options = _configuration()
    for ordinal in range(max(1, len(options.device_config))):
        slot = _find_slot(ordinal)
        if not flags.read_flags().use_ipu_model and (
            options.device_connection_type == config_pb2.ALWAYS
        ):
            slot.attach(waits=False)


def release() -> None:
    """Release the IPUs of all devices, and forget the devices."""
    for slot in _SLOTS.values():
        if slot.info.isAttached:
            slot.info.detach()
    _SLOTS.clear()


def _configuration() -> config_pb2.IpuOptions:
    """Return what is configured; the defaults if nothing is."""
    if SYSTEM.options is not None:
        return SYSTEM.options
    from tensorflow_ipu.config.ipu_config import IPUConfig

    return IPUConfig()._create_protobuf()  # noqa: SLF001 # the message is no name for users


def _find_slot(ordinal: int) -> _Slot:
    slot = _SLOTS.get(ordinal)
    if slot is None:
        options = _configuration()
        selection = _find_selection(ordinal, options)
        is_selected = selection.WhichOneof("selection") == "cfg_index"
        info = _make_info(ordinal, selection, options)
        slot = _SLOTS[ordinal] = _Slot(ordinal, info, is_selected)
    return slot


def _make_info(
    ordinal: int, selection: config_pb2.IpuOptions.DeviceConfig, options: config_pb2.IpuOptions
) -> DeviceInfo:
    if flags.read_flags().use_ipu_model:
        return _make_model(selection.auto_count, options)
    if options.multi_replica_process_count > 1:
        raise tf.errors.UnimplementedError(
            None, None, "experimental.multi_replica_distribution: one process only is supported"
        )
    return _make_ipus(ordinal, selection, options)


def _find_selection(
    ordinal: int, options: config_pb2.IpuOptions
) -> config_pb2.IpuOptions.DeviceConfig:
    """Return how the IPUs of a device are selected: one IPU if it is not configured."""
    if not options.device_config:
        return config_pb2.IpuOptions.DeviceConfig(auto_count=1)
    if ordinal >= len(options.device_config):
        tf_logging.warn(
            f"No IPU device was configured for /device:IPU:{ordinal}, creating a device with a "
            "single IPU."
        )
        return config_pb2.IpuOptions.DeviceConfig(auto_count=1)
    return options.device_config[ordinal]


def _make_model(num_ipus: int, options: config_pb2.IpuOptions) -> DeviceInfo:
    from popart import DeviceManager

    model = options.ipu_model_config
    version = model.ipu_model_version or "ipu2"
    facts: dict[str, int | str] = {
        "numIPUs": num_ipus,
        "ipuVersion": version,
    }
    tiles = model.tiles_per_ipu or max(0, flags.read_flags().ipu_model_tiles)
    facts["tilesPerIPU"] = tiles or _make_offline(num_ipus, version).tilesPerIPU
    return DeviceManager().createIpuModelDevice(facts)


def _make_offline(num_ipus: int, version: str) -> DeviceInfo:
    from popart import DeviceManager, popart_exception

    try:
        return DeviceManager().createOfflineIPUDevice({"numIPUs": num_ipus, "ipuVersion": version})
    except popart_exception as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error


def _make_ipus(
    ordinal: int,
    selection: config_pb2.IpuOptions.DeviceConfig,
    options: config_pb2.IpuOptions,
) -> DeviceInfo:
    """Return a device of the machine that is not attached, or an offline device."""
    from popart import DeviceConnectionType as Connection
    from popart import DeviceManager, poplar_exception

    connection = DeviceConnectionType(options.device_connection_type)
    manager = DeviceManager()
    if selection.WhichOneof("selection") == "cfg_index":
        try:
            info = manager.tryAcquireDeviceById(
                selection.cfg_index, connectionType=Connection.OnDemand
            )
        except poplar_exception as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    elif connection in _OFFLINE:
        return _make_offline(selection.auto_count, options.ipu_version)
    else:
        info = next(iter(manager.enumerateDevices(numIpus=selection.auto_count)), None)
    if info is None:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            "Unsupported number of IPUs requested - could not find an IPU device with "
            f"{selection.auto_count} IPUs for the TensorFlow virtual device "
            f"/device:IPU:{ordinal}. Use `gc-info -l` to view the available device "
            "configurations.",
        )
    if options.ipu_version:
        info.target = _make_offline(info.numIpus, options.ipu_version).target
    return info


def _read_options(options: Iterable[Any]) -> dict[str, str]:
    return {entry.option: entry.value for entry in options}
