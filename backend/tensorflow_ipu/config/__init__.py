"""Configuration: IPUConfig, TF_POPLAR_FLAGS, and the devices that they make."""

from tensorflow_ipu.config.base import (
    AttributeMetadata,
    _ConfigBase,
    deprecate_config_attribute,
    deprecate_config_attributes,
)
from tensorflow_ipu.config.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from tensorflow_ipu.config.ipu_config import IPUConfig, running_on_ipu_model
from tensorflow_ipu.config.system import (
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)

__all__ = [
    "AttributeMetadata",
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "_ConfigBase",
    "configure_ipu_system",
    "deprecate_config_attribute",
    "deprecate_config_attributes",
    "get_ipu_config",
    "reset_ipu_configuration",
    "running_on_ipu_model",
]
