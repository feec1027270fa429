"""IPUConfig: the tree of attributes of the table, and the message that it becomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from functools import reduce
from typing import Any, Final

from popef._tools.options import Kind
from tensorflow_ipu.config.base import _ConfigBase
from tensorflow_ipu.config.enums import DeviceConnectionType, StochasticRoundingBehaviour
from tensorflow_ipu.config.table import ATTRIBUTES, CATEGORIES, Attribute
from tensorflow_ipu.messages import config_pb2

_OFFLINE: Final = (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)


def running_on_ipu_model() -> bool:
    """Return whether TF_POPLAR_FLAGS turns the IPU Model on.

    Returns:
        Whether it does.
    """
    return "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")


class _Category(_ConfigBase):
    """A category of the table; the root is the one without a name."""

    def __init__(self, path: str = "") -> None:
        """Add what the table has in the category."""
        vars(self)["_path"] = path
        for entry in ATTRIBUTES.values():
            category, _, name = entry.name.rpartition(".")
            if category == path:
                self._add(name, entry.make_default(), entry.kind, entry.help, entry.deprecated)
        for category_path, description in CATEGORIES.items():
            category, _, name = category_path.rpartition(".")
            if category == path:
                self._add(name, _Category(category_path), Kind(""), description)

    def _to_protobuf(self, pb: Any) -> None:
        check = _CHECKS.get(vars(self)["_path"])
        if check is not None:
            check(self)
        for name, metadata in self._user_attributes.items():
            if name not in self._nested_configs and (entry := ATTRIBUTES[metadata.name]).field:
                _write(entry, getattr(self, name), pb)
        super()._to_protobuf(pb)


class IPUConfig(_Category):
    """Configuration of the IPUs. The documentation is replaced by that of all attributes."""

    def __init__(self) -> None:
        """Make a configuration with the default values."""
        super().__init__()
        self._finalize_base_config()

    def _create_protobuf(self) -> config_pb2.IpuOptions:
        message = config_pb2.IpuOptions()
        self._to_protobuf(message)
        return message

    def _to_protobuf(self, pb: config_pb2.IpuOptions) -> None:
        _check_devices(self)
        pb.creator_id = config_pb2.IPU_UTILS
        for index in self.select_ipus:
            pb.device_config.add(cfg_index=index)
        for count in self.auto_select_ipus:
            pb.device_config.add(auto_count=count)
        super()._to_protobuf(pb)
        if self.floating_point_behaviour.set_all:
            behaviour = pb.floating_point_behaviour
            behaviour.inv = behaviour.div0 = behaviour.oflo = behaviour.nanoo = True
            behaviour.esr = StochasticRoundingBehaviour.ON.value

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Configure the IPUs with this configuration.

        Args:
            device: Accepted without effect: the host is this machine.
        """
        from tensorflow_ipu.config.system import configure_ipu_system

        configure_ipu_system(self, device)


def _write(entry: Attribute, value: Any, message: Any) -> None:
    """Write the value of an attribute into its field."""
    *path, name = entry.field.removeprefix("!").split(".")
    target = reduce(getattr, path, message)
    if isinstance(value, Mapping):
        for option, text in value.items():
            if not (isinstance(option, str) and isinstance(text, str)):
                raise TypeError(
                    f"{entry.name}: options are texts by name, found {option!r}: {text!r}"
                )
            getattr(target, name).add(option=option, value=text)
        return
    value = value.value if isinstance(value, Enum) else value
    setattr(target, name, not value if entry.field.startswith("!") else value)


def _check_devices(config: Any) -> None:
    if config.auto_select_ipus and config.select_ipus:
        raise Exception("Only one of `auto_select_ipus` and `select_ipus` can be set.")
    for name in ("auto_select_ipus", "select_ipus"):
        if isinstance(getattr(config, name), int):
            setattr(config, name, [getattr(config, name)])
    if len(set(config.select_ipus)) != len(config.select_ipus):
        raise ValueError("All MultiIPU indices in `select_ipus` must be unique.")
    if config.select_ipus and running_on_ipu_model():
        raise Exception(
            "When using the IPUModel, the devices to attach to can only be specified with "
            "`auto_select_ipus`."
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if config.io_tiles.num_io_tiles > 0 and group > 1:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size is not supported with "
            "I/O tiles."
        )


def _check_distribution(category: Any) -> None:
    if running_on_ipu_model() and category.process_count > 0:
        raise Exception("Multi-replica distribution is not supported on the IPU model.")
    if category.process_count and not 0 <= category.process_index < category.process_count:
        index, count = map(category._get_full_name, ("process_index", "process_count"))
        raise ValueError(f"{index} must be in the range [0, {count}).")


def _check_io_tiles(category: Any) -> None:
    if category.place_ops_on_io_tiles and category.num_io_tiles == 0:
        raise ValueError("Cannot place ops on I/O tiles when io_tiles.num_io_tiles == 0")


def _check_connection(category: Any) -> None:
    if category.type in _OFFLINE and not category.version:
        raise ValueError(
            "device_connection.version must be set when device_connection.type is "
            "DeviceConnectionType.NEVER or DeviceConnectionType.PRE_COMPILE"
        )


def _check_model(category: Any) -> None:
    if not category.version and running_on_ipu_model():
        raise ValueError("ipu_model.version must be set when using the IPUModel.")


def _check_norms(category: Any) -> None:
    if category.distributed_batch_norm_replica_group_size < 1:
        name = category._get_full_name("distributed_batch_norm_replica_group_size")
        raise ValueError(f"{name} must be at least 1.")


_CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "experimental.multi_replica_distribution": _check_distribution,
    "io_tiles": _check_io_tiles,
    "device_connection": _check_connection,
    "ipu_model": _check_model,
    "norms.experimental": _check_norms,
}
"""Checks of a category when it is written."""
