"""Functions of `ipu.utils` about the configuration."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from tensorflow_ipu.config import flags
from tensorflow_ipu.config.devices import count_ipus
from tensorflow_ipu.config.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
)
from tensorflow_ipu.config.ipu_config import IPUConfig, running_on_ipu_model
from tensorflow_ipu.config.seeds import find_ordinal, reset_ipu_seed
from tensorflow_ipu.config.system import configure_ipu_system, get_ipu_config
from tensorflow_ipu.messages import config_pb2
from tensorflow_ipu.messages.config_pb2 import IpuOptions, SyntheticDataCategory
from tensorflow_ipu.messages.trace_pb2 import IpuTraceEvent

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "IpuOptions",
    "IpuTraceEvent",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "SyntheticDataCategory",
    "config_pb2",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "use_synthetic_data_for",
]

_REMOVED: Final = {
    "auto_select_ipus": "config.auto_select_ipus",
    "create_ipu_config": "config = ipu.config.IPUConfig()",
    "select_ipus": "config.select_ipus",
    "set_compilation_options": "config.compilation_poplar_options",
    "set_convolution_options": "config.convolutions.poplar_options",
    "set_experimental_multi_replica_distribution_options": (
        "config.experimental.multi_replica_distribution"
    ),
    "set_floating_point_behaviour_options": "config.floating_point_behaviour",
    "set_gcl_options": "config.gcl_poplar_options",
    "set_io_tile_options": "config.io_tiles",
    "set_ipu_connection_type": "config.device_connection",
    "set_ipu_model_options": "config.ipu_model",
    "set_matmul_options": "config.matmuls",
    "set_norm_options": "config.norms",
    "set_optimization_options": "config.optimizations",
    "set_pooling_options": "config.pooling",
    "set_recomputation_options": "config.allow_recompute",
    "set_report_options": "the engine option autoReport.all in config.compilation_poplar_options",
    "set_serialization_options": "config.serialization_output_folder",
    "set_transfer_options": "config.experimental",
}
"""Functions of SDKs before 2.2 that made configurations, and what replaced them."""


def __getattr__(name: str) -> Any:
    """Return a function that says what replaced it, for one of older SDKs."""
    if name not in _REMOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"ipu.utils.{name} was removed in version 2.2 of the SDK: use {_REMOVED[name]}, and "
            "config.configure_ipu_system() at the end"
        )

    return refuse


def get_num_of_ipus_in_device(
    ipu_device: str,
    device: str = "cpu",  # noqa: ARG001 # the host is this machine
) -> int:
    """Return the number of IPUs of a device.

    Args:
        ipu_device: Name of the device, as "/device:IPU:0".
        device: Accepted without effect: the host is this machine.

    Returns:
        The number.
    """
    return count_ipus(find_ordinal(ipu_device))


def move_variable_initialization_to_cpu(graph: tf.Graph | None = None) -> None:
    """Place the operators that compute the initial values of variables on the CPU.

    Args:
        graph: The graph; the default graph if None.
    """
    graph = graph or tf.compat.v1.get_default_graph()
    with graph.as_default(), tf.device("/device:CPU:0"):
        tf.no_op(name="cpu")
    waiting = [
        variable.initializer.inputs[1].op
        for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        if not isinstance(variable, tf.distribute.DistributedValues)
    ]
    moved: set[str] = set()
    while waiting:
        operation = waiting.pop()
        # What reads a variable stays beside it.
        reads = any(tensor.dtype == tf.resource for tensor in operation.inputs)
        if operation.name in moved or reads:
            continue
        moved.add(operation.name)
        _move_to_cpu(operation)
        waiting += [tensor.op for tensor in operation.inputs]


def _move_to_cpu(operation: tf.Operation) -> None:
    operation._set_device("/device:CPU:0")  # noqa: SLF001
    for name, value in {
        "_class": AttrValue(list=AttrValue.ListValue(s=[b"loc:@cpu"])),
        "_XlaCompile": AttrValue(b=False),
        "_XlaScope": AttrValue(s=b""),
    }.items():
        operation._set_attr(name, value)  # noqa: SLF001


def use_synthetic_data_for(synthetic_data_category: int) -> bool:
    """Return whether a kind of data is synthetic.

    Args:
        synthetic_data_category: Member of SyntheticDataCategory.

    Returns:
        Whether it is.

    Raises:
        tensorflow.errors.InvalidArgumentError: If there is no such kind.
    """
    if synthetic_data_category not in SyntheticDataCategory.values():
        raise tf.errors.InvalidArgumentError(
            None, None, f"Invalid synthetic data category: {synthetic_data_category}"
        )
    return flags.read_flags().is_synthetic(synthetic_data_category)
