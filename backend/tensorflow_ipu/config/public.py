"""Names of `tensorflow.python.ipu.config`; the package imports each on first use."""

from tensorflow_ipu.config.base import (
    AttributeMetadata as AttributeMetadata,
)
from tensorflow_ipu.config.base import (
    _ConfigBase as _ConfigBase,
)
from tensorflow_ipu.config.base import (
    deprecate_config_attribute as deprecate_config_attribute,
)
from tensorflow_ipu.config.base import (
    deprecate_config_attributes as deprecate_config_attributes,
)
from tensorflow_ipu.config.enums import (
    DeviceConnectionType as DeviceConnectionType,
)
from tensorflow_ipu.config.enums import (
    ExecutionProfileType as ExecutionProfileType,
)
from tensorflow_ipu.config.enums import (
    MergeRemoteBuffersBehaviour as MergeRemoteBuffersBehaviour,
)
from tensorflow_ipu.config.enums import (
    SchedulingAlgorithm as SchedulingAlgorithm,
)
from tensorflow_ipu.config.enums import (
    SelectionOrder as SelectionOrder,
)
from tensorflow_ipu.config.enums import (
    StochasticRoundingBehaviour as StochasticRoundingBehaviour,
)
from tensorflow_ipu.config.ipu_config import IPUConfig as IPUConfig
from tensorflow_ipu.config.ipu_config import running_on_ipu_model as running_on_ipu_model
from tensorflow_ipu.config.system import (
    configure_ipu_system as configure_ipu_system,
)
from tensorflow_ipu.config.system import (
    get_ipu_config as get_ipu_config,
)
from tensorflow_ipu.config.system import (
    reset_ipu_configuration as reset_ipu_configuration,
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
