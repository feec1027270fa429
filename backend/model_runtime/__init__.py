"""Loading and running of PopEF models: runners, sessions, queues, devices. Names and spelling are
the real library's.

The simulated IPU of `simipu` runs the models. Nothing here knows Triton.
"""

from model_runtime import predicate_factory
from model_runtime.descriptions import DataDesc, InputDesc, OutputDesc
from model_runtime.devices import Device, DeviceManager, DeviceWaitConfig, DeviceWaitStrategy
from model_runtime.environment import host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.predicate_factory.anchor_callbacks import (
    AnchorCallbackPolicy,
    AnchorCallbackPredicate,
)
from model_runtime.queues import InputQueue, InputRingBuffer, OutputQueue, OutputSlot, QueueManager
from model_runtime.request_flow import RequestFlow, RequestTracepoint
from model_runtime.runner import (
    ConstTensorMemoryView,
    InputMemory,
    InputMemoryView,
    ModelRunner,
    ModelRunnerConfig,
    OutputFutureMemory,
    OutputMemory,
    OutputMemoryView,
    PopefPaths,
    TensorMemory,
    TensorMemoryView,
)
from model_runtime.session import LaunchPolicy, Session, SessionConfig
from popef._tools.version import __version__ as __version__

__all__ = [
    "AnchorCallbackPolicy",
    "AnchorCallbackPredicate",
    "ConstTensorMemoryView",
    "DataDesc",
    "Device",
    "DeviceManager",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "InputDesc",
    "InputMemory",
    "InputMemoryView",
    "InputQueue",
    "InputRingBuffer",
    "LaunchPolicy",
    "ModelRunner",
    "ModelRunnerConfig",
    "ModelRuntimeError",
    "OutputDesc",
    "OutputFutureMemory",
    "OutputMemory",
    "OutputMemoryView",
    "OutputQueue",
    "OutputSlot",
    "PopefPaths",
    "QueueManager",
    "RequestFlow",
    "RequestTracepoint",
    "Session",
    "SessionConfig",
    "StoppedError",
    "TensorMemory",
    "TensorMemoryView",
    "__version__",
    "host_sync_timeout_seconds",
    "predicate_factory",
]
