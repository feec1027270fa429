"""Loading and running of PopEF models: runners, sessions, queues, devices. Names and spelling are
the real library's.

The simulated IPU of `simipu` runs the models. Nothing here knows Triton.
`__all__` lists the library's names; names imported `as` themselves are for the rooms above.
"""

from model_runtime import predicate_factory
from model_runtime.compiled_model import DIRECTIONS as DIRECTIONS
from model_runtime.compiled_model import RunCost as RunCost
from model_runtime.descriptions import DataDesc, InputDesc, OutputDesc
from model_runtime.descriptions import FusedRequests as FusedRequests
from model_runtime.descriptions import describe_anchor as describe_anchor
from model_runtime.descriptions import describe_tensors as describe_tensors
from model_runtime.devices import Device, DeviceManager, DeviceWaitConfig, DeviceWaitStrategy
from model_runtime.devices import model_target as model_target
from model_runtime.environment import host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.predicate_factory.anchor_callbacks import (
    AnchorCallbackPolicy,
    AnchorCallbackPredicate,
)
from model_runtime.queues import InputQueue, InputRingBuffer, OutputQueue, OutputSlot, QueueManager
from model_runtime.request_flow import RequestFlow, RequestTracepoint
from model_runtime.request_flow import compute_joined as compute_joined
from model_runtime.request_flow import is_retried_alone as is_retried_alone
from model_runtime.request_flow import take_next_run as take_next_run
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
from model_runtime.runner import Promise as Promise
from model_runtime.session import LaunchPolicy, Session, SessionConfig
from model_runtime.session import read_model as read_model
from model_runtime.shutdown import ServingThread as ServingThread
from model_runtime.shutdown import endless_wait as endless_wait
from model_runtime.shutdown import stop_at_exit as stop_at_exit
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
